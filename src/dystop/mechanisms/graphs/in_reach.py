"""Graphs among workers in reach of each other: cycles, regular graphs and geometric graphs.

A graph is drawn from undirected pairs (i, j) of nodes 0..n-1, each given once. Every graph here
connects what the given pairs connect.
"""

import itertools
from typing import Literal

import networkx as nx
import numpy as np

from dystop.mechanisms.graphs.pairs import pair_key, spanning_forest
from dystop.mechanisms.graphs.undirected import both_ways, regular_pairs
from dystop.sparse import Bools, Floats, Graph, Ints, graph_of, ints
from dystop.types import View

DrawnFrom = Literal["reach", "all"]
"""The pairs that a graph is drawn from: those in reach of each other, or all."""

_ROTATIONS, _MOST_ROTATIONS = 8, 4000  # per node of a path that does not grow, and in all


def in_reach(view: View, dst: Ints, src: Ints) -> Graph:
    """Return the graph of the links that are in reach in both directions.

    Both are needed: a link in one direction alone would change the mean model.
    """
    usable = (view.reach.find(dst, src) >= 0) & (view.reach.find(src, dst) >= 0)
    return graph_of(view.fleet.workers, dst[usable], src[usable])


def cycle_in_reach(n: int, i: Ints, j: Ints, rng: np.random.Generator) -> Bools:
    """Return which pairs form a random cycle through all nodes.

    Where none is found, several paths and cycles share the nodes, and further pairs connect them.

    >>> i, j = ints([0, 0, 0, 1, 2]), ints([1, 2, 3, 2, 3])  # a square and one diagonal
    >>> cycle_in_reach(4, i, j, np.random.default_rng(0)).tolist()
    [True, False, True, True, True]
    """
    paths = _Walk(graph_of(n, *both_ways(i, j)), rng).paths()
    steps = ints([pair for path in paths for pair in itertools.pairwise(path)]).reshape(-1, 2)
    chosen: Bools = np.isin(pair_key(n, i, j), pair_key(n, steps[:, 0], steps[:, 1]))
    if len(paths) == 1:
        return chosen
    return chosen | spanning_forest(n, i, j, np.lexsort((rng.random(len(i)), ~chosen)))


class _Walk:
    """Paths through all nodes of a graph, each node in one path, by rotations (Posa 1976).

    A path grows at its end by the neighbour outside that has the fewest neighbours outside. Without
    one, a neighbour w of the end lies inside: the part behind w is turned round, and the path has
    another end. A path whose ends meet is a cycle; it may be opened anywhere to grow there.
    """

    def __init__(self, graph: Graph, rng: np.random.Generator) -> None:
        self._graph, self._rng = graph, rng
        self._outside = np.ones(graph.n, bool)  # nodes that no path holds
        self._choices = graph.degree.copy()  # neighbours outside, [n]
        self._path: list[int] = []
        self._at = np.full(graph.n, -1)  # position in the current path, [n]

    def paths(self) -> list[list[int]]:
        """Return the paths; a cycle ends where it begins."""
        starts = self._rng.permutation(self._graph.n).tolist()
        return [self._longest(start) for start in starts if self._outside[start]]

    def _longest(self, start: int) -> list[int]:
        self._at[self._path] = -1
        self._path = []
        self._append(start)
        turns = 0
        while turns < min(_ROTATIONS * len(self._path), _MOST_ROTATIONS):
            near = self._graph.row(self._path[-1])
            if self._grow(near):
                turns = 0
            elif len(self._path) > 2 and (self._at[near] == 0).any():
                if not self._open_cycle():
                    return [*self._path, self._path[0]]
            else:
                self._rotate(near)
                turns += 1
        return self._path

    def _append(self, node: int) -> None:
        self._at[node] = len(self._path)
        self._path.append(node)
        self._outside[node] = False
        self._choices[self._graph.row(node)] -= 1

    def _grow(self, near: Ints) -> bool:
        """Append a neighbour of the end, if one is outside."""
        free = near[self._outside[near]]
        if len(free):
            self._append(self._draw(free[self._choices[free] == self._choices[free].min()]))
        return len(free) > 0

    def _open_cycle(self) -> bool:
        """Let the cycle end at a node with a neighbour outside, if there is one."""
        path = ints(self._path)
        doors = path[self._choices[path] > 0]
        if len(doors):
            cut = int(self._at[self._draw(doors)]) + 1
            self._set([*self._path[cut:], *self._path[:cut]])
        return len(doors) > 0

    def _rotate(self, near: Ints) -> None:
        """Turn round what follows a neighbour of the end, or the whole path if there is none."""
        at = self._at[near]
        inside = near[(at >= 0) & (at < len(self._path) - 2)]
        cut = int(self._at[self._draw(inside)]) + 1 if len(inside) else 0
        self._set([*self._path[:cut], *self._path[cut:][::-1]])

    def _set(self, path: list[int]) -> None:
        self._path = path
        self._at[path] = np.arange(len(path))

    def _draw(self, nodes: Ints) -> int:
        return int(nodes[self._rng.integers(len(nodes))])


