"""Undirected graphs of workers: components, two-way pairs, regular graphs, edge colourings."""

from itertools import cycle, pairwise

import networkx as nx
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from dystop.sparse import Floats, Graph, Ints, ints


def components(n: int, dst: Ints, src: Ints) -> Ints:
    """Return the number of each node's connected component, directions ignored, [n]."""
    matrix = coo_array((np.ones(len(dst), np.int8), (dst, src)), shape=(n, n))
    _, piece = connected_components(matrix.tocsr(), directed=False)
    return np.asarray(piece, np.int64)


def is_connected(n: int, dst: Ints, src: Ints, among: Ints) -> bool:
    """Return whether these nodes lie in one connected component."""
    piece = components(n, dst, src)[among]
    return len(piece) == 0 or bool((piece == piece[0]).all())


def two_way_pairs(reach: Graph, link_s: Floats) -> tuple[Ints, Ints, Floats]:
    """Return pairs (i, j), i < j, with links in both directions, and the slower link time of each.

    >>> from dystop.sparse import graph_of, ints
    >>> g = graph_of(3, ints([0, 1, 2]), ints([1, 0, 0]))
    >>> [x.tolist() for x in two_way_pairs(g, np.array([1.0, 2.0, 3.0]))]
    [[0], [1], [2.0]]
    """
    back = reach.find(reach.src, reach.dst)
    keep = (reach.dst < reach.src) & (back >= 0)
    slower = np.maximum(link_s[keep], link_s[back[keep]])
    return reach.dst[keep], reach.src[keep], slower


def both_ways(i: Ints, j: Ints) -> tuple[Ints, Ints]:
    """Return (dst, src) of the two directed links of each undirected pair."""
    return np.concatenate([i, j]), np.concatenate([j, i])


def regular_pairs(n: int, degree: int, seed: int) -> Ints:
    """Return the edges of a random regular graph, [E, 2].

    A dense graph is drawn as the complement of a sparse one, because drawing it directly almost
    always fails and starts again.

    >>> len(regular_pairs(6, 4, seed=0))
    12
    """
    if 2 * degree < n:
        edges = nx.random_regular_graph(degree, n, seed=seed).edges
    else:
        edges = nx.complement(nx.random_regular_graph(n - 1 - degree, n, seed=seed)).edges
    return ints(list(edges)).reshape(-1, 2)


_Used = list[dict[int, int]]  # per node: colour of an edge there -> the node at its other end


def edge_colouring(n: int, i: Ints, j: Ints) -> Ints:
    """Split a graph into matchings: colour its edges so that adjacent edges differ.

    The number of colours is at most the largest degree plus one (Misra and Gries).

    Args:
        n: number of nodes.
        i: one end of each undirected edge; edges are unique and not loops.
        j: the other end.

    Returns:
        The number of each edge's matching, from 0 without gaps, [E].

    >>> edge_colouring(4, ints([0, 1, 2, 3]), ints([1, 2, 3, 0])).tolist()
    [0, 1, 0, 1]
    """
    used: _Used = [{} for _ in range(n)]
    largest = int((np.bincount(i, minlength=n) + np.bincount(j, minlength=n)).max(initial=0))
    for u, v in zip(i.tolist(), j.tolist(), strict=True):
        _colour(used, u, v, largest)
    of = {(u, v): colour for u, row in enumerate(used) for colour, v in row.items()}
    raw = ints([of[pair] for pair in zip(i.tolist(), j.tolist(), strict=True)])
    return ints(np.unique(raw, return_inverse=True)[1])


def _colour(used: _Used, u: int, v: int, largest: int) -> None:
    """Colour one more edge; recolour earlier edges if the two ends share no free colour."""
    both = next((k for k in range(largest) if k not in used[u] and k not in used[v]), None)
    if both is not None:
        _set(used, u, v, both)
        return
    fan = _fan(used, u, v)
    c, d = _free(used[u]), _free(used[fan[-1]])
    _swap_path(used, u, c, d)
    _rotate(used, u, fan, d)


def _free(row: dict[int, int]) -> int:
    """Return the lowest colour that no edge of a node has."""
    return next(k for k in range(len(row) + 1) if k not in row)


def _set(used: _Used, u: int, v: int, colour: int) -> None:
    used[u][colour] = v
    used[v][colour] = u


def _fan(used: _Used, u: int, v: int) -> list[int]:
    """Return the longest fan of u from v: each edge's colour is free at the neighbour before."""
    fan = [v]
    while True:
        last, row = used[fan[-1]], used[u]
        more = next((w for k, w in row.items() if k not in last and w not in fan), None)
        if more is None:
            return fan
        fan.append(more)


def _swap_path(used: _Used, u: int, c: int, d: int) -> None:
    """Exchange the colours c and d along their path from u, so that d is free at u."""
    path, colour = [u], d
    while colour in used[path[-1]]:
        path.append(used[path[-1]][colour])
        colour = c if colour == d else d
    for a, b, k in zip(path, path[1:], cycle([d, c]), strict=False):
        del used[a][k], used[b][k]
    for a, b, k in zip(path, path[1:], cycle([c, d]), strict=False):
        _set(used, a, b, k)


def _rotate(used: _Used, u: int, fan: list[int], d: int) -> None:
    """Shift colours along the fan up to a neighbour where d is free, and give that edge d."""
    colour_to = {w: k for k, w in used[u].items()}
    stop = next(k for k, w in enumerate(fan) if d not in used[w])
    for w in fan[1 : stop + 1]:
        del used[u][colour_to[w]], used[w][colour_to[w]]
    for w, after in pairwise(fan[: stop + 1]):
        _set(used, u, w, colour_to[after])
    _set(used, u, fan[stop], d)
