"""The pipeline decides rounds ahead and gives the same records."""

import os
import signal
import sys
from dataclasses import dataclass, field, replace

import pytest

from dystop.config import read_experiment
from dystop.control.stopping import Evaluate, Stop
from dystop.folders.run_folder import open_run
from dystop.mechanisms import MECHANISMS, DySTop
from dystop.runs import run
from dystop.simulator import checkpoint, no_round, pipeline, run_rounds
from dystop.simulator.params import EngineParams
from dystop.simulator.round import begin, simulate
from dystop.training.trainer import Trainer
from dystop.world import WorldParams
from support import crashing_child
from support.engine_fixtures import AddingTrainer, components_for, weights

EVERYBODY = MECHANISMS["d-psgd"]()  # is awake in every round, so that each is a wave


@dataclass
class Slow(AddingTrainer):
    """Says when a training is asked for, and when somebody waits for its losses."""

    returns_early: bool = True
    events: list[str] = field(default_factory=list)

    def train(self, models, counters, workers, versions, steps, rates=None):
        done = super().train(models, counters, workers, versions, steps, rates)
        number = sum(event.startswith("ask") for event in self.events)
        self.events.append(f"ask {number}")  # 0 is the warm start

        def losses():
            self.events.append(f"get {number}")
            return done.losses

        return replace(done, losses=losses)

    def evaluate(self, models, counters, samples=None, recalibrate_on=None):
        self.events.append("test")
        return super().evaluate(models, counters, samples)


def both(mechanism, needs_models=no_round, **changes):
    """Records and states of the plain loop and of the pipeline; and the events of the pipeline."""
    laws = EngineParams(publish="on_completion", timing="overlap")
    options = {"params": WorldParams(), "engine": laws, "stop": Stop(rounds=9), **changes}
    trainer = Slow()
    plain = components_for(mechanism, 8, **options, trainer=AddingTrainer())
    slow = replace(plain, trainer=trainer)
    runs = simulate(plain, begin(plain)), run_rounds(slow, begin(slow), needs_models)
    found = [[(record.to_json(), weights(state)) for record, state in run] for run in runs]
    return *found, trainer.events


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_records_are_the_same(name):
    plain, early, _ = both(MECHANISMS[name]())
    assert [line for line, _ in early] == [line for line, _ in plain]


@pytest.mark.parametrize(
    "changes",
    [
        {"evaluate": Evaluate(every_rounds=3)},
        {"evaluate": Evaluate(every_s=2.0)},
        {"stop": Stop(rounds=50, seconds=6.0)},
        {"stop": Stop(rounds=9, accuracy=0.05), "evaluate": Evaluate(every_rounds=2)},
        {"stop": Stop(rounds=9, loss=1.5), "evaluate": Evaluate(every_rounds=2)},
    ],
    ids=["rounds", "seconds", "over", "accuracy", "loss"],
)
def test_whatever_ends_a_run(changes):
    plain, early, _ = both(DySTop(), **changes)
    assert [line for line, _ in early] == [line for line, _ in plain]
    assert early[-1] == plain[-1]  # with its models


def test_the_device_need_not_wait():
    _, _, events = both(EVERYBODY, stop=Stop(rounds=4), evaluate=Evaluate(every_rounds=2))
    assert events == [
        "ask 0", "ask 1", "ask 2", "test", "test", "get 1", "ask 3", "get 2", "ask 4", "test",
        "test", "get 3", "get 4",
    ]  # fmt: skip


def test_a_test_that_may_end_the_run_is_waited_for():
    stop = Stop(rounds=4, accuracy=0.9)
    _, _, events = both(EVERYBODY, stop=stop, evaluate=Evaluate(every_rounds=2))
    assert events == [
        "ask 0", "ask 1", "ask 2", "test", "test", "get 1", "get 2", "ask 3", "ask 4", "test",
        "test", "get 3", "get 4",
    ]  # fmt: skip


def test_without_the_pipeline_the_plain_loop_runs(monkeypatch):
    """Deleting the module changes no record, also on a device that returns early."""
    monkeypatch.setitem(sys.modules, "dystop.simulator.pipeline", None)
    plain, early, events = both(DySTop(), stop=Stop(rounds=3))
    assert early == plain
    assert events == ["ask 0", "ask 1", "get 1", "ask 2", "get 2", "ask 3", "get 3", *["test"] * 2]


@pytest.mark.parametrize(
    "changes",
    [
        {"trainer": Slow(returns_early=False, rows_independent=False)},
        {"trainer": Slow(), "engine": EngineParams(ahead=False)},
    ],
    ids=["dependent", "off"],
)
def test_the_plain_loop_runs_where_the_pipeline_cannot_help(monkeypatch, changes):
    monkeypatch.setattr(pipeline, "simulate_ahead", None)
    components = components_for(DySTop(), 8, params=WorldParams(), **changes)
    assert len(list(run_rounds(components, begin(components), no_round))) == components.stop.rounds


def test_states_that_are_kept_are_exact():
    plain, early, events = both(EVERYBODY, needs_models=lambda t: t % 3 == 0)
    assert early[2::3] == plain[2::3]
    assert early != plain
    assert events.index("get 3") < events.index("ask 4")


@pytest.fixture
def flying(monkeypatch):
    monkeypatch.setattr(Trainer, "returns_early", True)


@pytest.mark.usefixtures("flying")
@pytest.mark.parametrize("stop_at", [0, 5, 6, 7, 8, 24])
def test_a_signal_is_obeyed_after_the_rounds_that_are_decided(tmp_path, monkeypatch, stop_at):
    experiment = read_experiment(None, crashing_child.CONFIG)

    def on_record(record):
        if record.round == stop_at:
            os.kill(os.getpid(), signal.SIGINT)

    def start():
        return run.run_experiment(experiment, tmp_path, "run", lambda _: None, on_record)

    folder = tmp_path / "run"
    if stop_at:
        with pytest.raises(KeyboardInterrupt):
            start()
        done = len(open_run(folder).records)
        assert stop_at <= done
        saved = checkpoint.checkpoints(folder / "checkpoints")[0]
        assert checkpoint.round_of(saved) == done
        run.resume_run(folder, lambda _: None, lambda _: None)
    else:
        start()
    monkeypatch.undo()
    calm = run.run_experiment(experiment, tmp_path, "calm", lambda _: None, lambda _: None)
    assert (folder / "records.jsonl").read_bytes() == (calm / "records.jsonl").read_bytes()
