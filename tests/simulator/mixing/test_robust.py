"""Attackers and robust aggregation in the simulator."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dystop.config import read_experiment
from dystop.control.stopping import Stop
from dystop.exchange import Exchange
from dystop.exchange.attacks import ATTACKS, Attackers, Flip
from dystop.exchange.rules import Clip, Median
from dystop.plan import Plan, links, mix_of
from dystop.runs.building import build
from dystop.simulator import checkpoint, no_round, run_rounds
from dystop.simulator.round import begin, simulate
from dystop.sparse import ints
from support.engine_fixtures import DeltaScript, Script, components_for

KEYS = (
    "fleet.workers=15", "data.name=synthetic", "data.options.train=3000",
    "data.options.noise=0.3", "training.learning_rate=0.2", "model.name=softmax",
    "world.range_m=200", "mechanism.neighbours=4", "stop.rounds=100", "evaluate.every_rounds=1000",
    "training.lanes=1",
)  # fmt: skip


def components_of(*words):
    return build(read_experiment(None, [*KEYS, *words])).components


def honest_accuracy(rule, kind="none", *words):
    """Return the mean accuracy of the honest workers' models at the end of a run."""
    components = components_of(f"aggregation.rule={rule}", f"adversary.kind={kind}", *words)
    for last, _ in run_rounds(components, begin(components), no_round):
        record = last
    return record.accuracy


# Three of fifteen workers collude ---------------------------------------------------------------


@pytest.fixture(scope="module")
def calm():
    return honest_accuracy("mean")


def test_agree_holds_where_clip_and_nearest_fall_to_an_inner_product_attack(calm):
    accuracy = {rule: honest_accuracy(rule, "ipm") for rule in ("mean", "clip", "nearest", "agree")}
    assert accuracy["mean"] < calm - 0.15
    assert max(accuracy["clip"], accuracy["nearest"]) < calm - 0.05
    assert accuracy["agree"] > calm - 0.03


def test_agree_holds_against_a_little_is_enough(calm):
    strong = "adversary.options.strength=4"
    assert honest_accuracy("mean", "alie", strong) < calm - 0.2
    assert honest_accuracy("agree", "alie", strong) > calm - 0.03


def test_agree_holds_against_a_shortened_mean(calm):
    """Usual by distance and better than usual by loss; only the length tells."""
    strong = "adversary.options.strength=2"
    assert honest_accuracy("mean", "ipm-near", strong) < calm - 0.1
    assert honest_accuracy("agree", "ipm-near", strong) > calm - 0.02


# One round by hand ------------------------------------------------------------------------------


def pulls(kind="linear"):
    """A plan: workers 0 and 1 pull from each other and from worker 2, and nobody trains long."""
    dst, src = ints([0, 0, 1, 1, 2, 2]), ints([1, 2, 0, 2, 0, 1])
    rows = mix_of(
        np.concatenate([np.arange(3), dst]),
        np.concatenate([np.arange(3), src]),
        np.full(9, 1 / 3),
        kind=kind,
    )
    return Plan(ints([0, 1, 2]), links(dst, src, delta=kind == "delta"), (rows,))


def after_one_round(mechanism, **changes):
    """Workers have trained to 1, 2 and 3; they mix, then add 1, 2 and 3 again."""
    components = components_for(mechanism, 3, stop=Stop(rounds=1), **changes)
    ((record, state),) = simulate(components, begin(components))
    return record, state.models.latest[:, 0].tolist()


def flipping(*nodes, kind="flip"):
    return Exchange(attackers=Attackers(ATTACKS[kind](), ints(nodes), 0))


def test_others_get_what_the_attacker_sends_and_it_keeps_its_own_model():
    _, calm = after_one_round(Script(plans=(pulls(),)))
    assert calm == pytest.approx([2 + 1, 2 + 2, 2 + 3])
    _, models = after_one_round(Script(plans=(pulls(),)), exchange=flipping(2))
    assert models == pytest.approx([(1 + 2 - 3) / 3 + 1, (1 + 2 - 3) / 3 + 2, 2 + 3])


