"""Compiled distances of links, and links that stay the same between two rounds.

The length of (x, y) is sqrt(x^2 + y^2) after one step of Newton's method, which removes the
rounding error of the square root. The hypot of a recent C library (glibc from 2.35 on) does the
same, to the last bit, but with branches that depend on the data.
"""

import math

import numpy as np

from dystop.compiled import compiled
from dystop.parallel import as_readonly, run_in_blocks
from dystop.sparse import Bools, Floats, Graph, Ints, check_ids

Rows = tuple[Ints, Ints]  # (indptr, src ascending in a row)

_CHUNK = 512  # links whose positions are read before their lengths are computed
_ROWS = 1 << 15  # rows of a graph in one block
_TINY, _HUGE = 2.0**-459, 2.0**511  # beyond, squares would not fit


def distance(position: Floats, dst: Ints, src: Ints) -> Floats:
    """Return the metres between the ends of each link; see `dystop.world.geometry.distance`."""
    out = np.empty(len(dst))
    if not _distance(as_readonly(position), as_readonly(dst), as_readonly(src), out):
        check_ids(len(position), dst, src)
    return out


def kept_edges(old: Graph, new: Graph, still: Bools) -> Ints:
    """Return the old number of each new edge; see `dystop.world.reach.kept_edges`."""
    before = as_readonly(old.indptr), as_readonly(old.src)
    after = as_readonly(new.indptr), as_readonly(new.src)
    out = np.full(new.edges, -1)
    run_in_blocks(
        lambda lo, hi: _kept_edges(before, after, as_readonly(still), (lo, hi), out), new.n, _ROWS
    )
    return out


@compiled
def _distance(position: Floats, dst: Ints, src: Ints, out: Floats) -> bool:
    """Write the metres between the ends of each link; return False where an id is out of bounds.

    The positions of a chunk are read in a loop of its own, so that many reads overlap.
    """
    nodes, x, y = position.shape[0], np.empty(_CHUNK), np.empty(_CHUNK)
    for lo in range(0, len(dst), _CHUNK):
        size = min(_CHUNK, len(dst) - lo)
        for k in range(size):
            i, j = dst[lo + k], src[lo + k]
            if not (0 <= i < nodes and 0 <= j < nodes):
                return False
            x[k], y[k] = position[i, 0] - position[j, 0], position[i, 1] - position[j, 1]
        _lengths(x, y, size, lo, out)
    return True


@compiled
def _lengths(x: Floats, y: Floats, size: int, at: int, out: Floats) -> None:
    """Write the lengths of some vectors to out[at:at + size]."""
    odd = False
    for k in range(size):
        long, short = max(abs(x[k]), abs(y[k])), min(abs(x[k]), abs(y[k]))
        odd |= (not long <= _HUGE) | ((short < _TINY) & (short > 0.0))
        h = math.sqrt(long * long + short * short)
        near, far = h - short, h - long
        steep = long * (2.0 * near - long) + (near - 2.0 * (long - short)) * near
        flat = 2.0 * far * (long - 2.0 * short) + ((4.0 * far - short) * short + far * far)
        over = steep if h <= 2.0 * short else flat
        out[at + k] = h - over / (2.0 * h) if h > 0.0 else 0.0
    if odd:
        for k in range(size):
            out[at + k] = math.hypot(x[k], y[k])


@compiled
def _kept_edges(old: Rows, new: Rows, still: Bools, rows: tuple[int, int], out: Ints) -> None:
    """Write the old number of edges in some rows whose two ends did not move.

    Such an edge is in both graphs, because its length did not change.
    """
    for i in range(rows[0], rows[1]):
        if not still[i]:
            continue
        at = old[0][i]
        for k in range(new[0][i], new[0][i + 1]):
            j = new[1][k]
            if still[j]:
                while old[1][at] < j:
                    at += 1
                out[k] = at
