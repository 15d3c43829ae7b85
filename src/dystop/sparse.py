"""Sparse pairs of workers: rows of ids, the reach graph and the pull counts.

No function builds a dense N x N matrix. `[i, j]` and `(dst, src)` always mean *i receives from j*.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dystop.acceleration import accelerated

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ids = NDArray[np.int32]
"""Ids in half the memory of `Ints`, for the largest arrays of a round."""

Edges = slice | Ints
"""Numbers of some edges of a graph; a slice where they are consecutive."""

_LARGEST_ID = 2**31 - 1
_FEW = 64  # pairs that are counted without looking at every row


def ints(values: object) -> Ints:
    """Return an array of 64-bit integers; copy only where the type differs."""
    return np.asarray(values, np.int64)


def check_ids(n: int, *ids: Ints | Ids) -> None:
    """Raise IndexError unless all ids are in 0..n-1."""
    for values in ids:
        if len(values) and (values.min() < 0 or values.max() >= n):
            wrong = int(values.min()) if values.min() < 0 else int(values.max())
            raise IndexError(f"id {wrong} is outside of 0..{n - 1}")


def mask_of(n: int, ids: Ints) -> Bools:
    """Return which of n nodes are among the ids.

    `mask_of(n, ids)[nodes]` is `np.isin(nodes, ids)` in a fifth of the time.

    >>> mask_of(4, np.array([3, 1])).tolist()
    [False, True, False, True]
    """
    mask = np.zeros(n, bool)
    mask[ids] = True
    return mask


class Rows(NamedTuple):
    """Ids in compressed rows: row i is value[indptr[i]:indptr[i + 1]]."""

    indptr: Ints  # [n + 1]
    value: Ids

    @property
    def row_of(self) -> Ints:
        """Row number of every id."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))


@accelerated("dystop.kernels.pairs:group")
def group(n: int, row: Ints, value: Ints, *, ascending: bool = False) -> Rows:
    """Group (row, value) pairs by row, where 0 <= row < n and 0 <= value < 2^31.

    The values of a row keep the given order, or are sorted where `ascending` is set.

    >>> [x.tolist() for x in group(3, np.array([2, 0, 2]), np.array([7, 8, 5]))]
    [[0, 1, 1, 3], [8, 7, 5]]
    """
    check_ids(n, row)
    check_ids(_LARGEST_ID + 1, value)
    order = np.lexsort((value, row)) if ascending else np.argsort(row, kind="stable")
    return Rows(_row_ends(n, row), value[order].astype(np.int32))


@accelerated("dystop.kernels.pairs:row_order")
def row_order(row: Ints, value: Ints) -> Ints:
    """Return the order that sorts pairs by row, then by value; equal pairs keep their order.

    >>> row_order(np.array([2, 0, 2]), np.array([7, 8, 5])).tolist()
    [1, 2, 0]
    """
    return np.lexsort((value, row))


def _row_ends(n: int, row: Ints) -> Ints:
    """Return where each of n rows begins and ends among pairs sorted by row, [n + 1]."""
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=n))])


@dataclass(frozen=True, slots=True)
class Graph:
    """A directed graph in compressed rows: row i lists the nodes that i may receive from, by id."""

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
        """Return the nodes that node i may receive from."""
        return self.src[self.indptr[i] : self.indptr[i + 1]]

    def keep(self, edge: Bools) -> "Graph":
        """Return the graph of the edges that a mask selects."""
        return graph_of_sorted(self.n, self.dst[edge], self.src[edge])

    def find(self, dst: Ints, src: Ints) -> Ints:
        """Return the edge number of each pair, or -1 where there is no such edge."""
        return find_edges(self, dst, src)

    def edges_into(self, nodes: Ints) -> tuple[Ints, Edges]:
        """Return the edges into some nodes: (where the edges of each node begin, edge numbers)."""
        begin, size = self.indptr[nodes], self.indptr[nodes + 1] - self.indptr[nodes]
        indptr = ints(np.concatenate([[0], np.cumsum(size)]))
        if len(nodes) and nodes[-1] - nodes[0] == len(nodes) - 1 and (np.diff(nodes) == 1).all():
            return indptr, slice(begin[0], begin[0] + indptr[-1])
        return indptr, np.arange(indptr[-1]) + np.repeat(begin - indptr[:-1], size)


@accelerated("dystop.kernels.pairs:find_edges")
def find_edges(graph: Graph, dst: Ints, src: Ints) -> Ints:
    """Return the edge number of each pair (dst, src), or -1 where there is no such edge."""
    n = graph.n
    exists = (dst >= 0) & (dst < n) & (src >= 0) & (src < n)
    wanted = np.where(exists, dst * n + src, -1)
    return _found(graph.dst * n + graph.src, wanted)


