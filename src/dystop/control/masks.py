"""Which coordinates of a model two ends exchange when they agreed on a seed only."""

import numpy as np

from dystop.rng import bits
from dystop.sparse import Bools


def kept_coordinates(seed: int, keep: float, width: int) -> Bools:
    """Coordinates that both ends of a masked exchange derive from a shared seed, [width].

    >>> kept_coordinates(7, 0.5, 1000).sum() == kept_coordinates(7, 0.5, 2000)[:1000].sum()
    np.True_
    """
    draw = bits(seed, "mask", np.arange(width))
    limit = np.uint64(min(int(keep * 2.0**64), 2**64 - 1))
    kept: Bools = (draw <= limit) if keep < 1 else np.ones(width, bool)
    return kept
