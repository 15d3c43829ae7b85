"""A pool of memory for large arrays.

The system clears new memory page by page, which can take longer than the work that fills it. A
round of a million workers allocates twenty arrays of a hundred megabytes each: without the pool it
takes 1.3 times the processor time. `buffer` reuses a block of memory once nothing refers to the
array that had it, or to a view of that array. Smaller arrays come from NumPy.
"""

import sys
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGE_BYTES = 1 << 25
_SLACK = 32  # a block is larger by one part in so many: sizes differ a little between rounds
_IDLE_REQUESTS = 20  # requests after which a block that none of them took is released


class _Block:
    """A block of memory, and the number of requests since it was last used."""

    __slots__ = ("idle", "memory")

    def __init__(self, size: int) -> None:
        self.memory, self.idle = np.empty(size, np.uint8), 0

    def references(self) -> int:
        """Return the number of references; every array on this memory and every view holds one."""
        return sys.getrefcount(self.memory)


_FREE = _Block(0).references()  # references to unused memory, which differ by interpreter
_lock = Lock()
_blocks: list[_Block] = []


def buffer(size: int, kind: type[np.generic]) -> NDArray[Any]:
    """Return a one-dimensional array of `size` entries with arbitrary content.

    >>> buffer(3, np.int64).shape
    (3,)
    """
    need = int(size) * np.dtype(kind).itemsize
    if need < LARGE_BYTES:
        return np.empty(size, kind)
    with _lock:
        return _block(need).memory[:need].view(kind)


def _block(need: int) -> _Block:
    """Return the smallest free block that fits well, or a new one."""
    free = [block for block in _blocks if block.references() <= _FREE]
    fits = [block for block in free if need <= len(block.memory) <= need + need // 4]
    best = min(fits, key=lambda block: len(block.memory)) if fits else None
    for block in free:
        block.idle = 0 if block is best else block.idle + 1
    _blocks[:] = [block for block in _blocks if block.idle <= _IDLE_REQUESTS]
    if best is None:
        best = _Block(need + need // _SLACK)
        _blocks.append(best)
    return best