@accelerated("dystop.kernels.choices:two_way")
def two_way(graph: Graph, i: int) -> Ints:
    """Return the neighbours of node i with links in both directions, in id order.

    >>> two_way(graph_of(3, ints([0, 0, 2]), ints([1, 2, 0])), 0).tolist()
    [2]
    """
    near = graph.row(i)
    return near[graph.find(near, np.full(len(near), i)) >= 0]


def remembered(function: Callable[[Graph, int], Ints]) -> Callable[[Graph, int], Ints]:
    """Return a function that gives its last answer again while it is asked about the same graph.

    Rounds whose network did not change share a graph, whose arrays are read-only then.
    """
    last: tuple[Graph, int, Ints] | None = None

    def answer(graph: Graph, i: int) -> Ints:
        nonlocal last
        known = last
        if known is not None and known[0] is graph and known[1] == i:
            return known[2]
        new = function(graph, i)
        new.flags.writeable = False
        last = None if graph.src.flags.writeable else (graph, i, new)
        return new

    return answer


def graph_of_sorted(n: int, dst: Ints, src: Ints) -> Graph:
    """Return the graph of edges that are already sorted by (dst, src)."""
    return Graph(_row_ends(n, dst), dst, src)


def graph_of(n: int, dst: Ints, src: Ints) -> Graph:
    """Return the graph of a list of pairs, without duplicates and self links.

    >>> graph_of(3, ints([2, 0, 0]), ints([0, 2, 1])).row(0).tolist()
    [1, 2]
    """
    rows = group(n, dst, src, ascending=True)
    to = rows.row_of
    again = (to[1:] == to[:-1]) & (rows.value[1:] == rows.value[:-1])
    kept = (to != rows.value) & np.append(True, ~again)[: len(to)]
    return graph_of_sorted(n, to[kept], ints(rows.value[kept]))


@dataclass(frozen=True, slots=True)
class PairCounts:
    """How often each ordered pair was used; stores only pairs that were used at least once."""

    n: int
    keys: Ints  # sorted dst * n + src
    counts: Ints

    def get(self, dst: Ints, src: Ints) -> Ints:
        """Return the count of each pair, 0 if it was never used; fastest for ascending pairs."""
        return find_counts(self, dst, src)

    def add(self, dst: Ints, src: Ints, grouped: Callable[[], Rows] | None = None) -> "PairCounts":
        """Return the counts after one more use of each pair; the cost is linear in the pairs.

        Args:
            dst: Rows of the pairs.
            src: Their columns.
            grouped: Returns the pairs by row, with ascending columns, where somebody knows them.
        """
        if len(dst) <= _FEW:
            return count_few(self, dst * self.n + src) if len(dst) else self
        return add_counts(self, grouped() if grouped else group(self.n, dst, src, ascending=True))

    def raised_to(self, dst: Ints, src: Ints, counts: Ints) -> "PairCounts":
        """Return the counts after some pairs were raised to these counts, unless they had more."""
        keys = np.concatenate([self.keys, dst * self.n + src])
        values = np.concatenate([self.counts, counts])
        order = np.lexsort((values, keys))
        keys, values = keys[order], values[order]
        last = np.append(keys[1:] != keys[:-1], True)[: len(keys)]
        return PairCounts(self.n, keys[last], values[last])


@accelerated("dystop.kernels.pairs:find_counts")
def find_counts(held: PairCounts, dst: Ints, src: Ints) -> Ints:
    """Return how often each pair (dst, src) was counted."""
    at = _found(held.keys, dst * held.n + src)
    return np.where(at >= 0, np.append(held.counts, 0)[at], 0)


@accelerated("dystop.kernels.pairs:add_counts")
def add_counts(held: PairCounts, used: Rows) -> PairCounts:
    """Return the counts after one more use of pairs grouped by dst, with ascending src.

    The array of keys is shared with `held` where no pair is new.
    """
    return count_few.reference(held, used.row_of * held.n + used.value)


@accelerated("dystop.kernels.pairs:count_few")
def count_few(held: PairCounts, used: Ints) -> PairCounts:
    """Return the counts after one more use of few pairs, given as dst * n + src.

    The array of keys is shared with `held` where no pair is new.
    """
    keys, times = np.unique(used, return_counts=True)
    at = _found(held.keys, keys)
    known, new = at >= 0, at < 0
    counts = held.counts.copy()
    counts[at[known]] += times[known]
    if not new.any():
        return PairCounts(held.n, held.keys, counts)
    place = np.searchsorted(held.keys, keys[new])
    return PairCounts(
        held.n, np.insert(held.keys, place, keys[new]), np.insert(counts, place, times[new])
    )


def _found(keys: Ints, wanted: Ints) -> Ints:
    """Return the position of each wanted key among ascending keys, or -1."""
    at = np.searchsorted(keys, wanted)
    found = at < len(keys)
    found[found] = keys[at[found]] == wanted[found]
    return np.where(found, at, -1)


def no_pairs(n: int) -> PairCounts:
    """Return the pair counts before the first use."""
    return PairCounts(n, np.zeros(0, np.int64), np.zeros(0, np.int64))
