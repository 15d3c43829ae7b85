"""`dystop.rng` on a device: the same bits as int64 tensors, wherever these lie.

Products of int64 wrap around as those of uint64 do, so the bits are equal to the last one.
"""

import zlib

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_INVERSE = pow(_GOLDEN, -1, 2**64)
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def signed(word: int) -> int:
    """The int64 with the same 64 bits; products wrap around alike."""
    return (word + 2**63) % 2**64 - 2**63


def _shift(x: Tensor, by: int) -> Tensor:
    """Shift right as if unsigned."""
    out: Tensor = (x >> by) & (2 ** (64 - by) - 1)
    return out


def _scramble(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * signed(_M1)
    x = (x ^ _shift(x, 27)) * signed(_M2)
    out: Tensor = x ^ _shift(x, 31)
    return out


def device_bits(seed: int, name: str, *identity: Tensor) -> Tensor:
    """The bits of `dystop.rng.bits` as int64; the identities broadcast."""
    start = (zlib.crc32(name.encode()) + seed * _GOLDEN) % 2**64
    words = _scramble(torch.full((1,), signed(start), device=identity[0].device))
    for part in identity:
        words = device_deeper(words, part)
    return words


def device_deeper(words: Tensor, part: Tensor | int) -> Tensor:
    """The bits of `dystop.rng.deeper`: identities with one part more.

    The sum comes before the product. A compiler takes `arange * constant` for an address in memory
    and works it out in numbers of any size, which then fit no register.
    """
    return _scramble((words * signed(_INVERSE) + (part + 1)) * signed(_GOLDEN))


def below(words: Tensor, share: float) -> Tensor:
    """Whether the number in (0, 1) that `dystop.rng.unit` makes of the bits is below a share."""
    out: Tensor = _shift(words, 11) < round(share * 2**53)
    return out
