"""The product of sparse rows with a stack of models on a CPU, compiled."""

from typing import Any

import numpy as np
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
    """Kernel of `dystop.simulator.mixing.product.mix_rows`: block by block of columns."""
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


@compiled
def mix_sequence(
    rows: tuple[Ints, Ints, Ints, Ints, Ints],
    weight: Any,
    stack: NDArray[Any],
    mail: NDArray[Any],
    scratch: NDArray[Any],
    lo: int,
    hi: int,
) -> None:
    """Kernel of `dystop.simulator.mixing.deferred.mix_sequence`: block by block of columns."""
    first_row, target, begin, middle, column = rows
    total, posted = np.empty(BLOCK, stack.dtype), np.empty(BLOCK, stack.dtype)
    for first in range(lo, hi, BLOCK):
        size = min(BLOCK, hi - first)
        for stage in range(len(first_row) - 1):
            for row in range(first_row[stage], first_row[stage + 1]):
                _add_up(column, weight, begin[row], middle[row], stack, first, total[:size])
                _add_up(column, weight, middle[row], begin[row + 1], mail, first, posted[:size])
                into = scratch[row - first_row[stage], first : first + size]
                for k in range(size):
                    into[k] = total[k] + posted[k]
            for row in range(first_row[stage], first_row[stage + 1]):
                mixed = scratch[row - first_row[stage], first : first + size]
                stack[target[row], first : first + size] = mixed


@compiled
def _add_up(
    column: Ints, weight: Any, lo: int, hi: int, stack: NDArray[Any], first: int, out: NDArray[Any]
) -> None:
    """Write the weighted sum of some rows of a stack, from one column on."""
    out[:] = 0
    for at in range(lo, hi):
        factor, source = weight[at], stack[column[at], first : first + len(out)]
        for k in range(len(out)):
            out[k] += factor * source[k]
