"""Arrays that figures are drawn from: as in `dystop.sparse`, without the compiled loops there."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def ints(values: object) -> Ints:
    """Array of 64-bit integers, copied only when it has to be."""
    return np.asarray(values, np.int64)
