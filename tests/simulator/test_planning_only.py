"""Planning only: the decisions of a simulation without its models."""

from dataclasses import replace

import pytest

from dystop.config import read_experiment
from dystop.control.stopping import Evaluate, Stop
from dystop.mechanisms import MECHANISMS
from dystop.record import SCORE
from dystop.runs.building import build
from dystop.simulator import is_pipelined, run_rounds
from dystop.simulator.checkpoint import load_newest, save
from dystop.simulator.params import EngineParams
from dystop.simulator.round import begin, simulate
from dystop.training.flat import Layout
from dystop.training.trainers.no_training import NoTraining
from support.engine_fixtures import components_for
from support.fake_runs import changed
from support.unstable_world import UNSTABLE_WORLD

PLANNED = sorted(name for name, kind in MECHANISMS.items() if not kind().capabilities().needs)
LAWS = (EngineParams("paper", "eager"), EngineParams("overlap", "on_completion"))


def planned(components):
    """The same simulation without training."""
    fleet = components.fleet
    trainer = NoTraining(Layout((), (), ()), fleet.data_size, fleet.batch)
    engine = replace(components.engine, train=False)
    recorders = components.recorders[:2]  # what the world and the plan say, no trainings
    return replace(components, trainer=trainer, engine=engine, recorders=recorders)


def decisions(records):
    """All that a mechanism and the world decide: everything but what models give."""
    measured = dict.fromkeys(("loss", *SCORE))
    return [changed(r, **measured, samples_total=0, epochs_total=0.0) for r in records]


def run(components):
    return [record for record, _ in simulate(components, begin(components))]


@pytest.mark.parametrize("engine", LAWS, ids=lambda engine: engine.timing)
@pytest.mark.parametrize("name", PLANNED)
def test_decisions_are_those_of_the_run_with_training(name, engine):
    trained = components_for(
        MECHANISMS[name](),
        9,
        params=UNSTABLE_WORLD,
        engine=engine,
        stop=Stop(rounds=20),
        evaluate=Evaluate(every_rounds=3),
    )
    with_models, without = run(trained), run(planned(trained))
    assert any(r.accuracy is not None for r in with_models)
    assert all(r.accuracy is None and r.loss is None for r in without)
    assert decisions(without) == decisions(with_models)


def test_only_losses_and_scores_are_missing_in_a_real_run():
    words = [
        "fleet.workers=8", "stop.rounds=6", "data.name=synthetic", "data.options.train=123",
        "data.train_limit=100", "model.name=softmax", "training.device=cpu", "training.epochs=2",
    ]  # fmt: skip
    built = [build(read_experiment(None, [*words, f"engine.train={t}"])) for t in ("true", "false")]
    trained, plan = (list(run_rounds(b.components, begin(b.components))) for b in built)
    none = dict.fromkeys(("loss", *SCORE))
    assert [r for r, _ in plan] == [changed(r, **none) for r, _ in trained]
    assert plan[-1][0].samples_total > 0
    assert built[0].fleet["label_counts"] == built[1].fleet["label_counts"]
    assert built[0].fleet["model_bytes"] == built[1].fleet["model_bytes"]


def test_models_take_no_memory_and_rounds_are_not_decided_ahead():
    components = planned(components_for(MECHANISMS["sa-adfl"](), 9, stop=Stop(rounds=6)))
    assert not is_pipelined(components)
    *_, (_, state) = simulate(components, begin(components))
    assert state.models.latest.numel() == 0
    assert state.models.snapshots
    assert all(row.numel() == 0 for row in state.models.snapshots.values())


@pytest.mark.parametrize("name", ["dystop", "asyng"])
def test_a_checkpoint_continues_the_plan(name, tmp_path):
    components = planned(components_for(MECHANISMS[name](), 9, stop=Stop(rounds=8)))
    rounds = simulate(components, begin(components))
    for record, state in rounds:
        if record.round == 4:
            save(tmp_path, state)
            break
    rest = [record for record, _ in rounds]
    loaded = load_newest(tmp_path, components.trainer.device)
    assert [record for record, _ in simulate(components, loaded.state)] == rest
