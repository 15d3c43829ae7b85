"""Aggregation rules: plain references, properties and worked examples."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.control.aggregation import kept_coordinates
from dystop.exchange import rules
from dystop.exchange.rules import Agree, Clip, Median, Memory, Nearest, Trimmed, Usual, Vectors

MASK_3 = [1, 3, 9, 11, 12, 13, 14, 16, 17, 18, 20, 22]  # frozen: recorded runs depend on it

quick = settings(derandomize=True, deadline=None, max_examples=150)
numbers = st.floats(-100, 100, width=32)


@st.composite
def neighbourhoods(draw, least=1):
    """Own model, K others and their weights, all adding up to at most one."""
    k, width = draw(st.integers(least, 7)), draw(st.integers(1, 12))
    rows = draw(st.lists(st.lists(numbers, min_size=width, max_size=width), min_size=k + 1,
                         max_size=k + 1))  # fmt: skip
    raw = np.array(draw(st.lists(st.floats(0.05, 1), min_size=k + 1, max_size=k + 1)))
    models = np.array(rows, np.float32)
    return models[0], models[1:], (raw / raw.sum())[1:]


def slow_mean(own, others, weights):
    out = (1 - sum(weights)) * own.astype(float)
    for w, x in zip(weights, others, strict=True):
        out = out + w * x.astype(float)
    return out


def slow_clip(own, others, weights, radius):
    wide = own.astype(float)
    out = wide.copy()
    for w, x in zip(weights, others, strict=True):
        gap = x.astype(float) - wide
        far = np.sqrt((gap**2).sum())
        out += w * (1.0 if far <= radius else radius / far) * gap
    return out


def slow_agree(own, others, weights, radius, losses, usual):
    wide = own.astype(float)
    out = wide.copy()
    length = np.sqrt((wide**2).sum())
    for w, x, loss in zip(weights, others, losses, strict=True):
        short = np.sqrt((x.astype(float) ** 2).sum())
        is_stretched = length / 1e6 < short < length
        gap = x.astype(float) * (length / short if is_stretched else 1.0) - wide
        far = np.sqrt((gap**2).sum())
        clipped = 1.0 if far <= radius else radius / far
        out += w * clipped * (1.0 if loss <= usual else (usual / loss) ** 2) * gap
    return out


def combined(rule, own, others, weights, usual=None, losses=None):
    """Mix by a rule, with what is usual: nothing, unless it is given."""
    arrived = Vectors(own, others, losses_of=lambda models, samples: losses)
    return rule.combined(weights, arrived, lambda distance, loss: usual or Usual())


def mean(own, others, weights):
    return rules.blend(np.append(1.0 - weights.sum(), weights), [own, *others])


def clip(own, others, weights, radius):
    return combined(Clip(clip_radius=radius), own, others, weights)


def nearest(own, others, weights, k):
    return combined(Nearest(nearest=k), own, others, weights)


def stretched(own, others):
    arrived = Vectors(own, others)
    return arrived.stretched(rules.stretch_factors(*arrived.norms())).others


def agreed(own, others, weights, radius, losses, usual):
    """Mix under the rule `agree`."""
    usual = Usual(radius, usual)
    return combined(Agree(), own, others, weights, usual, np.array(losses))


def slow_trimmed(models, share):
    n = len(models)
    cut = min(int(share * n), (n - 1) // 2)
    columns = [sorted(float(m[p]) for m in models)[cut : n - cut] for p in range(len(models[0]))]
    return np.array([sum(c) / len(c) for c in columns])


def slow_nearest(own, others, weights, k):
    far = [float(np.sqrt(((x.astype(float) - own) ** 2).sum())) for x in others]
    chosen = sorted(range(len(others)), key=lambda j: (far[j], j))[:k]
    mine = 1 - sum(weights)
    total = mine + sum(weights[j] for j in chosen)
    out = mine * own.astype(float)
    for j in chosen:
        out = out + weights[j] * others[j].astype(float)
    return out / total


@quick
@given(neighbourhoods(), st.floats(0.001, 300), st.integers(1, 8), st.floats(0, 0.5))
def test_twins(hood, radius, k, share):
    own, others, _ = hood
    close = {"rtol": 1e-5, "atol": 1e-4}
    everybody = [own, *others]
    np.testing.assert_allclose(mean(*hood), slow_mean(*hood), **close)
    np.testing.assert_allclose(clip(*hood, radius), slow_clip(*hood, radius), **close)
    trimmed = Trimmed(trim=share).voted(everybody)
    np.testing.assert_allclose(trimmed, slow_trimmed(everybody, share),
                               **close)  # fmt: skip
    np.testing.assert_allclose(Median().voted(everybody), np.median(everybody, axis=0), **close)
    np.testing.assert_allclose(nearest(*hood, k), slow_nearest(*hood, k), **close)
    far = [np.linalg.norm(x.astype(float) - own) for x in others]
    np.testing.assert_allclose(Vectors(own, others).distances(), far, rtol=1e-12)


losses_of_seven = st.lists(st.floats(0.01, 10), min_size=7, max_size=7)


@quick
@given(neighbourhoods(), st.floats(0.1, 300), losses_of_seven, st.floats(0.1, 5))
def test_agree(hood, radius, losses, usual):
    """It equals its twin, moves at most as far as clip allows, and forgets the order."""
    own, others, weights = hood
    losses = np.array(losses[: len(others)])
    got = agreed(*hood, radius, losses, usual)
    np.testing.assert_allclose(got, slow_agree(*hood, radius, losses, usual), rtol=1e-5, atol=1e-4)
    assert rules.distance(own, got) <= radius * weights.sum() + 1e-3
    turned = agreed(own, others[::-1], weights[::-1], radius, losses[::-1], usual)
    np.testing.assert_allclose(turned, got, rtol=1e-5, atol=1e-4)
    good = np.full(len(others), usual)
    np.testing.assert_array_equal(
        agreed(*hood, radius, good, usual),
        clip(own, stretched(own, others), weights, radius),
    )


def test_agree_by_hand():
    """A model with twice the usual loss counts a quarter, one without a finite loss nothing."""
    own, others = np.zeros(1, np.float32), np.array([[4], [4], [4]], np.float32)
    got = agreed(own, others, np.full(3, 0.25), 10.0, [1.0, 2.0, np.nan], 1.0)
    np.testing.assert_allclose(got, [1 + 0.25])
    far = agreed(own, others, np.full(3, 0.25), 2.0, [1.0, 2.0, np.inf], 1.0)
    np.testing.assert_allclose(far, [0.5 + 0.125])


def test_without_anything_usual_the_medians_of_what_arrived_decide():
    own, others = np.zeros(1, np.float32), np.array([[1], [2], [8]], np.float32)
    got = agreed(own, others, np.full(3, 0.25), None, [1.0, 1.0, 2.0], None)
    np.testing.assert_allclose(got, [0.25 * (1 + 2 + 2 / 4)])


@quick
@given(neighbourhoods())
def test_an_infinite_radius_is_the_mean(hood):
    np.testing.assert_array_equal(clip(*hood, np.inf), mean(*hood))


@quick
@given(neighbourhoods(), st.floats(0.001, 50))
def test_clip_moves_at_most_radius_times_weight(hood, radius):
    own, _, weights = hood
    moved = rules.distance(own, clip(*hood, radius))
    assert moved <= radius * weights.sum() + 1e-3


@quick
@given(neighbourhoods())
def test_nothing_trimmed_is_the_unweighted_mean(hood):
    models = np.array([hood[0], *hood[1]])
    plain = models.mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(Trimmed(trim=0).voted(models), plain, rtol=1e-6, atol=1e-30)


@quick
@given(neighbourhoods())
def test_order_statistics_lie_between(hood):
    models = np.array([hood[0], *hood[1]])
    for result in (Median().voted(models), Trimmed(trim=0.25).voted(models)):
        assert (result >= models.min(axis=0)).all()
        assert (result <= models.max(axis=0)).all()


@quick
@given(neighbourhoods(least=2), st.randoms(use_true_random=False))
def test_the_order_of_neighbours_does_not_matter(hood, random):
    own, others, weights = hood
    order = list(range(len(others)))
    random.shuffle(order)
    close = {"rtol": 1e-4, "atol": 1e-4}
    turned = (own, others[order], weights[order])
    np.testing.assert_allclose(clip(*turned, 3.0), clip(*hood, 3.0), **close)
    np.testing.assert_allclose(mean(*turned), mean(*hood), **close)
    np.testing.assert_array_equal(Median().voted([own, *others[order]]),
                                  Median().voted([own, *others]))  # fmt: skip
    far = np.sort(Vectors(own, others).distances())
    if (np.diff(far) > 1e-6).all():  # ties go to the first
        np.testing.assert_allclose(nearest(*turned, 2), nearest(*hood, 2), **close)


def test_by_hand():
    own = np.array([0, 0], np.float32)
    others = np.array([[3, 4], [0, 1], [30, 40]], np.float32)  # 5, 1 and 50 away
    weights = np.array([0.2, 0.3, 0.4])
    # 3/5 of (3, 4) is (1.8, 2.4), all of (0, 1), 3/50 of (30, 40) is again (1.8, 2.4).
    clipped = clip(own, others, weights, 3.0)
    np.testing.assert_allclose(clipped, [0.2 * 1.8 + 0.4 * 1.8, 0.2 * 2.4 + 0.3 + 0.4 * 2.4])
    np.testing.assert_allclose(Median().voted([own, *others]), [1.5, 2.5])
    np.testing.assert_allclose(Trimmed(trim=0.25).voted([own, *others]), [1.5, 2.5])
    # The two nearest are (0, 1) and (3, 4): weights 0.1, 0.3, 0.2, divided by 0.6.
    np.testing.assert_allclose(nearest(own, others, weights, 2), [1.0, 1.1 / 0.6])
    np.testing.assert_allclose(mean(own, others, weights), [12.6, 17.1], rtol=1e-6)


def test_what_is_infinitely_far_has_no_say():
    own = np.ones(3, np.float32)
    bad = [np.full(3, x, np.float32) for x in (np.inf, np.nan, -np.inf)]
    result = clip(own, [*bad, own * 2], np.array([0.2, 0.2, 0.2, 0.2]), 100.0)
    np.testing.assert_allclose(result, 1.2, rtol=1e-6)
    huge = clip(own, [np.full(3, 3e38, np.float32)], np.array([0.5]), 1.0)
    assert rules.distance(own, huge) <= 0.5 + 1e-6


def test_many_blocks_equal_one():
    models = np.random.default_rng(0).normal(size=(3, 200_001)).astype(np.float32)
    weights = np.array([0.5, 0.3, 0.2])
    whole = (weights[:, None] * models.astype(float)).sum(axis=0)
    np.testing.assert_allclose(rules.blend(weights, models), whole, atol=1e-6)
    np.testing.assert_array_equal(rules.blend(weights, list(models)),
                                  rules.blend(weights, models))  # fmt: skip
    np.testing.assert_allclose(Median().voted(models), np.median(models, axis=0))
    assert rules.norm(models[0]) == pytest.approx(np.linalg.norm(models[0].astype(float)))


def test_norm_does_not_overflow():
    assert rules.norm(np.full(4, 1e38, np.float32)) == pytest.approx(2e38, rel=1e-6)
    assert np.isnan(rules.norm(np.array([np.nan, 1], np.float32)))
    assert rules.norm(np.array([np.inf, 1], np.float32)) == np.inf


def test_the_radius_follows_what_was_seen():
    assert rules.running_median([]) is None
    assert rules.running_median([0.0, 0.0]) is None  # equal models say nothing
    assert rules.running_median([1.0, 2.0, 9.0, np.inf]) == 2.0


def test_masks_keep_the_share_and_the_bits():
    kept = kept_coordinates(5, 0.25, 100_000)
    assert abs(kept.mean() - 0.25) < 0.01
    assert kept_coordinates(5, 1.0, 10).all()
    assert kept_coordinates(3, 0.5, 24).nonzero()[0].tolist() == MASK_3
    np.testing.assert_array_equal(kept[:10], kept_coordinates(5, 0.25, 10))


def test_memory_keeps_the_newest_finite_numbers():
    memory, many = Memory.empty(2), np.arange(1.0, rules.RECENT + 1)
    assert memory.recall(0, np.array([4.0, 2.0, np.inf])) == Usual(3.0, None)
    assert memory.recall(0, many, many) == Usual(np.median(many), np.median(many))
    assert memory.recall(1, np.zeros(1), np.array([np.nan])) == Usual(None, None)
