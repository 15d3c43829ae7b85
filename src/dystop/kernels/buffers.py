"""Large arrays in memory that an earlier array has given up.

Memory fresh from the system is cleared page by page, which can take longer than the work that fills
it; a round of a million workers makes twenty arrays of a hundred megabytes each. `buffer` lends
memory and takes it back when nobody refers to the array or a view of it any more. Smaller arrays
are made as always.
"""

import sys
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGE_BYTES = 1 << 25
_SLACK = 32  # a block has one part in so many to spare: sizes differ a little between rounds
_PATIENCE = 20  # requests after which a block that none of them took goes back to the system


class _Block:
    """Memory that is lent, and how many requests it has been free without being taken."""

    __slots__ = ("idle", "memory")

    def __init__(self, size: int) -> None:
        self.memory, self.idle = np.empty(size, np.uint8), 0

    def references(self) -> int:
        """To the memory; every array that is lent from it, and every view of one, holds one."""
        return sys.getrefcount(self.memory)


_FREE = _Block(0).references()  # to memory that is not lent: interpreters differ, so ask this one
_lock = Lock()
_blocks: list[_Block] = []


def buffer(size: int, kind: type[np.generic]) -> NDArray[Any]:
    """A one-dimensional array of so many entries, with anything in them.

    >>> buffer(3, np.int64).shape
    (3,)
    """
    need = int(size) * np.dtype(kind).itemsize
    if need < LARGE_BYTES:
        return np.empty(size, kind)
    with _lock:
        return _block(need).memory[:need].view(kind)


def _block(need: int) -> _Block:
    """The smallest free block that fits well, or a new one."""
    free = [block for block in _blocks if block.references() <= _FREE]
    fits = [block for block in free if need <= len(block.memory) <= need + need // 4]
    best = min(fits, key=lambda block: len(block.memory)) if fits else None
    for block in free:
        block.idle = 0 if block is best else block.idle + 1
    _blocks[:] = [block for block in _blocks if block.idle <= _PATIENCE]
    if best is None:
        best = _Block(need + need // _SLACK)
        _blocks.append(best)
    return best
