"""Random numbers depend on their address only."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.rng import bits, exponential, fold_in, normal, stream, uniform
from support.rng_vectors import NAME, VECTOR

quick = settings(derandomize=True, deadline=None, max_examples=150)


def test_streams_depend_on_their_address_only():
    first = stream(5, "a", 1).random(4)
    stream(5, "b", 1).random(100)
    assert np.array_equal(first, stream(5, "a", 1).random(4))
    others = [stream(6, "a", 1), stream(5, "a", 2), stream(5, "b", 1), stream(5, "a")]
    assert all(not np.array_equal(first, other.random(4)) for other in others)


@quick
@given(st.integers(0, 2**70), st.lists(st.text(max_size=4) | st.integers(-5, 10**9), max_size=4))
def test_streams_are_those_of_numpy_and_may_spawn(seed, key):
    uniform(0, "load", np.arange(100))  # machine code
    words = tuple(zlib.crc32(str(k).encode()) for k in key)
    plain = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))
    drawn = stream(seed, *key)
    assert drawn.random(3).tolist() == plain.random(3).tolist()
    for ours, theirs in zip(drawn.spawn(2), plain.spawn(2), strict=True):
        assert ours.integers(2**60) == theirs.integers(2**60)


def test_a_negative_seed_is_refused():
    with pytest.raises(ValueError, match=r"0 or more|non-negative"):
        stream(-1, "a")


@quick
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), st.integers(0, 2**40))
def test_a_number_depends_on_the_identity_not_on_the_position(who, seed):
    together = uniform(seed, "x", 3, who)
    assert together.tolist() == [float(uniform(seed, "x", 3, k)) for k in who]
    assert np.array_equal(together[::-1], uniform(seed, "x", 3, who[::-1]))
    assert ((together > 0) & (together < 1)).all()


def plain_bits(seed, name, *identity):
    """Compute SplitMix64 over an address in plain Python integers."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mixed(x):
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    word = mixed((zlib.crc32(name.encode()) + seed * golden) & mask)
    for part in identity:
        word = mixed((word + golden + part * golden) & mask)
    return word


@quick
@given(
    st.integers(-(2**40), 2**70),
    st.text(max_size=5),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4),
)
def test_compiled_bits_equal_plain_integers(seed, name, identity):
    word = plain_bits(seed, name, *identity)
    assert int(bits(seed, name, *identity)) == word
    assert uniform(seed, name, *identity) == ((word >> 11) + 0.5) * 2.0**-53
    if identity:
        longer = bits(seed, name, *identity[:-1])
        assert int(fold_in(longer, identity[-1])) == word


@pytest.mark.parametrize(("seed", "identity", "word"), VECTOR)
def test_bits_of_the_shared_vector(seed, identity, word):
    """A single address and an array of addresses, which compiled code computes, agree."""
    assert plain_bits(seed, NAME, *identity) == word
    assert int(bits(seed, NAME, *identity)) == word
    *first, last = identity
    assert set(bits(seed, NAME, *first, np.full(200, last)).tolist()) == {word}


def test_order_name_and_seed_change_the_number():
    assert uniform(0, "x", 1, 2) != uniform(0, "x", 2, 1)
    assert uniform(0, "x", 1, 2) != uniform(0, "y", 1, 2)
    assert uniform(0, "x", 1, 2) != uniform(1, "x", 1, 2)
    assert bits(0, "x", np.arange(3)[:, None], np.arange(4)).shape == (3, 4)


def test_distributions_have_their_moments():
    who = np.arange(100_000)
    flat, bell, tail = uniform(1, "u", who), normal(1, "n", who), exponential(1, "e", who)
    assert flat.mean() == pytest.approx(0.5, abs=0.005)
    assert flat.var() == pytest.approx(1 / 12, abs=0.002)
    assert (bell.mean(), bell.std()) == (pytest.approx(0, abs=0.02), pytest.approx(1, abs=0.02))
    assert (tail.mean(), tail.std()) == (pytest.approx(1, abs=0.02), pytest.approx(1, abs=0.03))
    assert abs(np.corrcoef(flat[:-1], flat[1:])[0, 1]) < 0.02
