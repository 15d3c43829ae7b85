"""Sparse pairs of workers: the reach graph and the pull counts. Never a dense N x N.

One index convention everywhere: `[i, j]` and `(dst, src)` mean *i receives from j*.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dystop.kernels.buffers import buffer
from dystop.kernels.grouping import Rows, group
from dystop.kernels.lookup import count_known, count_new, find_counts, find_edges, merge
from dystop.parallel import as_readonly, run_in_blocks

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

_BLOCK = 1 << 16  # pairs looked up in one go


def ints(values: object) -> Ints:
    """Array of 64-bit integers, copied only when it has to be."""
    return np.asarray(values, np.int64)


@dataclass(frozen=True, slots=True)
class Graph:
    """A directed graph in compressed rows: row i lists, in id order, whom i may receive from."""

    indptr: Ints  # [n + 1]
    dst: Ints  # [E], ascending
    src: Ints  # [E], ascending inside a row

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.indptr) - 1

    @property
    def edges(self) -> int:
        """Number of directed links."""
        return len(self.src)

    @property
    def degree(self) -> Ints:
        """In-degree of every node, [n]."""
        return np.diff(self.indptr)

    def row(self, i: int) -> Ints:
        """Whom node i may receive from."""
        return self.src[self.indptr[i] : self.indptr[i + 1]]

    def keep(self, edge: Bools) -> "Graph":
        """The graph without the edges that are masked out."""
        return graph_of_sorted(self.n, self.dst[edge], self.src[edge])

    def find(self, dst: Ints, src: Ints) -> Ints:
        """Edge number of each pair, or -1 where there is no such edge."""
        graph, pair = (
            (as_readonly(self.indptr), as_readonly(self.src)),
            (as_readonly(dst), as_readonly(src)),
        )
        out = np.empty(len(dst), np.int64)
        run_in_blocks(lambda lo, hi: find_edges(graph, pair, lo, hi, out), len(dst), _BLOCK)
        return out


def graph_of_sorted(n: int, dst: Ints, src: Ints) -> Graph:
    """Graph of edges that are already sorted by (dst, src)."""
    return Graph(np.concatenate([[0], np.cumsum(np.bincount(dst, minlength=n))]), dst, src)


def graph_of(n: int, dst: Ints, src: Ints) -> Graph:
    """Graph of any list of pairs; duplicates and self links are dropped.

    >>> graph_of(3, ints([2, 0, 0]), ints([0, 2, 1])).row(0).tolist()
    [1, 2]
    """
    rows = group(n, dst, src, ascending=True)
    to = np.repeat(np.arange(n), np.diff(rows.indptr))
    again = (to[1:] == to[:-1]) & (rows.value[1:] == rows.value[:-1])
    kept = (to != rows.value) & np.append(True, ~again)[: len(to)]
    return graph_of_sorted(n, to[kept], ints(rows.value[kept]))


@dataclass(frozen=True, slots=True)
class PairCounts:
    """How often each ordered pair was used; holds only the pairs that ever were."""

    n: int
    keys: Ints  # sorted dst * n + src
    counts: Ints

    def get(self, dst: Ints, src: Ints) -> Ints:
        """Count of each pair; 0 for a pair never used. Fastest for pairs in ascending order."""
        held, pair = (
            (as_readonly(self.keys), as_readonly(self.counts)),
            (as_readonly(dst), as_readonly(src)),
        )
        out = np.empty(len(dst), np.int64)
        run_in_blocks(lambda lo, hi: find_counts(self.n, held, pair, lo, hi, out), len(dst), _BLOCK)
        return out

    def add(self, dst: Ints, src: Ints) -> "PairCounts":
        """Counts after using these pairs once more; linear in the pairs held."""
        return self.add_rows(group(self.n, dst, src, ascending=True))

    def add_rows(self, used: Rows) -> "PairCounts":
        """The same for pairs that are grouped by dst, with ascending src."""
        rows, keys = (as_readonly(used.indptr), as_readonly(used.value)), as_readonly(self.keys)
        size = len(used.indptr) - 1
        new = np.zeros(-(-size // _BLOCK), np.int64)

        def look(lo: int, hi: int) -> None:
            new[lo // _BLOCK] = count_new(self.n, keys, rows, lo, hi)

        run_in_blocks(look, size, _BLOCK)
        if new.any():
            return self._merged(rows, new)
        counts = self.counts.copy()
        run_in_blocks(lambda lo, hi: count_known(self.n, keys, rows, lo, hi, counts), size, _BLOCK)
        return PairCounts(self.n, self.keys, counts)

    def _merged(self, rows: tuple[Ints, NDArray[np.int32]], new: Ints) -> "PairCounts":
        """Known and new pairs together; `new` says how many are new in each block of rows."""
        begin = np.searchsorted(self.keys, np.arange(len(new)) * _BLOCK * self.n)
        old = np.append(begin, len(self.keys))  # what comes after the last row goes with it
        at = old + np.append(0, np.cumsum(new))
        out = buffer(at[-1], np.int64), buffer(at[-1], np.int64)
        held = as_readonly(self.keys), as_readonly(self.counts)

        def place(lo: int, hi: int) -> None:
            k = lo // _BLOCK
            known, room = slice(old[k], old[k + 1]), slice(at[k], at[k + 1])
            merge(self.n, _cut(held, known), rows, (lo, hi), _cut(out, room))

        run_in_blocks(place, len(rows[0]) - 1, _BLOCK)
        return PairCounts(self.n, *out)


def _cut(pair: tuple[Ints, Ints], part: slice) -> tuple[Ints, Ints]:
    return pair[0][part], pair[1][part]


def no_pairs(n: int) -> PairCounts:
    """Pair counts before anything happened."""
    return PairCounts(n, np.zeros(0, np.int64), np.zeros(0, np.int64))