def geometric_in_reach(n: int, i: Ints, j: Ints, metres: Floats, degree: int | None) -> Bools:
    """Return the shortest pairs, which form a geometric graph of the nodes.

    Without a degree, it has all pairs up to the smallest radius that connects what all pairs
    connect. With a degree, it has as many as give that mean degree, and the shortest further pairs
    that connect. Ties go to the lower ids.

    >>> i, j = ints([0, 0, 1, 1, 2]), ints([1, 2, 2, 3, 3])
    >>> metres = np.array([1.0, 2.0, 2.0, 5.0, 3.0])
    >>> geometric_in_reach(4, i, j, metres, None).tolist()
    [True, True, True, False, True]
    >>> geometric_in_reach(4, i, j, metres, 1).tolist()
    [True, True, False, False, True]
    """
    shortest_first = np.lexsort((j, i, metres))
    chosen = spanning_forest(n, i, j, shortest_first)
    if degree is None:
        within: Bools = metres <= metres[chosen].max(initial=0.0)
        return within
    nodes = len(np.unique(np.concatenate([i, j])))
    chosen[shortest_first[: nodes * degree // 2]] = True
    return chosen


def regular_in_reach(
    n: int, i: Ints, j: Ints, degree: int, rng: np.random.Generator
) -> tuple[Ints, Ints]:
    """Return the pairs of a random graph in which nearly all nodes have this degree.

    Where all nodes are in reach of each other, it is a random regular graph (`random_regular`).
    Otherwise, it is a random cycle and further random pairs as long as both ends have a lower
    degree: a cycle with a random (degree - 2)-regular graph has the properties of a random regular
    graph (Wormald 1999). A node near the rim or in a gap may have a lower degree.
    """
    if len(i) == n * (n - 1) // 2:
        return random_regular(n, degree, rng)
    chosen = cycle_in_reach(n, i, j, rng) if degree > 1 else np.zeros(len(i), bool)
    room = degree - np.bincount(np.concatenate([i[chosen], j[chosen]]), minlength=n)
    order = rng.permutation(np.flatnonzero(~chosen))
    chosen[order[fill(i[order], j[order], room)]] = True
    return i[chosen], j[chosen]


def fill(i: Ints, j: Ints, room: Ints) -> Bools:
    """Return which pairs are accepted, one after another, as long as both ends have room.

    In each pass, a pair is accepted that is early enough among the open pairs of both ends.

    >>> fill(ints([0, 0, 1, 2]), ints([1, 2, 2, 3]), ints([1, 1, 1, 1])).tolist()
    [True, False, False, True]
    """
    room, accepted, open_ = room.copy(), np.zeros(len(i), bool), np.arange(len(i))
    while len(open_ := open_[(room[i[open_]] > 0) & (room[j[open_]] > 0)]):
        ends = np.stack([i[open_], j[open_]], axis=1).ravel()
        order = np.argsort(ends, kind="stable")
        rank = np.empty(len(ends), np.int64)
        rank[order] = np.arange(len(ends)) - np.searchsorted(ends[order], ends[order])
        early = (rank < room[ends]).reshape(-1, 2).all(axis=1)
        accepted[open_[early]] = True
        room -= np.bincount(ends.reshape(-1, 2)[early].ravel(), minlength=len(room))
        open_ = open_[~early]
    return accepted


def random_regular(n: int, degree: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the pairs of a connected random regular graph on 0..n-1; the degree may grow by one.

    >>> a, b = random_regular(6, 2, np.random.default_rng(0))
    >>> np.bincount(np.append(a, b)).tolist()
    [2, 2, 2, 2, 2, 2]
    """
    degree = min(degree, n - 1)
    degree += n * degree % 2  # then n is odd, n - 1 is even, and the degree stays below n
    if degree == 2:  # a connected one is a cycle; rejection sampling would take long
        cycle = ints(rng.permutation(n))
        return cycle, np.roll(cycle, -1)
    for _ in itertools.count():
        pair = regular_pairs(n, degree, int(rng.integers(2**31)))
        if degree < 2 or nx.is_connected(nx.Graph(pair.tolist())):
            break
    return pair[:, 0], pair[:, 1]
