"""Randomness with an address: no draw depends on call order, thread or process.

`stream` returns a NumPy generator for an address. `uniform` is counter-based (SplitMix64) and
serves arrays of identities (links, workers): the number of the pair (3, 7) in round 12 is the same
whether the caller asks for 10 or 10 million pairs, and in whatever order.
"""

import zlib
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISpawnableSeedSequence
from numpy.typing import ArrayLike, NDArray

from dystop.acceleration import accelerated

Words = NDArray[np.uint64]

GOLDEN, M1, M2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""The constants of SplitMix64: its increment and the two factors of its output function."""

_WORDS = {number: np.uint64(number) for number in (GOLDEN, M1, M2, 11, 27, 30, 31)}
_MASK = 2**64 - 1
_STATE_WORDS = 4  # of 64 bits, that PCG64 asks for
_FEW = 64  # words up to which loading machine code takes longer than the work


def stream(seed: int, *key: str | int) -> np.random.Generator:
    """Return the NumPy generator of an address.

    >>> a = stream(0, "fading", 41).random(3)
    >>> _ = stream(0, "power", 41).random(1000)  # someone else draws; nothing changes
    >>> bool((stream(0, "fading", 41).random(3) == a).all())
    True
    """
    words = tuple([zlib.crc32(str(k).encode()) for k in key])
    address: Any = Address(seed, words)  # NumPy's types know no seed sequence but its own
    return np.random.Generator(np.random.PCG64(address))


class Address(ISpawnableSeedSequence):
    """The seed sequence of an address: NumPy's, to the bit, in a fraction of its time.

    A generator asks for its first state only. Whatever else is asked, NumPy answers, and also while
    no machine code is loaded.
    """

    def __init__(self, seed: int, words: tuple[int, ...]) -> None:
        """Take the seed of a run, and 32 bits for each part of the address."""
        self.seed, self.words = seed, words

    @cached_property
    def sequence(self) -> np.random.SeedSequence:
        """NumPy's own seed sequence."""
        return np.random.SeedSequence(self.seed, spawn_key=self.words)

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        """Return the first words of a generator's state."""
        if n_words == _STATE_WORDS and dtype is np.uint64 and units_after.is_loaded:
            return first_state(self.seed, self.words)
        return self.sequence.generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> Any:
        """Return the seed sequences of further generators."""
        return self.sequence.spawn(n_children)


@accelerated("dystop.kernels.random_bits:first_state")
def first_state(seed: int, words: tuple[int, ...]) -> Words:
    """Return the state from which PCG64 begins at an address, [4]."""
    sequence = np.random.SeedSequence(seed, spawn_key=words)
    return sequence.generate_state(_STATE_WORDS, np.uint64).astype(np.uint64)


def bits(seed: int, name: str, *identity: ArrayLike) -> Words:
    """Return 64 random bits for each identity; the identity arrays broadcast."""
    scalars = len(list(takewhile(lambda part: _are_whole([part]), identity)))
    words = np.asarray(_word(seed, name, identity[:scalars]))
    for part in identity[scalars:]:
        words = fold_in(words, part)
    return words


def _word(seed: int, name: str, parts: Sequence[ArrayLike]) -> np.uint64:
    """Return the bits of an address whose parts are whole numbers."""
    word = _first_word(seed, name)
    for part in parts:
        assert isinstance(part, int | np.integer), "the caller has looked"
        word = _mix_int(word + GOLDEN + int(part) * GOLDEN)
    return np.uint64(word)


@lru_cache
def _first_word(seed: int, name: str) -> int:
    return _mix_int(zlib.crc32(name.encode()) + seed * GOLDEN)


def fold_in(words: Words, part: ArrayLike) -> Words:
    """Return the bits of identities with one more part, from the bits of the identities without.

    >>> address = bits(1, "fading", 12, [3, 5], [7, 9])
    >>> bool((fold_in(address, 2) == bits(1, "fading", 12, [3, 5], [7, 9], 2)).all())
    True
    """
    added = np.asarray(part).astype(np.uint64)
    is_fast = added.size > _FEW or fold_words.is_loaded
    return fold_words(words, added) if is_fast else fold_words.reference(words, added)


def unit(words: Words) -> NDArray[np.float64]:
    """Return numbers in (0, 1), never exactly 0 or 1, from random bits."""
    convert = to_unit if words.size > _FEW else to_unit.reference
    return convert(words)


def _mix_int(word: int) -> int:
    """Return the output function of SplitMix64 for one plain integer."""
    word &= _MASK
    word = (word ^ word >> 30) * M1 & _MASK
    word = (word ^ word >> 27) * M2 & _MASK
    return word ^ word >> 31


@accelerated("dystop.kernels.random_bits:fold_words")
def fold_words(words: Words, part: Words) -> Words:
    """Return the next words of SplitMix64, from a word and one more part of each address."""
    # A ufunc wraps around without a warning; the operators of NumPy's scalars warn.
    step = np.multiply(part, _WORDS[GOLDEN])
    words = np.asarray(np.add(words, np.add(step, _WORDS[GOLDEN])))
    words = np.multiply(words ^ words >> _WORDS[30], _WORDS[M1])
    words = np.multiply(words ^ words >> _WORDS[27], _WORDS[M2])
    return words ^ words >> _WORDS[31]


@accelerated("dystop.kernels.random_bits:to_unit")
def to_unit(words: Words) -> NDArray[np.float64]:
    """Return numbers in the open interval (0, 1) from the upper 53 bits of each word."""
    out: NDArray[np.float64] = (np.asarray(words >> _WORDS[11], np.float64) + 0.5) * 2.0**-53
    return out


def uniform(seed: int, name: str, *identity: ArrayLike) -> NDArray[np.float64]:
    """Return one uniform number in (0, 1) for each identity, never exactly 0 or 1.

    >>> few = uniform(1, "fading", 12, [3, 5], [7, 9])
    >>> float(few[0]) == float(uniform(1, "fading", 12, 3, 7))
    True
    """
    last = identity[-1] if identity else 0
    if isinstance(last, np.ndarray) and _is_one_array(identity[:-1], last):
        return units_after(_word(seed, name, identity[:-1]), last)
    return unit(bits(seed, name, *identity))


def _is_one_array(first: Sequence[ArrayLike], last: NDArray[Any]) -> bool:
    """Return whether only the last part of an address is an array, and machine code is loaded."""
    is_fast = last.size > _FEW or units_after.is_loaded
    return is_fast and last.dtype == np.int64 and _are_whole(first)


def _are_whole(parts: Sequence[ArrayLike]) -> bool:
    return all(isinstance(part, int | np.integer) for part in parts)


@accelerated("dystop.kernels.random_bits:units_after")
def units_after(word: np.uint64, part: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a number in (0, 1) for each last part of an address, from the word before it."""
    words = fold_words.reference(np.asarray(word), part.astype(np.uint64))
    return to_unit.reference(words)


def normal(seed: int, name: str, *identity: ArrayLike) -> NDArray[np.float64]:
    """Return one standard normal number for each identity (Box-Muller on two addresses)."""
    radius = np.sqrt(-2.0 * np.log(uniform(seed, name + "/radius", *identity)))
    out: NDArray[np.float64] = radius * np.cos(
        2.0 * np.pi * uniform(seed, name + "/angle", *identity)
    )
    return out


def exponential(seed: int, name: str, *identity: ArrayLike) -> NDArray[np.float64]:
    """Return one exponential number of mean 1 for each identity."""
    out: NDArray[np.float64] = -np.log(uniform(seed, name, *identity))
    return out
