"""Mixing of accepted models: equal to the simulator without faults, and by robust rules."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.control.aggregation import kept_coordinates, renormalise_lost
from dystop.exchange import Exchange
from dystop.exchange.rules import RULES, Agree, Clip, Median
from dystop.plan import mix_of
from dystop.rng import stream
from dystop.simulator.mixing.rules import combined_rows
from dystop.simulator.mixing.stage import Sources
from dystop.simulator.model_stack import Models
from dystop.testbed.protocol.messages import Row
from dystop.testbed.worker.mixer import Mixer, arrived_weights

quick = settings(derandomize=True, deadline=None, max_examples=60)

WIDTH = 12
MEAN = Mixer(Exchange())
OWN = np.linspace(1, 2, WIDTH, dtype=np.float32)


@st.composite
def stages(draw):
    """A row, the models of all nodes, and which of them do not arrive."""
    n, node = 6, draw(st.integers(0, 5))
    sources = sorted(draw(st.sets(st.integers(0, n - 1), min_size=1)))
    raw = [draw(st.floats(0.05, 1)) for _ in sources]
    kind = draw(st.sampled_from(["linear", "delta", "masked"]))
    weights = [w / sum(raw) for w in raw] if kind != "delta" else raw
    lost = draw(st.sets(st.sampled_from(sources))) - {node}
    mask = (draw(st.integers(0, 99)), 0.5) if kind == "masked" else None
    row = Row(tuple(sources), tuple(weights), kind, mask, to_self=draw(st.booleans()))
    return row, node, lost, draw(st.integers(0, 1000))


class FakeTrainer:
    """Has the sum of squares of a model as its loss on own samples."""

    def own_losses(self, models, counters, worker, samples):
        return (models.double() ** 2).sum(1).numpy()


@pytest.mark.parametrize("rule", RULES)
@quick
@given(stages())
def test_equal_to_the_simulator(rule, case):
    row, node, lost, seed = case
    rule = RULES[rule]()
    draw = stream(seed, "models").normal(size=(2, 6, 40)).astype(np.float32)
    latest, start = draw
    stage = mix_of(np.full(len(row.sources), node), np.array(row.sources), np.array(row.weights),
                   kind=row.kind, mask=row.mask)  # fmt: skip
    stage = renormalise_lost(stage, np.full(len(lost), node), np.array(sorted(lost), np.int64),
                 to_self=row.to_self)  # fmt: skip
    tensors = [torch.from_numpy(x.copy()) for x in (latest, start)]
    models = Models(tensors[0], torch.zeros(6, 0), start=tensors[1])
    none, some = np.zeros(len(stage.source), bool), np.ones(len(stage.source), bool)
    sources = Sources(some, none, none, none.astype(int) - 1, np.zeros(1, bool))
    models = replace(models, memory=rule.memory(6))
    rows = combined_rows(Exchange(rule), FakeTrainer(), models, stage, sources)
    expected = rows[0].numpy()

    sent = latest - start if row.kind == "delta" else latest
    arrived = {j: sent[j] for j in row.sources if j != node and j not in lost}
    mixer = Mixer(
        Exchange(rule),
        own_losses=lambda some, samples: FakeTrainer().own_losses(
            torch.tensor(np.stack(some)), 0, 0, 0
        ),
    )
    got = mixer.mix_arrived(row, node, latest[node], arrived, start=start[node])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@quick
@given(stages())
def test_kept_coordinates_are_enough(case):
    row, node, lost, seed = case
    row = replace(row, kind="masked", mask=(7, 0.3))
    latest = stream(seed, "models").normal(size=(6, 40)).astype(np.float32)
    kept = kept_coordinates(7, 0.3, 40)
    there = [j for j in row.sources if j != node and j not in lost]
    whole = MEAN.mix_arrived(row, node, latest[node], {j: latest[j] for j in there})
    part = MEAN.mix_arrived(row, node, latest[node], {j: latest[j][kept] for j in there})
    np.testing.assert_array_equal(whole, part)
    np.testing.assert_array_equal(whole[~kept], latest[node][~kept])


def test_weights_of_what_arrived():
    row = Row((4, 1, 2), (0.5, 0.25, 0.25))
    assert arrived_weights(row, 1, {2: OWN, 4: OWN}) == {1: 0.25, 2: 0.25, 4: 0.5}
    assert list(arrived_weights(row, 1, {2: OWN, 4: OWN})) == [1, 2, 4]
    assert arrived_weights(row, 1, {2: OWN}) == {1: 0.5, 2: 0.5}
    assert arrived_weights(replace(row, to_self=True), 1, {2: OWN}) == {1: 0.75, 2: 0.25}
    assert arrived_weights(replace(row, to_self=True), 3, {2: OWN}) == {2: 0.25, 3: 0.75}
    assert arrived_weights(replace(row, kind="delta"), 1, {2: OWN}) == {1: 0.25, 2: 0.25}
    assert arrived_weights(row, 3, {}) == {}
    assert arrived_weights(Row((1, 2), (0.0, 1.0)), 1, {}) == {}  # nothing left to divide by


def test_nothing_arrived_keeps_the_own_model():
    row = Row((1, 2), (0.5, 0.5))
    assert MEAN.mix_arrived(row, 0, OWN, {}) is OWN
    np.testing.assert_array_equal(MEAN.mix_arrived(row, 1, OWN, {}), OWN)
    for rule in RULES:
        np.testing.assert_array_equal(
            Mixer(Exchange(RULES[rule]())).mix_arrived(row, 1, OWN, {}), OWN
        )


def test_models_that_no_row_names_are_not_used():
    row = Row((1, 2), (0.5, 0.5))
    bad = np.full(WIDTH, np.nan, np.float32)
    for rule in RULES:
        mixer = Mixer(Exchange(RULES[rule]()))
        assert np.isfinite(mixer.mix_arrived(row, 1, OWN, {2: OWN, 5: bad})).all()


def test_updates_need_a_start():
    with pytest.raises(ValueError, match="start"):
        MEAN.mix_arrived(Row((2,), (1.0,), "delta"), 1, OWN, {2: OWN})


# Mixing by other rules --------------------------------------------------------------------------


def test_a_cap_on_weights():
    row, other = Row((1, 2), (0.1, 0.9)), OWN + 1
    capped = Mixer(Exchange(), 0.5)
    np.testing.assert_allclose(capped.mix_arrived(row, 1, OWN, {2: other}), OWN + 0.5, rtol=1e-6)
    np.testing.assert_allclose(MEAN.mix_arrived(row, 1, OWN, {2: other}), OWN + 0.9, rtol=1e-6)
    alone = Row((2,), (1.0,))  # a row without the own model gets it
    np.testing.assert_allclose(capped.mix_arrived(alone, 1, OWN, {2: other}), OWN + 0.5, rtol=1e-6)
    # Lost sources raise the others' weights: the cap holds after that.
    three = Row((1, 2, 3), (0.4, 0.3, 0.3))
    capped = Mixer(Exchange(), 0.35)
    np.testing.assert_allclose(capped.mix_arrived(three, 1, OWN, {2: other}), OWN + 0.35,
                               rtol=1e-6)  # fmt: skip


def test_a_cap_on_weights_below_zero():
    row, other = Row((1, 2), (1.6, -0.6)), OWN + 1
    capped = Mixer(Exchange(), 0.25)
    np.testing.assert_allclose(capped.mix_arrived(row, 1, OWN, {2: other}), OWN - 0.25, rtol=1e-6)


def test_each_aggregator_by_hand():
    own = np.zeros(2, np.float32)
    models = {2: np.array([3, 4]), 3: np.array([0, 1]), 5: np.array([30, 40])}
    arrived = {j: x.astype(np.float32) for j, x in models.items()}
    row = Row((1, 2, 3, 5), (0.1, 0.2, 0.3, 0.4))
    due = {
        "mean": [12.6, 17.1],
        "clip": [0.6 * 1.8, 0.6 * 2.4 + 0.3],
        "agree": [0.6 * 1.8, 0.6 * 2.4 + 0.3],  # without own samples
        "trimmed": [1.5, 2.5],
        "median": [1.5, 2.5],
        "nearest": [1.0, 1.1 / 0.6],
    }
    for rule, result in due.items():
        got = Mixer(Exchange(RULES[rule]())).mix_arrived(row, 1, own, arrived, radius=3.0)
        np.testing.assert_allclose(got, result, rtol=1e-6, err_msg=rule)
    clip = Mixer(Exchange(Clip()))  # the median distance is 5
    got = clip.mix_arrived(row, 1, own, arrived)
    np.testing.assert_allclose(got, [0.6 * 3, 0.6 * 4 + 0.3], rtol=1e-6)


def test_order_statistics_omit_models_of_weight_zero():
    other = {2: OWN + 1, 3: OWN + 2}
    median = Mixer(Exchange(Median()))
    row = Row((2, 3), (0.5, 0.5))  # a server that mixes without its own model
    np.testing.assert_allclose(median.mix_arrived(row, 9, OWN, other), OWN + 1.5, rtol=1e-6)
    row = Row((1, 2, 3), (0.5, 0.5, 0.0))
    np.testing.assert_allclose(median.mix_arrived(row, 1, OWN, other), OWN + 0.5, rtol=1e-6)


def test_clip_survives_a_model_that_the_mean_does_not():
    bad = {2: OWN * -9, 3: OWN + np.float32(0.01), 4: OWN - np.float32(0.01)}
    row = Row((1, 2, 3, 4), (0.25,) * 4)
    moved = [
        np.linalg.norm(mixer.mix_arrived(row, 1, OWN, bad, radius=0.05) - OWN)
        for mixer in (MEAN, Mixer(Exchange(Clip())))
    ]
    assert moved[0] > 10
    assert moved[1] <= 0.05 * 0.75 + 1e-5


def test_inputs_are_not_written_to():
    own, other = OWN.copy(), OWN + 1
    own.flags.writeable = other.flags.writeable = False
    for kind in ("linear", "delta", "masked"):
        mask = (1, 0.5) if kind == "masked" else None
        row = Row((1, 2), (0.5, 0.5), kind, mask)
        mixed = MEAN.mix_arrived(row, 1, own, {2: other}, start=own)
        assert not np.shares_memory(mixed, own)
        assert not np.shares_memory(mixed, other)


# Agreement with own samples ---------------------------------------------------------------------


def test_a_model_that_disagrees_with_own_samples_counts_less():
    """Losses 1, 1 and 4: the usual loss is 1, so the third model has a sixteenth of its weight."""
    own, arrived = np.zeros(2, np.float32), {2: OWN[:2] * 0 + 1, 3: OWN[:2] * 0 + 1, 4: OWN[:2] * 0}
    arrived[4] = np.array([-1, 1], np.float32)
    losses = {(1.0, 1.0): 1.0, (-1.0, 1.0): 4.0}
    mixer = Mixer(
        Exchange(Agree()),
        own_losses=lambda models, samples: np.array([losses[tuple(map(float, m))] for m in models]),
    )
    got = mixer.mix_arrived(Row((1, 2, 3, 4), (0.25,) * 4), 1, own, arrived, radius=10.0)
    np.testing.assert_allclose(got, [0.5 - 0.25 / 16, 0.5 + 0.25 / 16], rtol=1e-6)


def test_the_usual_loss_is_remembered():
    """One bad model alone is compared with those that came before it."""
    given = iter([[1.0, 1.0], [4.0]])
    mixer = Mixer(Exchange(Agree()), own_losses=lambda models, samples: np.array(next(given)))
    near = {2: OWN, 3: OWN}
    mixer.mix_arrived(Row((1, 2, 3), (0.2, 0.4, 0.4)), 1, OWN, near, radius=10.0)
    got = mixer.mix_arrived(Row((1, 2), (0.5, 0.5)), 1, OWN, {2: OWN + 1}, radius=10.0)
    np.testing.assert_allclose(got, OWN + 0.5 / 16, rtol=1e-6)


def test_masked_models_are_tested_with_own_coordinates_in_the_gaps():
    seen = []

    def own_losses(models, samples):
        seen.extend(models)
        return np.ones(len(models))

    row = Row((1, 2), (0.5, 0.5), "masked", (7, 0.3))
    kept = kept_coordinates(7, 0.3, WIDTH)
    Mixer(Exchange(Agree()), own_losses=own_losses).mix_arrived(
        row, 1, OWN, {2: OWN[kept] + 1}, radius=10.0
    )
    np.testing.assert_allclose(seen[0], OWN + kept)
