"""Checks of pulled models, and their aggregation: equal to the simulator without faults."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.control.aggregation import kept_coordinates, renormalise_lost
from dystop.plan import mix_of
from dystop.rng import stream
from dystop.simulator.mixing import Models, Sources, mixed_rows
from dystop.testbed.params import Guards
from dystop.testbed.protocol.messages import Row
from dystop.testbed.protocol.payload import Schema
from dystop.testbed.worker.guard import Guard, ModelClaim, arrived_weights, mix_arrived

quick = settings(derandomize=True, deadline=None, max_examples=100)

WIDTH = 12
PLAIN = Guards()
SCHEMA = Schema((("w", (8,)), ("bn.running_mean", (2,)), ("bn.running_var", (2,))))
OWN = np.linspace(1, 2, WIDTH, dtype=np.float32)


def a_guard(**params) -> Guard:
    guard = Guard(replace(PLAIN, **params), SCHEMA.variances)
    guard.learn(OWN)
    return guard


def claim(version=1, number=0, round=1, node=3) -> ModelClaim:
    return ModelClaim(node, round, version, number)


def changed(at: int, value: float) -> np.ndarray:
    vector = OWN.copy()
    vector[at] = value
    return vector


# Judging ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vector", "code"),
    [
        (OWN, None),
        (OWN * 9, None),
        (changed(0, np.nan), "not_finite"),
        (changed(0, np.inf), "not_finite"),
        (changed(11, -np.inf), "not_finite"),
        (changed(0, 1e38), "norm"),
        (np.full(WIDTH, 3e38, np.float32), "norm"),
        (OWN * 11, "norm"),
        (changed(10, -1e-30), "variance"),
        (changed(11, -1.0), "variance"),
        (changed(9, -1.0), None),  # a mean may be negative
        (changed(11, -0.0), None),
    ],
)
def test_codes(vector, code):
    assert a_guard().judge(claim(), vector, OWN).code == code


def test_the_checks_have_an_order():
    bad = changed(11, -1.0)
    guard = a_guard()
    guard.judge(claim(version=9, round=1), OWN, OWN)
    old = claim(version=1, round=2)
    assert guard.judge(old, changed(11, -np.inf), OWN).code == "not_finite"
    assert guard.judge(old, bad * 100, OWN).code == "norm"
    assert guard.judge(old, bad, OWN).code == "variance"
    assert guard.judge(old, OWN, OWN).code == "replay"


def test_the_norm_limit_follows_the_last_twenty():
    guard = a_guard()
    guard.learn(OWN * 5)
    assert guard.judge(claim(), OWN * 49, OWN).code is None
    for _ in range(20):
        guard.learn(OWN)
    assert guard.judge(claim(), OWN * 49, OWN).code == "norm"
    guard.learn(changed(0, np.inf))  # an own model that is not finite is not counted
    assert guard.judge(claim(), OWN * 49, OWN).code == "norm"


def test_without_a_history_the_own_model_counts():
    guard = Guard(PLAIN)
    assert guard.judge(claim(), OWN * 11, OWN).code == "norm"
    zero = np.zeros(WIDTH, np.float32)  # some models begin with zeros: nothing to compare with
    assert guard.judge(claim(), OWN * 11, zero).code is None
    assert guard.judge(claim(), changed(0, np.nan), zero).code == "not_finite"


def test_distance():
    guard = a_guard(distance_factor=3.0)
    near = [changed(0, OWN[0] + 0.1 * k) for k in (1, 2, 3)]
    far = changed(0, OWN[0] + 5)
    verdict = guard.judge(claim(), near[1], OWN)
    assert verdict.distance == pytest.approx(0.2, rel=1e-5)
    assert guard.judge(claim(), far, OWN).code is None  # too few seen to call it unusual
    for model in near:
        guard.judge(claim(), model, OWN)
    refused = guard.judge(claim(), far, OWN)
    assert refused.code == "distance"
    assert refused.distance == pytest.approx(5, rel=1e-5)
    assert guard.radius == pytest.approx(0.25, rel=0.3)
    for _ in range(20):  # once most models are there, it is no longer unusual
        code = guard.judge(claim(), far, OWN).code
    assert code is None
    assert a_guard(clip_radius=7.0).radius == 7.0
    assert a_guard().radius is None


def test_replay():
    guard = a_guard()
    cases = [
        (claim(5, 2, round=1), None),
        (claim(5, 2, round=2), None),  # the same again is what a slow peer has
        (claim(4, 2, round=3), "replay"),
        (claim(6, 1, round=3), "replay"),
        (claim(7, 3, round=3), None),
        (claim(6, 2, round=3), None),  # overtaken by another pull of the same round
        (claim(6, 2, round=4), "replay"),
        (claim(1, 0, round=2), None),  # a slow pull for an old round
        (claim(1, 0, round=4, node=4), None),  # another peer
    ]
    for model, code in cases:
        assert guard.judge(model, OWN, OWN).code == code, model
    guard.forget(3)
    assert guard.judge(claim(0, -1, round=5), OWN, OWN).code is None


def test_a_refused_model_does_not_count_as_seen():
    guard = a_guard()
    assert guard.judge(claim(100, 100, round=1), changed(0, np.nan), OWN).code == "not_finite"
    assert guard.judge(claim(1, 1, round=2), OWN, OWN).code is None


def test_updates_are_not_compared_with_models():
    update = np.full(WIDTH, -0.1, np.float32)
    verdict = a_guard(distance_factor=1.0).judge(claim(), update, OWN, "delta")
    assert verdict == (None, None)
    assert a_guard().judge(claim(), update * 1000, OWN, "delta").code == "norm"


def test_masked_models():
    kept = np.zeros(WIDTH, bool)
    kept[[0, 3, 11]] = True
    verdict = a_guard().judge(claim(), OWN[kept] + np.float32(0.5), OWN, "masked", kept)
    assert verdict.code is None
    # 0.5 in each coordinate, scaled up from three to twelve.
    assert verdict.distance == pytest.approx(0.5 * np.sqrt(12), rel=1e-5)
    bad = np.array([1, 1, -1], np.float32)
    assert a_guard().judge(claim(), bad, OWN, "masked", kept).code == "variance"
    fine = np.array([-1, -1, 1], np.float32)
    assert a_guard().judge(claim(), fine, OWN, "masked", kept).code is None


# Mixing as the simulator does -------------------------------------------------------------------


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


@quick
@given(stages())
def test_equal_to_the_simulator(case):
    row, node, lost, seed = case
    draw = stream(seed, "models").normal(size=(2, 6, 40)).astype(np.float32)
    latest, start = draw
    stage = mix_of(np.full(len(row.sources), node), np.array(row.sources), np.array(row.weights),
                   kind=row.kind, mask=row.mask)  # fmt: skip
    stage = renormalise_lost(stage, np.full(len(lost), node), np.array(sorted(lost), np.int64),
                 to_self=row.to_self)  # fmt: skip
    tensors = [torch.from_numpy(x.copy()) for x in (latest, start)]
    models = Models(tensors[0], torch.zeros(6, 0), None, tensors[1], None, {}, {})
    none, some = np.zeros(len(stage.source), bool), np.ones(len(stage.source), bool)
    sources = Sources(some, none, none, none.astype(int) - 1, np.zeros(1, bool))
    expected = mixed_rows(models, stage, sources)[0].numpy()

    sent = latest - start if row.kind == "delta" else latest
    arrived = {j: sent[j] for j in row.sources if j != node and j not in lost}
    got = mix_arrived(row, node, latest[node], arrived, PLAIN, start=start[node])
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
    whole = mix_arrived(row, node, latest[node], {j: latest[j] for j in there}, PLAIN)
    part = mix_arrived(row, node, latest[node], {j: latest[j][kept] for j in there}, PLAIN)
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
    assert mix_arrived(row, 0, OWN, {}, PLAIN) is OWN
    np.testing.assert_array_equal(mix_arrived(row, 1, OWN, {}, PLAIN), OWN)
    for aggregator in ("clip", "trimmed", "median", "nearest"):
        guards = replace(PLAIN, aggregator=aggregator)
        np.testing.assert_array_equal(mix_arrived(row, 1, OWN, {}, guards), OWN)


def test_models_that_no_row_names_are_not_used():
    row = Row((1, 2), (0.5, 0.5))
    bad = np.full(WIDTH, np.nan, np.float32)
    for aggregator in ("mean", "clip", "trimmed", "median", "nearest"):
        guards = replace(PLAIN, aggregator=aggregator)
        assert np.isfinite(mix_arrived(row, 1, OWN, {2: OWN, 5: bad}, guards)).all()


def test_updates_need_a_start():
    with pytest.raises(ValueError, match="start"):
        mix_arrived(Row((2,), (1.0,), "delta"), 1, OWN, {2: OWN}, PLAIN)


# Mixing with guards -----------------------------------------------------------------------------


def test_a_cap_on_weights():
    row, other = Row((1, 2), (0.1, 0.9)), OWN + 1
    capped = replace(PLAIN, weight_cap=0.5)
    np.testing.assert_allclose(mix_arrived(row, 1, OWN, {2: other}, capped), OWN + 0.5, rtol=1e-6)
    np.testing.assert_allclose(mix_arrived(row, 1, OWN, {2: other}, PLAIN), OWN + 0.9, rtol=1e-6)
    alone = Row((2,), (1.0,))  # a row without the own model gets it
    np.testing.assert_allclose(mix_arrived(alone, 1, OWN, {2: other}, capped), OWN + 0.5, rtol=1e-6)
    # Lost sources raise the others' weights: the cap holds after that.
    three = Row((1, 2, 3), (0.4, 0.3, 0.3))
    capped = replace(PLAIN, weight_cap=0.35)
    np.testing.assert_allclose(mix_arrived(three, 1, OWN, {2: other}, capped), OWN + 0.35,
                               rtol=1e-6)  # fmt: skip


def test_each_aggregator_by_hand():
    own = np.zeros(2, np.float32)
    models = {2: np.array([3, 4]), 3: np.array([0, 1]), 5: np.array([30, 40])}
    arrived = {j: x.astype(np.float32) for j, x in models.items()}
    row = Row((1, 2, 3, 5), (0.1, 0.2, 0.3, 0.4))
    due = {
        "mean": [12.6, 17.1],
        "clip": [0.6 * 1.8, 0.6 * 2.4 + 0.3],
        "trimmed": [1.5, 2.5],
        "median": [1.5, 2.5],
        "nearest": [1.0, 1.1 / 0.6],
    }
    for aggregator, result in due.items():
        guards = replace(PLAIN, aggregator=aggregator)
        got = mix_arrived(row, 1, own, arrived, guards, radius=3.0)
        np.testing.assert_allclose(got, result, rtol=1e-6, err_msg=aggregator)
    clip = replace(PLAIN, aggregator="clip")  # the median distance is 5
    got = mix_arrived(row, 1, own, arrived, clip)
    np.testing.assert_allclose(got, [0.6 * 3, 0.6 * 4 + 0.3], rtol=1e-6)


def test_order_statistics_omit_models_of_weight_zero():
    other = {2: OWN + 1, 3: OWN + 2}
    guards = replace(PLAIN, aggregator="median")
    row = Row((2, 3), (0.5, 0.5))  # a server that mixes without its own model
    np.testing.assert_allclose(mix_arrived(row, 9, OWN, other, guards), OWN + 1.5, rtol=1e-6)
    row = Row((1, 2, 3), (0.5, 0.5, 0.0))
    np.testing.assert_allclose(mix_arrived(row, 1, OWN, other, guards), OWN + 0.5, rtol=1e-6)


def test_clip_survives_a_model_that_the_mean_does_not():
    bad = {2: OWN * -9, 3: OWN + np.float32(0.01), 4: OWN - np.float32(0.01)}
    row = Row((1, 2, 3, 4), (0.25,) * 4)
    clip = replace(PLAIN, aggregator="clip")
    moved = [
        np.linalg.norm(mix_arrived(row, 1, OWN, bad, guards, radius=0.05) - OWN)
        for guards in (PLAIN, clip)
    ]
    assert moved[0] > 10
    assert moved[1] <= 0.05 * 0.75 + 1e-5


def test_inputs_are_not_written_to():
    own, other = OWN.copy(), OWN + 1
    own.flags.writeable = other.flags.writeable = False
    for kind in ("linear", "delta", "masked"):
        mask = (1, 0.5) if kind == "masked" else None
        row = Row((1, 2), (0.5, 0.5), kind, mask)
        mixed = mix_arrived(row, 1, own, {2: other}, PLAIN, start=own)
        assert not np.shares_memory(mixed, own)
        assert not np.shares_memory(mixed, other)
