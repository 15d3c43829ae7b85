"""The inner loops of `dystop.rng`: the finish of SplitMix64, compiled.

Whole-number arithmetic wraps around and a division by a power of two is exact, so compiled and
uncompiled numbers are the same to the last bit.
"""

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import compiled

Words = NDArray[np.uint64]

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


@compiled
def mixed(x: np.uint64) -> np.uint64:
    """Let every bit of one word reach every bit of the result."""
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@compiled
def scramble(words: Words) -> None:
    """The same for many words, in place."""
    for k in range(len(words)):
        words[k] = mixed(words[k])


@compiled
def to_unit(words: Words, out: NDArray[np.float64]) -> None:
    """Numbers in the open interval (0, 1) made of the upper 53 bits."""
    for k in range(len(words)):
        out[k] = (np.float64(words[k] >> _S11) + 0.5) * 2.0**-53


@compiled
def deep_unit(word: np.uint64, part: np.uint64) -> float:
    """`rng.unit(rng.deeper(word, part))` for one word, for use in other compiled loops."""
    deeper = mixed(word + (part * GOLDEN + GOLDEN))
    return (np.float64(deeper >> _S11) + 0.5) * 2.0**-53
