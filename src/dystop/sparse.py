"""Sparse pairs of workers: the reach graph and the pull counts. Never a dense N x N.

One index convention everywhere: `[i, j]` and `(dst, src)` mean *i receives from j*.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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
        if not self.edges:
            return np.full(len(dst), -1)
        keys, wanted = self.dst * self.n + self.src, dst * self.n + src
        at = np.minimum(np.searchsorted(keys, wanted), self.edges - 1)
        return np.where(keys[at] == wanted, at, -1)


def graph_of_sorted(n: int, dst: Ints, src: Ints) -> Graph:
    """Graph of edges that are already sorted by (dst, src)."""
    return Graph(np.searchsorted(dst, np.arange(n + 1)), dst, src)


def graph_of(n: int, dst: Ints, src: Ints) -> Graph:
    """Graph of any list of pairs; duplicates and self links are dropped.

    >>> graph_of(3, ints([2, 0, 0]), ints([0, 2, 1])).row(0).tolist()
    [1, 2]
    """
    keys, _ = _distinct((dst * n + src)[dst != src])
    return graph_of_sorted(n, keys // n, keys % n)


def _distinct(keys: Ints) -> tuple[Ints, Ints]:
    """Sorted distinct keys and how often each occurs; np.unique hashes, slow for millions."""
    ordered = np.sort(keys)
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    return ordered[first], np.diff(np.append(first, len(ordered)))


@dataclass(frozen=True, slots=True)
class PairCounts:
    """How often each ordered pair was used; holds only the pairs that ever were."""

    n: int
    keys: Ints  # sorted dst * n + src
    counts: Ints

    def get(self, dst: Ints, src: Ints) -> Ints:
        """Count of each pair; 0 for a pair never used."""
        if not len(self.keys):
            return np.zeros(len(dst), np.int64)
        wanted = dst * self.n + src
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.where(self.keys[at] == wanted, self.counts[at], 0)

    def add(self, dst: Ints, src: Ints) -> "PairCounts":
        """Counts after using these pairs once more; linear in the pairs held."""
        fresh, times = _distinct(dst * self.n + src)
        at = ints(np.searchsorted(self.keys, fresh))
        known = np.zeros(len(fresh), bool)
        inside = at < len(self.keys)
        known[inside] = self.keys[at[inside]] == fresh[inside]
        counts = self.counts.copy()
        counts[at[known]] += times[known]
        new, where = ~known, at[~known]
        return PairCounts(
            self.n,
            np.insert(self.keys, where, fresh[new]),
            np.insert(counts, where, times[new]),
        )


def no_pairs(n: int) -> PairCounts:
    """Pair counts before anything happened."""
    return PairCounts(n, np.zeros(0, np.int64), np.zeros(0, np.int64))
