"""Trainings that wait for each other give the records and models of one round after another."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.config import read_experiment
from dystop.control.stopping import Evaluate, Stop
from dystop.mechanisms import MECHANISMS
from dystop.runs.building import build
from dystop.simulator import no_round, pipeline, run_rounds, waves
from dystop.simulator import round as simulated
from dystop.simulator.model_stack import first_models
from dystop.simulator.params import EngineParams
from dystop.simulator.round import begin
from support.engine_fixtures import AddingTrainer, components_for
from support.unstable_world import ENGINES, UNSTABLE_WORLD

TRAINER = AddingTrainer()


def results(components, needs_models=no_round):
    """Run with and without waves; return records, the states that were asked for, and the end."""
    found = []
    for ahead in (False, True):
        changed = replace(components, engine=replace(components.engine, ahead=ahead))
        kept, lines, state = [], [], None
        for record, state in run_rounds(changed, begin(changed), needs_models):
            lines.append(record.to_json())
            if needs_models(record.round):
                kept.append(weights(state))
        found.append((lines, kept, weights(state)))
    return found


def weights(state):
    models = state.models
    stacks = (
        models.latest, models.counters, models.finished, models.start, models.finished_start,
        models.aggregated, models.aggregated_before,
    )  # fmt: skip
    rows = [None if stack is None else stack.tolist() for stack in stacks]
    return rows, {number: row.tolist() for number, row in models.snapshots.items()}


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_every_mechanism_in_an_unstable_world(name, engine):
    components = components_for(
        MECHANISMS[name](),
        9,
        params=UNSTABLE_WORLD,
        engine=engine,
        stop=Stop(rounds=40),
        evaluate=Evaluate(every_rounds=3),
        trainer=AddingTrainer(width=2),
    )
    plain, ahead = results(components, lambda t: t % 7 == 0)
    assert ahead == plain


VARIANTS = (
    *(MECHANISMS[name]() for name in sorted(MECHANISMS)),
    MECHANISMS["asydfl"](wakes="one"),
    MECHANISMS["asydfl"](background=True),
    MECHANISMS["asydfl"](payload="delta", wakes="one"),
    MECHANISMS["asyng"](background=True),
    MECHANISMS["sa-adfl"](background=True, mail="latest"),
    MECHANISMS["sa-adfl"](sends="mixed"),
)
"""All mechanisms, and hyper-parameters that change what their links carry."""


@settings(max_examples=40, deadline=None)
@given(
    mechanism=st.sampled_from(VARIANTS),
    engine=st.sampled_from(ENGINES),
    n=st.integers(2, 12),
    seed=st.integers(0, 2**32),
    every=st.integers(1, 20),
    kept=st.integers(1, 30),
    copies=st.sampled_from([0, 2**28]),
    model=st.sampled_from(["trained", "aggregated"]),
)
def test_any_small_fleet(mechanism, engine, n, seed, every, kept, copies, model):
    components = components_for(
        mechanism,
        n,
        params=UNSTABLE_WORLD,
        seed=seed,
        engine=engine,
        stop=Stop(rounds=25),
        evaluate=Evaluate(every_rounds=every, model=model),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waves, "MAX_COPY_BYTES", copies)
        plain, ahead = results(components, lambda t: t % kept == 0)
    assert ahead == plain


def test_small_fleets_meet_everything_that_waves_could_break(monkeypatch):
    """Churn, mobility, losses, mail, background links, masks and updates occur in these fleets."""
    met, decide = set(), simulated.decide

    def look(mechanism, control, view, *rest):
        plan, after = decide(mechanism, control, view, *rest)
        found = {
            "churn": not view.alive.all(),
            "mail": len(view.mailbox) > 0,
            "background links": plan.links.background.any(),
            "updates": plan.links.delta.any(),
            "masks": any(mix.kind == "masked" for mix in plan.mixes),
            "two stages": len(plan.mixes) > 1,
        }
        met.update(word for word, is_met in found.items() if is_met)
        return plan, after

    monkeypatch.setattr(simulated, "decide", look)
    for mechanism in VARIANTS:
        components = components_for(mechanism, 9, params=UNSTABLE_WORLD, stop=Stop(rounds=25))
        records = [r for r, _ in run_rounds(components, begin(components), no_round)]
        first, last = (components.world.observe(1, t).position for t in (0.0, records[-1].clock_s))
        met.update({"losses"} if any(r.lost for r in records) else ())
        met.update({"mobility"} if (first != last).any() else ())
    assert met == {
        "background links", "churn", "losses", "mail", "masks", "mobility", "two stages", "updates",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["ad-psgd", "dystop", "fedasync", "sa-adfl"])
@pytest.mark.parametrize("path", ["fused", "sequential"])
@pytest.mark.parametrize("model", ["trained", "aggregated"])
def test_real_training_has_the_same_bits(name, path, model):
    words = [
        f"mechanism.name={name}", f"training.path={path}", "fleet.workers=6", "data.name=synthetic",
        "data.options.train=120", "data.options.test=30", "model.name=mlp", "stop.rounds=12",
        "evaluate.every_rounds=4", f"evaluate.model={model}", "engine.publish=on_completion",
    ]  # fmt: skip
    components = build(read_experiment(None, words)).components
    plain, ahead = results(components)
    assert ahead == plain


@pytest.fixture
def queues(monkeypatch):
    """All queues that a test makes."""
    made = []

    def remember(*args):
        made.append(waves.queue_of(*args))
        return made[-1]

    monkeypatch.setattr(pipeline, "queue_of", remember)
    return made


@pytest.mark.parametrize("name", ["ad-psgd", "fedasync", "sa-adfl"])
def test_waves_of_free_running_mechanisms_are_wide(name, queues):
    engine = EngineParams("overlap", "on_completion")
    components = components_for(MECHANISMS[name](), 30, engine=engine, stop=Stop(rounds=200))
    components = replace(components, evaluate=Evaluate(every_rounds=5))
    assert len(list(run_rounds(components, begin(components), no_round))) == 200
    (queue,) = queues
    assert queue.statistics.rounds == 200
    assert queue.statistics.width > 4
    assert queue.statistics.ended_by["a result is read"] > 0


def test_a_run_that_every_evaluation_may_end_gets_waves_of_one_round(queues):
    stop = Stop(rounds=9, loss=1e-9)  # never reached, but it has to be compared
    evaluate = Evaluate(every_rounds=1)
    components = components_for(MECHANISMS["ad-psgd"](), 8, stop=stop, evaluate=evaluate)
    list(run_rounds(components, begin(components), no_round))
    assert queues[0].statistics.width == 1


def queued_models(trainer, nodes=4):
    models = first_models(
        torch.zeros(1), torch.zeros(1, dtype=torch.int64), nodes, late=True, deltas=False
    )
    return replace(models, trainings=waves.queue_of(models, trainer))


def test_a_device_beside_the_host_gets_a_round_of_many_at_once():
    models = queued_models(AddingTrainer(returns_early=True), nodes=100)
    one, many = np.ones(1, np.int64), np.arange(20, 30)
    for k in range(10):
        models.trainings.train(models, TRAINER, np.array([k]), one, one, None)
    assert models.trainings.trained == 0  # few wait until somebody reads a result
    models.trainings.train(models, TRAINER, many, many, np.ones_like(many), None)
    assert models.trainings.statistics.ended_by == {"a round of many": 1}
    assert models.trainings.statistics.trainings == 20
    slow = queued_models(AddingTrainer(), nodes=100)
    slow.trainings.train(slow, TRAINER, many, many, np.ones_like(many), None)
    assert slow.trainings.trained == 0  # the host would wait for it


def test_a_shift_is_added_after_the_training_that_waits():
    models = queued_models(AddingTrainer())
    two = np.array([1, 2])
    models.trainings.train(models, TRAINER, np.array([1]), np.array([1]), np.array([3]), None)
    models.trainings.shift(models, two, torch.tensor([[10.0], [20.0]]))
    assert models.latest[:, 0].tolist() == [0.0, 0.0, 20.0, 0.0]
    models.trainings.finish(np.array([2]))  # does not wait
    assert models.latest[1, 0] == 0.0
    models.trainings.finish(np.array([1]))
    assert models.latest[:, 0].tolist() == [0.0, 12.0, 20.0, 0.0]


def test_losses_belong_to_their_rounds():
    class Losses(AddingTrainer):
        def train(self, models, counters, workers, versions, steps, rates=None):
            done = super().train(models, counters, workers, versions, steps, rates)
            return replace(done, losses=np.asarray(workers, float))

    models = queued_models(Losses())
    one = np.ones(1, np.int64)
    rounds = [
        models.trainings.train(models, TRAINER, np.array([k]), one, one, None) for k in (2, 0, 3)
    ]
    models.trainings.run("test")
    assert [done.loss.tolist() for done in rounds] == [[2.0], [0.0], [3.0]]
    assert [done.samples for done in rounds] == [1, 1, 1]


def test_samples_are_known_before_the_training():
    words = [
        "fleet.workers=5", "data.name=synthetic", "data.options.train=203", "data.phi=0.3",
        "data.options.test=30", "model.name=softmax", "training.batch=8",
    ]  # fmt: skip
    trainer = build(read_experiment(None, words)).components.trainer
    vector, counters = trainer.initial()
    for steps in (0, 1, 3, 7, 40):
        nodes, each = np.arange(5), np.full(5, steps)
        done = trainer.train(vector.repeat(5, 1), counters.repeat(5, 1), nodes, nodes, each)
        assert trainer.samples_seen(nodes, each) == done.samples
