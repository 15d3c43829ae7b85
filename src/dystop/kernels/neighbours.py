"""Compiled neighbour search on a grid of square cells: linear in workers and links.

A cell is a little wider than the range, so that all neighbours of a worker are in its own cell or
in one of the eight around it. Candidates are gathered and sorted once per cell, not per worker.
After an earlier search, only cells near a worker that moved are searched again.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import compiled
from dystop.kernels.buffers import buffer
from dystop.kernels.pairs import group
from dystop.kernels.sorting import sort_ids
from dystop.parallel import as_readonly, run_in_blocks
from dystop.sparse import Bools, Floats, Graph, Ids, Ints, ints
from dystop.world.geometry import Before, is_crowd_possible, refuse_crowd, sample

Cells = tuple[Ints, Ints, Ids]
"""([columns, rows], begin, who): the workers of cell c are who[begin[c]:begin[c + 1]]."""

Rows = tuple[Ints, Ints]  # (indptr, src)
Points = NDArray[np.float64]  # metres, [m, 2]

_MARGIN = 1.0 + 1e-6  # a cell is wider than the range by more than its number is rounded
_FARTHEST = 1e9  # cells from the origin up to which that holds
_CELLS = 1 << 10  # cells searched in one block
_ROWS = 1 << 15  # rows copied in one block


class Grid(NamedTuple):
    """A folded plane of square cells: far cells share a number, which bounds their count."""

    origin: Floats  # metres, [2]
    side_m: float
    columns: int  # at least 3, as rows: cells around a cell must not coincide
    rows: int

    @property
    def cells(self) -> int:
        """Number of cells."""
        return self.columns * self.rows

    def cell_of(self, position: Floats) -> Ints:
        """Return the number of the cell of each position, [m]."""
        at = np.floor((position - self.origin) / self.side_m).astype(np.int64)
        return np.asarray(at[:, 1] % self.rows * self.columns + at[:, 0] % self.columns)


def grid_over(position: Floats, range_m: float) -> Grid:
    """Return a grid for these positions, with a few cells per worker at most."""
    origin = position.min(axis=0)
    extent = position.max(axis=0) - origin
    side_m = max(range_m * _MARGIN, float(extent.max()) / _FARTHEST)
    columns, rows = (int(e / side_m) + 1 for e in extent)
    limit = 4 * len(position) + 9
    if columns * rows > limit:
        columns = min(columns, math.isqrt(limit))
        rows = min(rows, limit // columns)
    return Grid(origin, side_m, max(3, columns), max(3, rows))


def neighbours_within(
    position: Floats, range_m: float, n: int, before: Before | None = None
) -> Graph:
    """Return the graph of pairs in range; see `dystop.world.geometry.neighbours_within`."""
    grid = grid_over(position, range_m)
    cell = grid.cell_of(position)
    cells = _sorted_cells(grid, cell)
    _check_crowd(cells, cell, position, range_m)
    stale = _stale_cells(grid, cell, position, before)
    kept, degree = ~stale[cell], np.zeros(n, np.int64)
    given = cells, as_readonly(position), float(range_m)
    wanted = as_readonly(np.flatnonzero(stale & (np.diff(cells[1]) > 0)))
    run_in_blocks(lambda lo, hi: _count_near(*given, wanted[lo:hi], degree), len(wanted), _CELLS)
    if before is not None:
        degree[: len(kept)] += before.graph.degree[: len(kept)] * kept
    indptr = np.concatenate([[0], np.cumsum(degree)])
    src, rows = buffer(indptr[-1], np.int64), as_readonly(indptr)
    run_in_blocks(lambda lo, hi: _list_near(*given, wanted[lo:hi], rows, src), len(wanted), _CELLS)
    if before is not None and kept.any():
        old = as_readonly(before.graph.indptr), as_readonly(before.graph.src)
        keep = as_readonly(kept)
        run_in_blocks(lambda lo, hi: _copy_rows(old, keep, rows, lo, hi, src), len(keep), _ROWS)
    return Graph(indptr, np.repeat(np.arange(n), degree), src)


def _sorted_cells(grid: Grid, cell: Ints) -> Cells:
    """Return the workers of each cell, in id order."""
    begin, who = group(grid.cells, cell, np.arange(len(cell)))
    return as_readonly(ints([grid.columns, grid.rows])), as_readonly(begin), as_readonly(who)


def _stale_cells(grid: Grid, cell: Ints, position: Floats, before: Before | None) -> Bools:
    """Return the cells to search: those in or around which a worker moved since `before`."""
    if before is None:
        return np.ones(grid.cells, bool)
    moved = (position != before.position).any(axis=1)
    flag = np.zeros(grid.cells, bool)
    flag[cell[moved]] = True
    flag[grid.cell_of(before.position[moved])] = True
    stale = np.zeros(grid.cells, bool)
    _spread_flags(as_readonly(ints([grid.columns, grid.rows])), flag, stale)
    return stale


def _check_crowd(cells: Cells, cell: Ints, position: Floats, range_m: float) -> None:
    """Estimate the number of links from a sample and refuse too many before they are listed."""
    if is_crowd_possible(len(position)):
        who = sample(len(position))
        count = np.empty_like(who)
        _count_of(cells, as_readonly(position), float(range_m), who, cell[who], count)
        refuse_crowd(len(position), float(np.mean(count)))


@compiled
def _neighbour(shape: Ints, cell: int, k: int) -> int:
    """Return the k-th of a cell and the eight around it; columns and rows wrap around."""
    x, y = cell % shape[0] + k % 3 - 1, cell // shape[0] + k // 3 - 1
    cell_near: int = y % shape[1] * shape[0] + x % shape[0]
    return cell_near


@compiled
def _spread_flags(shape: Ints, flag: Bools, out: Bools) -> None:
    """Flag each flagged cell and the eight around it."""
    for c in range(len(flag)):
        if flag[c]:
            for k in range(9):
                out[_neighbour(shape, c, k)] = True


@compiled
def _candidates(cells: Cells, cell: int) -> Ints:
    """Return the workers in a cell and in the eight around it."""
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
def _gather(position: Points, who: Ints) -> Points:
    """Return the positions of some workers, all x before all y."""
    out = np.empty((2, len(who)))
    for k in range(len(who)):
        out[0, k], out[1, k] = position[who[k], 0], position[who[k], 1]
    return out


@compiled
def _count(points: Points, x0: float, y0: float, range_m: float) -> int:
    """Return how many points are within range of (x0, y0), a point at (x0, y0) included."""
    hits = 0
    for k in range(points.shape[1]):
        x, y = points[0, k] - x0, points[1, k] - y0
        hits += x * x + y * y <= range_m * range_m
    return hits


@compiled
def _count_of(
    cells: Cells, position: Points, range_m: float, who: Ints, cell: Ints, out: Ints
) -> None:
    """Write the number of neighbours of some workers, whose cells are given."""
    for k in range(len(who)):
        points = _gather(position, _candidates(cells, cell[k]))
        out[k] = _count(points, position[who[k], 0], position[who[k], 1], range_m) - 1


@compiled
def _count_near(cells: Cells, position: Points, range_m: float, wanted: Ints, degree: Ints) -> None:
    """Write the number of neighbours of every worker in the wanted cells."""
    for c in wanted:
        points = _gather(position, _candidates(cells, c))
        for q in range(cells[1][c], cells[1][c + 1]):
            i = cells[2][q]
            degree[i] = _count(points, position[i, 0], position[i, 1], range_m) - 1


@compiled
def _list_near(
    cells: Cells, position: Points, range_m: float, wanted: Ints, indptr: Ints, src: Ints
) -> None:
    """Write the neighbours of every worker in the wanted cells, ascending, to its row."""
    for c in wanted:
        unsorted = _candidates(cells, c)
        near, found = np.empty_like(unsorted), np.empty(len(unsorted) + 1, np.int64)
        sort_ids(unsorted, near)
        points = _gather(position, near)
        for q in range(cells[1][c], cells[1][c + 1]):
            i, hits = cells[2][q], 0
            for k in range(len(near)):  # write always, advance on a hit: no branch
                x, y = points[0, k] - position[i, 0], points[1, k] - position[i, 1]
                found[hits] = near[k]
                hits += (x * x + y * y <= range_m * range_m) & (near[k] != i)
            for k in range(hits):
                src[indptr[i] + k] = found[k]


@compiled
def _copy_rows(old: Rows, keep: Bools, indptr: Ints, lo: int, hi: int, src: Ints) -> None:
    """Copy those of the rows lo to hi that `keep` selects from an old graph."""
    for i in range(lo, hi):
        if keep[i]:
            for k in range(old[0][i + 1] - old[0][i]):
                src[indptr[i] + k] = old[1][old[0][i] + k]
