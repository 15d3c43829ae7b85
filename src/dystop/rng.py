"""Randomness with an address: nothing depends on call order, thread or process.

`stream` hands out a NumPy generator named by what it is for. `uniform` is its counter-based
sibling for arrays of identities (links, workers): the number drawn for the pair (3, 7) in round 12
is the same whether 10 or 10 million pairs are asked for, and in whatever order.
"""

import zlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dystop.kernels.random_bits import GOLDEN, scramble, to_unit

Words = NDArray[np.uint64]

_STEP = int(GOLDEN)
_M1, _M2, _ALL = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64 - 1
FEW = 64  # words for which machine code is slower to load than the work takes


def stream(seed: int, *key: str | int) -> np.random.Generator:
    """Return the generator that lives at this address.

    >>> a = stream(0, "fading", 41).random(3)
    >>> _ = stream(0, "power", 41).random(1000)  # someone else draws; nothing changes
    >>> bool((stream(0, "fading", 41).random(3) == a).all())
    True
    """
    words = tuple(zlib.crc32(str(k).encode()) for k in key)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))


def bits(seed: int, name: str, *identity: ArrayLike) -> Words:
    """64 random bits for each identity; the identity arrays broadcast against each other."""
    word, plain = _mixed(zlib.crc32(name.encode()) + seed * _STEP), 0
    for part in identity:
        if not isinstance(part, int | np.integer):
            break
        word, plain = _mixed(word + _STEP + int(part) * _STEP), plain + 1  # needs no arrays
    words = np.asarray(word, np.uint64)
    for part in identity[plain:]:
        words = fold_in(words, part)
    return words


def fold_in(words: Words, part: ArrayLike) -> Words:
    """The bits of identities that have one part more, from the bits of those without it.

    >>> address = bits(1, "fading", 12, [3, 5], [7, 9])
    >>> bool((fold_in(address, 2) == bits(1, "fading", 12, [3, 5], [7, 9], 2)).all())
    True
    """
    with np.errstate(over="ignore"):
        step = np.asarray(part).astype(np.uint64) * GOLDEN + GOLDEN
        return _scrambled(words + step)


def _mixed(word: int) -> int:
    """`scramble.mixed` in plain numbers."""
    word &= _ALL
    word = (word ^ word >> 30) * _M1 & _ALL
    word = (word ^ word >> 27) * _M2 & _ALL
    return word ^ word >> 31


def _scrambled(words: Words | np.uint64) -> Words:
    """The finish of SplitMix64 on a fresh array, which may be overwritten."""
    mixed = np.ascontiguousarray(words).reshape(-1)
    if len(mixed) > FEW:
        scramble(mixed)
    else:
        mixed = (mixed ^ mixed >> np.uint64(30)) * np.uint64(_M1)
        mixed = (mixed ^ mixed >> np.uint64(27)) * np.uint64(_M2)
        mixed ^= mixed >> np.uint64(31)
    return mixed.reshape(np.shape(words))


def unit(words: Words) -> NDArray[np.float64]:
    """Numbers in (0, 1), never exactly 0 or 1, from random bits."""
    if words.size <= FEW:
        few: NDArray[np.float64] = (np.asarray(words >> np.uint64(11), np.float64) + 0.5) * 2.0**-53
        return few
    out = np.empty(words.shape)
    to_unit(words.reshape(-1), out.reshape(-1))
    return out[()]  # a plain number where there is one identity


def uniform(seed: int, name: str, *identity: ArrayLike) -> NDArray[np.float64]:
    """One uniform number in (0, 1) for each identity, never exactly 0 or 1.

    >>> few = uniform(1, "fading", 12, [3, 5], [7, 9])
    >>> float(few[0]) == float(uniform(1, "fading", 12, 3, 7))
    True
    """
    return unit(bits(seed, name, *identity))


def normal(seed: int, name: str, *identity: ArrayLike) -> NDArray[np.float64]:
    """One standard normal number for each identity (Box-Muller on two addresses)."""
    radius = np.sqrt(-2.0 * np.log(uniform(seed, name + "/radius", *identity)))
    out: NDArray[np.float64] = radius * np.cos(
        2.0 * np.pi * uniform(seed, name + "/angle", *identity)
    )
    return out


def exponential(seed: int, name: str, *identity: ArrayLike) -> NDArray[np.float64]:
    """One exponential number of mean 1 for each identity."""
    out: NDArray[np.float64] = -np.log(uniform(seed, name, *identity))
    return out
