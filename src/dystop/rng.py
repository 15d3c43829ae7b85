"""Randomness with an address: nothing depends on call order, thread or process.

`stream` hands out a NumPy generator named by what it is for. `uniform` is its counter-based
sibling for arrays of identities (links, workers): the number drawn for the pair (3, 7) in round 12
is the same whether 10 or 10 million pairs are asked for, and in whatever order.
"""

import zlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)


def stream(seed: int, *key: str | int) -> np.random.Generator:
    """Return the generator that lives at this address.

    >>> a = stream(0, "fading", 41).random(3)
    >>> _ = stream(0, "power", 41).random(1000)  # someone else draws; nothing changes
    >>> bool((stream(0, "fading", 41).random(3) == a).all())
    True
    """
    words = tuple(zlib.crc32(str(k).encode()) for k in key)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=words))


def _scramble(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Finish of SplitMix64: every input bit reaches every output bit."""
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    out: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return out


def bits(seed: int, name: str, *identity: ArrayLike) -> NDArray[np.uint64]:
    """64 random bits for each identity; the identity arrays broadcast against each other."""
    with np.errstate(over="ignore"):
        state = np.asarray([zlib.crc32(name.encode())], np.uint64)
        state = _scramble(state + np.uint64(seed % 2**64) * _GOLDEN)
        for part in identity:
            word = np.asarray(part).astype(np.uint64)
            state = _scramble(state + _GOLDEN + word * _GOLDEN)
    return state.reshape(np.broadcast_shapes(*(np.shape(p) for p in identity)))


def uniform(seed: int, name: str, *identity: ArrayLike) -> NDArray[np.float64]:
    """One uniform number in (0, 1) for each identity, never exactly 0 or 1.

    >>> few = uniform(1, "fading", 12, [3, 5], [7, 9])
    >>> float(few[0]) == float(uniform(1, "fading", 12, 3, 7))
    True
    """
    high = bits(seed, name, *identity) >> np.uint64(11)
    out: NDArray[np.float64] = (high.astype(np.float64) + 0.5) * 2.0**-53
    return out


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
