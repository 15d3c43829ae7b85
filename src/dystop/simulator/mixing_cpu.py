"""The product of sparse rows with a stack of models on a CPU, compiled."""

from typing import Any

from numpy.typing import NDArray

from dystop.compiled import compiled
from dystop.sparse import Ints

BLOCK = 4096  # columns: 16 KB of each row


@compiled
def mix_rows(
    indptr: Ints,
    column: Ints,
    weight: Any,
    stack: NDArray[Any],
    out: NDArray[Any],
    lo: int,
    hi: int,
) -> None:
    """Kernel of `dystop.simulator.mixing.mix_rows`: block by block of columns."""
    width = stack.shape[1]
    for row in range(lo, hi):
        for first in range(0, width, BLOCK):
            last = min(first + BLOCK, width)
            into = out[row, first:last]
            into[:] = 0
            for at in range(indptr[row], indptr[row + 1]):
                factor, source = weight[at], stack[column[at], first:last]
                for k in range(last - first):
                    into[k] += factor * source[k]
