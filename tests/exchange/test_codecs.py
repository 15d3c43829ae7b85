"""Compressors lose no more than they promise, and each link pays for what its receiver lacks."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from dystop.exchange.codecs import LEVELS, charged, dequantise, no_versions, passed_on, quantise
from dystop.plan import join_links, links
from dystop.sparse import ints
from support.codecs import codec_for

NUMBERS = st.floats(-100, 100, width=32)
VECTORS = st.integers(1, 40).flatmap(lambda n: arrays(np.float32, n, elements=NUMBERS))
FRACTIONS = st.floats(0.01, 1.0)


def compression(kind, width, fraction=0.25, tensors=None, seed=0):
    return codec_for(kind, fraction, tensors or (width,), seed)


def split(vector, parts):
    """Return sizes of tensors that make up a vector."""
    cuts = sorted({0, len(vector), *(p % len(vector) for p in parts)})
    return tuple(int(b - a) for a, b in pairwise(cuts))


def square(vector):
    return float((vector.astype(np.float64) ** 2).sum())


def test_bytes_of_a_message():
    sizes = (800, 200)
    by_kind = {
        "topk": 4 * 100 + 125,  # a bit for each of 1000 numbers is shorter than 100 positions
        "randomk": 4 * 100,
        "int8": 1000 + 2 * 4,
        "sign": 125 + 2 * 4,
    }
    found = {k: codec_for(k, 0.1, sizes, 0).message_bytes for k in by_kind}
    assert found == by_kind
    assert codec_for("topk", 0.01, sizes, 0).message_bytes == 10 * (4 + 4)


@given(width=st.integers(1, 10**6), fraction=FRACTIONS)
def test_topk_sends_at_least_one_number_and_never_more_than_the_positions_need(width, fraction):
    topk = compression("topk", width, fraction)
    assert 1 <= topk.kept <= width
    assert topk.message_bytes <= min(8 * topk.kept, 4 * topk.kept + math.ceil(width / 8))


@given(vector=VECTORS, fraction=FRACTIONS)
def test_topk_keeps_the_largest_numbers(vector, fraction):
    topk = compression("topk", len(vector), fraction)
    kept = topk.applied(vector, 0, 1)
    slow = sorted(np.abs(vector).tolist(), reverse=True)[: topk.kept]
    assert sorted(np.abs(kept[kept != 0]).tolist()) == sorted(x for x in slow if x)
    bound = (1 - topk.kept / len(vector)) * square(vector)
    assert square(vector - kept) <= bound * (1 + 1e-5) + 1e-9


@given(vector=VECTORS, fraction=FRACTIONS, node=st.integers(0, 9), t=st.integers(1, 99))
def test_randomk_keeps_numbers_that_the_address_names(vector, fraction, node, t):
    randomk = compression("randomk", len(vector), fraction)
    kept = randomk.applied(vector, node, t)
    assert np.array_equal(kept, randomk.applied(vector, node, t))
    assert ((kept == vector) | (kept == 0)).all()
    ones = randomk.applied(np.ones(len(vector), np.float32), node, t)
    assert ones.sum() == randomk.kept


def test_randomk_loses_on_average_the_share_that_it_does_not_send():
    vector = np.random.default_rng(0).normal(size=50).astype(np.float32)
    randomk = compression("randomk", 50, 0.2)
    lost = [square(vector - randomk.applied(vector, 0, t)) for t in range(2000)]
    assert np.mean(lost) == pytest.approx(0.8 * square(vector), rel=0.03)


@given(vector=VECTORS, parts=st.lists(st.integers(0, 100), max_size=3))
def test_sign_loses_what_its_formula_says(vector, parts):
    tensors = split(vector, parts)
    sent = codec_for("sign", 1.0, tensors, 0).applied(vector, 0, 1)
    at = 0
    for size in tensors:
        part, got = vector[at : at + size].astype(np.float64), sent[at : at + size]
        mean = np.abs(part).sum() / size
        assert [float(g) for g in got] == pytest.approx([mean if x >= 0 else -mean for x in part])
        at += size
    worst = 1 - 1 / max(tensors)
    assert square(vector - sent) <= worst * square(vector) * (1 + 1e-4) + 1e-6


@given(vector=VECTORS, parts=st.lists(st.integers(0, 100), max_size=3), seed=st.integers(0, 99))
def test_int8_is_the_number_by_number_rounding(vector, parts, seed):
    tensors = split(vector, parts)
    draws = np.random.default_rng(seed).random(len(vector))
    codes, scales = quantise(vector, tensors, draws)
    at = 0
    for size, scale in zip(tensors, scales, strict=True):
        largest = max(abs(float(x)) for x in vector[at : at + size])
        assert float(scale) == np.float32(np.float32(largest) / np.float32(LEVELS))
        for k in range(at, at + size):
            ratio = float(vector[k]) / float(scale) if scale > 0 else 0.0
            due = max(-LEVELS, min(LEVELS, math.floor(ratio + draws[k])))
            assert codes[k] == (due if scale > 0 else 0)
        at += size
    error = np.abs(dequantise(codes, scales, tensors) - vector)
    assert (error <= np.repeat(scales, tensors) * 1.001 + 1e-37).all()


def test_int8_is_unbiased():
    vector = np.random.default_rng(1).normal(size=30).astype(np.float32)
    int8 = compression("int8", 30)
    mean = np.mean([int8.applied(vector, 3, t) for t in range(4000)], axis=0)
    scale = np.abs(vector).max() / LEVELS
    assert np.abs(mean - vector).max() < 4 * 0.5 * scale / math.sqrt(4000)


def test_a_vector_that_is_not_finite_stays_so():
    vector = np.array([1.0, np.nan, 2.0, 4.0], np.float32)
    sent = compression("int8", 4, tensors=(2, 2)).applied(vector, 0, 1)
    assert not np.isfinite(sent[:2]).any()
    assert np.isfinite(sent[2:]).all()


@settings(max_examples=50)
@given(st.sampled_from(["topk", "randomk", "sign"]), st.integers(0, 1000))
def test_a_public_copy_reaches_a_model_that_stays(kind, seed):
    model = np.random.default_rng(seed).normal(size=20).astype(np.float32)
    compressor = compression(kind, 20, 0.25, tensors=(12, 8), seed=seed)
    copy = np.zeros(20, np.float32)
    for t in range(1, 200):
        copy = copy + compressor.applied(model - copy, 0, t)
    assert square(model - copy) < 1e-3 * square(model)


def test_a_receiver_that_missed_differences_pays_for_them():
    """Node 0 asks node 1 in rounds 1 and 4, node 2 in all rounds. The answer of round 2 is lost."""
    versions, counts = no_versions(3), []
    for t, (dst, lost) in enumerate([([0, 2], []), ([2], [0]), ([2], []), ([0, 2], [])], start=1):
        round_ = charged(links(ints(dst), ints([1] * len(dst))), versions, whole=2.5)
        gone = np.zeros(len(dst), bool)
        gone[lost] = True
        versions = round_.settled(versions, gone)
        counts.append(round_.links.fraction.tolist())
        assert versions.published.tolist() == [0, t, 0]
    assert counts == [[1, 1], [1], [2], [2.5, 1]]  # three differences are longer than the copy


def test_updates_carry_one_message_and_advance_nothing():
    both = join_links([links(ints([0]), ints([1])), links(ints([2]), ints([1]), delta=True)])
    round_ = charged(both, no_versions(3), whole=10.0)
    after = round_.settled(no_versions(3), np.zeros(2, bool))
    assert round_.links.fraction.tolist() == [1, 1]
    assert after.known.get(ints([0, 2]), ints([1, 1])).tolist() == [1, 0]


PAIRS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2), st.booleans()).filter(
        lambda p: p[0] != p[1]
    ),
    max_size=12,
    unique_by=lambda p: p[:3],
)


@given(rounds=st.lists(PAIRS, max_size=6), whole=st.floats(1, 6))
def test_charges_are_those_of_a_table(rounds, whole):
    versions, published, known = no_versions(5), [0] * 5, {}
    for pairs in rounds:
        pairs = sorted(pairs, key=lambda p: p[2])
        parts = [links(ints([d]), ints([s]), stage=stage) for d, s, stage, _ in pairs]
        round_ = charged(join_links(parts), versions, whole)
        lost = np.array([gone for *_, gone in pairs], bool)
        versions = round_.settled(versions, lost)
        due, seen = [], dict(known)
        for stage in range(3):
            here = [(d, s, gone) for d, s, at, gone in pairs if at == stage]
            for s in {s for _, s, _ in here}:
                published[s] += 1
            for d, s, gone in here:
                due.append(min(published[s] - seen.get((d, s), 0), whole))
                seen[d, s] = published[s]
                if not gone:
                    known[d, s] = published[s]
        assert round_.links.fraction.tolist() == due
        assert versions.published.tolist() == published
        for (d, s), count in known.items():
            assert versions.known.get(ints([d]), ints([s])).tolist() == [count]


def test_a_broken_ring_brings_nothing_and_is_paid_for_again():
    ring = links(ints([1, 2, 0]), ints([0, 1, 2]))
    versions, counts = no_versions(3), []
    for lost in ([0, 0, 0], [0, 1, 0], [0, 0, 0]):
        round_ = charged(ring, versions, whole=9.0, rings=frozenset([0]))
        versions = round_.settled(versions, np.array(lost, bool))
        counts.append(round_.links.fraction.tolist())
    assert counts == [[2, 2, 2], [2, 2, 2], [4, 4, 4]]  # of each of the two others
    assert passed_on(ring, frozenset([0])).fraction.tolist() == [2, 2, 2]
    assert passed_on(ring, frozenset()).fraction.tolist() == [1, 1, 1]
