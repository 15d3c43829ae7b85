"""Sums of squares over whole models, in double precision and in one pass; compiled."""

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import compiled_dense


@compiled_dense
def square_sum(vector: NDArray[np.float32]) -> float:
    """Sum of the squares of all numbers; cannot overflow, not finite if one of them is not.

    >>> square_sum(np.array([3, 4], np.float32))
    25.0
    """
    total = 0.0
    for k in range(len(vector)):
        wide = np.float64(vector[k])
        total += wide * wide
    return total


@compiled_dense
def square_gap(a: NDArray[np.float32], b: NDArray[np.float32]) -> float:
    """Sum of the squared differences of two vectors of equal length.

    >>> square_gap(np.array([3, 4], np.float32), np.array([0, 5], np.float32))
    10.0
    """
    total = 0.0
    for k in range(len(a)):
        gap = np.float64(a[k]) - np.float64(b[k])
        total += gap * gap
    return total
