"""Fading of many links at once, compiled around NumPy's logarithms.

Logarithms stay NumPy's own, so that a rate is the same to the last bit however it is computed; what
is compiled is everything between them, in two passes instead of a dozen.
"""

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import compiled
from dystop.kernels.random_bits import deep_unit
from dystop.sparse import Floats

Words = NDArray[np.uint64]
Table = NDArray[np.float64]  # [blocks, links]


@compiled
def draw_blocks(address: Words, out: Table) -> None:
    """A number in (0, 1) for each coherence block of each link, from the address of the link."""
    for block in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[block, k] = deep_unit(address[k], np.uint64(block))


@compiled
def mean_rate(log_term: Table, bandwidth_hz: float, log_2: float, out: Floats) -> None:
    """Mean over the blocks of b log(1 + snr) / log(2), the logarithm given."""
    blocks, links = log_term.shape
    for k in range(links):
        out[k] = 0.0
    for block in range(blocks):
        for k in range(links):
            out[k] += bandwidth_hz * log_term[block, k] / log_2
    for k in range(links):
        out[k] /= blocks
