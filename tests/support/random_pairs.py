"""Random pairs of rows and values for tests of the kernels."""

import numpy as np
from hypothesis import strategies as st

_FEW = st.integers(0, 40)


def random_pairs(data, size=_FEW):
    """Return (n, rows, values) of random pairs; a seed draws them, so that they may be many."""
    n, m = data.draw(st.integers(1, 9)), data.draw(size)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    return n, rng.integers(0, n, m), rng.integers(0, 12, m)
