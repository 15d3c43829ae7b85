"""Where cells lie, who is in which, and links found again only around those that moved."""

import math
from typing import NamedTuple

import numpy as np

from dystop.errors import CapacityError
from dystop.kernels.buffers import buffer
from dystop.kernels.grouping import group
from dystop.kernels.neighbours import (
    Cells,
    copy_rows,
    count_near,
    count_of,
    list_near,
    spread_flags,
)
from dystop.parallel import as_readonly, run_in_blocks
from dystop.sparse import Bools, Floats, Graph, Ints, ints

MAX_LINKS = 50_000_000
"""More directed links than this would need several gigabytes."""

_ROOM = 1.0 + 1e-6  # a cell is wider than the range by more than its number is rounded
_FARTHEST = 1e9  # cells from the origin up to which that holds
_CELLS = 1 << 10  # searched in one go
_ROWS = 1 << 15


class Grid(NamedTuple):
    """A folded plane of square cells: far cells share a number, so that there are not too many."""

    origin: Floats  # metres, [2]
    side_m: float
    columns: int  # at least 3, as rows: cells around a cell must not coincide
    rows: int

    @property
    def cells(self) -> int:
        """How many there are."""
        return self.columns * self.rows

    def cell_of(self, position: Floats) -> Ints:
        """Number of the cell of each position, [m]."""
        at = np.floor((position - self.origin) / self.side_m).astype(np.int64)
        return np.asarray(at[:, 1] % self.rows * self.columns + at[:, 0] % self.columns)


def grid_over(position: Floats, range_m: float) -> Grid:
    """A grid for these positions, with a few cells per worker at most."""
    origin = position.min(axis=0)
    extent = position.max(axis=0) - origin
    side_m = max(range_m * _ROOM, float(extent.max()) / _FARTHEST)
    across, along = (int(e / side_m) + 1 for e in extent)
    limit = 4 * len(position) + 9
    if across * along > limit:
        across = min(across, math.isqrt(limit))
        along = min(along, limit // across)
    return Grid(origin, side_m, max(3, across), max(3, along))


class Before(NamedTuple):
    """What an earlier search knows: where everybody was, and who was in range of whom."""

    position: Floats
    graph: Graph


def neighbours_within(
    position: Floats, range_m: float, n: int, before: Before | None = None
) -> Graph:
    """Both directions of every pair that is at most `range_m` apart, as a graph of n nodes.

    With the result of an earlier search, only cells that somebody left, entered or moved in are
    searched again, with those around them; other rows are copied. The result is the same.
    """
    grid = grid_over(position, range_m)
    cell = grid.cell_of(position)
    cells = _sorted_cells(grid, cell)
    _refuse_crowd(cells, cell, position, range_m)
    stale = _stale(grid, cell, position, before)
    kept, degree = ~stale[cell], np.zeros(n, np.int64)
    given = cells, as_readonly(position), float(range_m)
    wanted = as_readonly(np.flatnonzero(stale & (np.diff(cells[1]) > 0)))
    run_in_blocks(lambda lo, hi: count_near(*given, wanted[lo:hi], degree), len(wanted), _CELLS)
    if before is not None:
        degree[: len(kept)] += before.graph.degree[: len(kept)] * kept
    indptr = np.concatenate([[0], np.cumsum(degree)])
    src, rows = buffer(indptr[-1], np.int64), as_readonly(indptr)
    run_in_blocks(lambda lo, hi: list_near(*given, wanted[lo:hi], rows, src), len(wanted), _CELLS)
    if before is not None and kept.any():
        old, keep = (
            (as_readonly(before.graph.indptr), as_readonly(before.graph.src)),
            as_readonly(kept),
        )
        run_in_blocks(lambda lo, hi: copy_rows(old, keep, rows, lo, hi, src), len(keep), _ROWS)
    return Graph(indptr, np.repeat(np.arange(n), degree), src)


def _sorted_cells(grid: Grid, cell: Ints) -> Cells:
    begin, who = group(grid.cells, cell, np.arange(len(cell)))
    return as_readonly(ints([grid.columns, grid.rows])), as_readonly(begin), as_readonly(who)


def _stale(grid: Grid, cell: Ints, position: Floats, before: Before | None) -> Bools:
    """Cells that have to be searched, because somebody moved in them or around them."""
    if before is None:
        return np.ones(grid.cells, bool)
    moved = (position != before.position).any(axis=1)
    flag = np.zeros(grid.cells, bool)
    flag[cell[moved]] = True
    flag[grid.cell_of(before.position[moved])] = True
    stale = np.zeros(grid.cells, bool)
    spread_flags(as_readonly(ints([grid.columns, grid.rows])), flag, stale)
    return stale


def _refuse_crowd(cells: Cells, cell: Ints, position: Floats, range_m: float) -> None:
    """Estimate the links from a sample before they are enumerated, and refuse too many."""
    workers = len(position)
    if workers * (workers - 1) <= MAX_LINKS:
        return
    sample = np.arange(0, workers, max(1, workers // 256))
    count = np.empty_like(sample)
    count_of(cells, as_readonly(position), float(range_m), sample, cell[sample], count)
    degree = float(np.mean(count))
    if degree * workers > MAX_LINKS:
        raise CapacityError(
            f"{workers:,} workers with about {degree:,.0f} neighbours each make "
            f"{degree * workers:,.0f} links, more than {MAX_LINKS:,}: "
            "lower world.range_m or enlarge world.area_m"
        )
