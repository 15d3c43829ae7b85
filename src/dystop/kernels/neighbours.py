"""Neighbour search on a grid of square cells, compiled: linear in workers and links.

A cell is a little wider than the range, so that neighbours sit in the same cell or in one of the
eight around it. Candidates are gathered and sorted once per cell, not once per worker.
"""

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import compiled
from dystop.kernels.grouping import Ids
from dystop.kernels.sorting import sort_ids
from dystop.sparse import Bools, Ints

Cells = tuple[Ints, Ints, Ids]
"""([columns, rows], begin, who): the workers of cell c are who[begin[c]:begin[c + 1]]."""

Rows = tuple[Ints, Ints]  # (indptr, src)
Spots = NDArray[np.float64]  # [m, 2], metres


@compiled
def _neighbour(shape: Ints, cell: int, k: int) -> int:
    """The k-th of a cell and the eight around it; the first column follows the last, as do rows."""
    x, y = cell % shape[0] + k % 3 - 1, cell // shape[0] + k // 3 - 1
    cell_near: int = y % shape[1] * shape[0] + x % shape[0]
    return cell_near


@compiled
def spread_flags(shape: Ints, flag: Bools, out: Bools) -> None:
    """Flag cells that are flagged or have a flagged one around them."""
    for c in range(len(flag)):
        if flag[c]:
            for k in range(9):
                out[_neighbour(shape, c, k)] = True


@compiled
def _candidates(cells: Cells, cell: int) -> Ints:
    """Workers in a cell and around it."""
    shape, begin, who = cells
    count = 0
    for k in range(9):
        c = _neighbour(shape, cell, k)
        count += begin[c + 1] - begin[c]
    out, at = np.empty(count, np.int64), 0
    for k in range(9):
        c = _neighbour(shape, cell, k)
        for q in range(begin[c], begin[c + 1]):
            out[at] = who[q]
            at += 1
    return out


@compiled
def _gather(position: Spots, who: Ints) -> Spots:
    """Positions of some workers, all x before all y."""
    out = np.empty((2, len(who)))
    for k in range(len(who)):
        out[0, k], out[1, k] = position[who[k], 0], position[who[k], 1]
    return out


@compiled
def _count(spots: Spots, x0: float, y0: float, range_m: float) -> int:
    """How many are within range of a spot, the one that is there included."""
    hits = 0
    for k in range(spots.shape[1]):
        x, y = spots[0, k] - x0, spots[1, k] - y0
        hits += x * x + y * y <= range_m * range_m
    return hits


@compiled
def count_of(
    cells: Cells, position: Spots, range_m: float, who: Ints, cell: Ints, out: Ints
) -> None:
    """Number of neighbours of some workers, whose cells are given."""
    for k in range(len(who)):
        spots = _gather(position, _candidates(cells, cell[k]))
        out[k] = _count(spots, position[who[k], 0], position[who[k], 1], range_m) - 1


@compiled
def count_near(cells: Cells, position: Spots, range_m: float, wanted: Ints, degree: Ints) -> None:
    """Number of neighbours of every worker in the wanted cells."""
    for c in wanted:
        spots = _gather(position, _candidates(cells, c))
        for q in range(cells[1][c], cells[1][c + 1]):
            i = cells[2][q]
            degree[i] = _count(spots, position[i, 0], position[i, 1], range_m) - 1


@compiled
def list_near(
    cells: Cells, position: Spots, range_m: float, wanted: Ints, indptr: Ints, src: Ints
) -> None:
    """Write the neighbours of the same workers, ascending, where their rows begin."""
    for c in wanted:
        unsorted = _candidates(cells, c)
        near, found = np.empty_like(unsorted), np.empty(len(unsorted) + 1, np.int64)
        sort_ids(unsorted, near)
        spots = _gather(position, near)
        for q in range(cells[1][c], cells[1][c + 1]):
            i, hits = cells[2][q], 0
            for k in range(len(near)):  # written always, counted where it is one: no branch
                x, y = spots[0, k] - position[i, 0], spots[1, k] - position[i, 1]
                found[hits] = near[k]
                hits += (x * x + y * y <= range_m * range_m) & (near[k] != i)
            for k in range(hits):
                src[indptr[i] + k] = found[k]


@compiled
def copy_rows(old: Rows, keep: Bools, indptr: Ints, lo: int, hi: int, src: Ints) -> None:
    """Copy rows lo to hi where they are flagged in `keep` from an old graph."""
    for i in range(lo, hi):
        if keep[i]:
            for k in range(old[0][i + 1] - old[0][i]):
                src[indptr[i] + k] = old[1][old[0][i] + k]
