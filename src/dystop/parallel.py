"""Parallel blocks of work on the CPU cores, and arrays for compiled functions.

No result depends on the number of cores: every block writes to its own part of the output.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Kind = TypeVar("Kind", bound=np.generic)


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_in_blocks(work: Callable[[int, int], Any], count: int, block: int) -> None:
    """Call `work(lo, hi)` in parallel on consecutive blocks that cover range(count).

    Threads are enough because compiled functions and NumPy release the interpreter lock. A block
    may write only to its own part of the output.

    >>> total = np.zeros(10)
    >>> run_in_blocks(lambda lo, hi: total[lo:hi].fill(lo), 10, 4)
    >>> total.tolist()
    [0.0, 0.0, 0.0, 0.0, 4.0, 4.0, 4.0, 4.0, 8.0, 8.0]
    """
    begins = range(0, count, block)
    if len(begins) <= 1 or cores() == 1:
        for lo in begins:
            work(lo, min(lo + block, count))
        return
    with ThreadPoolExecutor(min(cores(), len(begins))) as pool:
        for done in [pool.submit(work, lo, min(lo + block, count)) for lo in begins]:
            done.result()


def block_size(count: int, least: int) -> int:
    """Return the size of a block such that every core gets one, but at least `least`."""
    return max(least, -(-count // cores()))


def as_readonly(values: NDArray[Kind]) -> NDArray[Kind]:
    """Return a contiguous, read-only view, or a copy where the array is not contiguous.

    numba compiles a function once for each type of argument, and a writable array has another type
    than a read-only one. All inputs go through here, so that there is one type.

    >>> bool(as_readonly(np.arange(6)[::2]).flags.writeable)
    False
    """
    if values.flags.c_contiguous and not values.flags.writeable:
        return values
    view = np.ascontiguousarray(values).view()
    view.setflags(write=False)
    return view
