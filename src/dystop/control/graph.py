"""Small questions about graphs that several mechanisms ask."""

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from dystop.sparse import Floats, Graph, Ints


def components(n: int, dst: Ints, src: Ints) -> Ints:
    """Number of the connected piece that each node belongs to, directions ignored, [n]."""
    matrix = coo_array((np.ones(len(dst), np.int8), (dst, src)), shape=(n, n))
    _, piece = connected_components(matrix.tocsr(), directed=False)
    return np.asarray(piece, np.int64)


def is_connected(n: int, dst: Ints, src: Ints, among: Ints) -> bool:
    """Whether these nodes lie in one piece."""
    piece = components(n, dst, src)[among]
    return len(piece) == 0 or bool((piece == piece[0]).all())


def two_way_pairs(reach: Graph, link_s: Floats) -> tuple[Ints, Ints, Floats]:
    """Pairs (i, j), i < j, that can talk in both directions, with the slower of the two times.

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
    """(dst, src) of an exchange over each undirected pair."""
    return np.concatenate([i, j]), np.concatenate([j, i])