def test_attackers_send_updates_of_what_they_pretend_to_have():
    """The update of 3 from 0 becomes -3."""
    plan = pulls("delta")
    _, models = after_one_round(DeltaScript(plans=(plan,)), exchange=flipping(2))
    assert models == pytest.approx([(1 + 2 - 3) / 3 + 1, (1 + 2 - 3) / 3 + 2, 2 + 3])


def test_messages_of_attackers_are_changed_when_they_are_sent():
    push = Plan(
        ints([2]),
        links(ints([0]), ints([2]), pushed=True),
        (mix_of(ints([2]), ints([2]), np.ones(1)),),
    )
    use = Plan(
        ints([0]),
        links(ints([]), ints([])),
        (mix_of(ints([0, 0]), ints([0, 2]), np.full(2, 0.5)),),
    )
    script = Script(plans=(push, use))
    components = components_for(script, 3, stop=Stop(rounds=2), exchange=flipping(2))
    *_, (_, state) = simulate(components, begin(components))
    assert float(state.models.latest[0, 0]) == pytest.approx((1 - 3) / 2 + 1)


def test_attackers_know_the_mean_of_the_honest_models():
    _, models = after_one_round(Script(plans=(pulls(),)), exchange=flipping(2, kind="ipm"))
    assert models[0] == pytest.approx((1 + 2 - 0.5 * 1.5) / 3 + 1)


def test_attackers_do_not_count_in_the_score():
    record, models = after_one_round(Script(plans=(pulls(),)), exchange=flipping(2))
    assert record.accuracy == pytest.approx(np.mean(models[:2]) / 100)
    assert record.get("accuracy_global") == pytest.approx(np.mean(models[:2]) / 100)


def test_clipping_by_hand():
    """Distances from 1 are 1 and 2: with radius 1, the model 3 counts half."""
    clip = Exchange(Clip(clip_radius=1.0))
    _, models = after_one_round(Script(plans=(pulls(),)), exchange=clip)
    assert models == pytest.approx([1 + (1 + 1) / 3 + 1, 2 + 2, 3 - (1 + 1) / 3 + 3])


def test_the_median_by_hand():
    _, models = after_one_round(Script(plans=(pulls(),)), exchange=Exchange(Median()))
    assert models == pytest.approx([2 + 1, 2 + 2, 2 + 3])


def test_a_model_that_is_not_finite_is_left_out():
    class Diverging(Flip):
        def sent(self, known):
            return torch.full((1,), torch.nan)

    exchange = Exchange(Clip(clip_radius=1.0), Attackers(Diverging(), ints([2]), 0))
    _, models = after_one_round(Script(plans=(pulls(),)), exchange=exchange)
    assert models[0] == pytest.approx(1 + 1 / 3 + 1)


# Runs -------------------------------------------------------------------------------------------


def test_a_resumed_run_remembers_usual_distances_and_losses(tmp_path):
    words = ("aggregation.rule=agree", "adversary.kind=alie", "stop.rounds=12")
    components = components_of(*words)
    whole = []
    for record, state in simulate(components, begin(components)):
        whole.append(record.to_json())
        if len(whole) == 6:
            checkpoint.save(tmp_path, state)
    loaded = checkpoint.load_newest(tmp_path, torch.device("cpu")).state
    rest = [record.to_json() for record, _ in simulate(components_of(*words), loaded)]
    assert rest == whole[6:]


def test_label_flips_change_the_trainings_of_attackers_only():
    words = ("stop.rounds=1", "aggregation.rule=mean")
    flip = ("adversary.workers=[2]", "adversary.kind=label-flip")
    honest, flipped = components_of(*words), components_of(*words, *flip)
    np.testing.assert_array_equal(honest.fleet.label_counts, flipped.fleet.label_counts)
    one, two = (begin(replace(c, exchange=Exchange())).models.latest for c in (honest, flipped))
    same = [bool(torch.equal(a, b)) for a, b in zip(one, two, strict=True)]
    assert [k for k, equal in enumerate(same) if not equal] == [2]
