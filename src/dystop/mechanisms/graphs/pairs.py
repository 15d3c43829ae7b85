"""Values by undirected pair of workers, spanning forests, and the fastest pairs.

A store is {"keys": sorted lower * n + higher, "values": one number per key}. It holds only pairs
that ever had a value, and it is part of a mechanism's memory.
"""

from collections.abc import Mapping

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree

from dystop.sparse import Bools, Floats, Ints, ints
from dystop.types import Outcome

Store = Mapping[str, Ints | Floats]


def no_values() -> Store:
    """Return an empty store."""
    return {"keys": ints([]), "values": np.zeros(0)}


def pair_key(n: int, i: Ints, j: Ints) -> Ints:
    """Return one number for each pair, independent of the order of its ends."""
    return np.minimum(i, j) * n + np.maximum(i, j)


def recall(store: Store, keys: Ints) -> Floats:
    """Return the value of each pair; NaN if it has none.

    >>> recall(note(no_values(), ints([7]), np.array([0.5])), ints([3, 7])).tolist()
    [nan, 0.5]
    """
    known = store["keys"]
    if not len(known):
        return np.full(len(keys), np.nan)
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[at] == keys, store["values"][at], np.nan)


def note(store: Store, keys: Ints, values: Floats) -> Store:
    """Return the store with new values for these pairs; each pair occurs once."""
    old = ~np.isin(store["keys"], keys)
    both = np.concatenate([store["keys"][old], keys])
    order = np.argsort(both)
    every = np.concatenate([store["values"][old], values])
    return {"keys": ints(both[order]), "values": every[order]}


def measured(n: int, last: Outcome | None) -> tuple[Ints, Floats]:
    """Return the pairs whose model distance the last round measured, and the mean of both ends."""
    if last is None or last.distance is None:
        return ints([]), np.zeros(0)
    fine = ~last.lost & np.isfinite(last.distance)
    keys, which = np.unique(pair_key(n, last.dst[fine], last.src[fine]), return_inverse=True)
    total = np.bincount(which, weights=last.distance[fine], minlength=len(keys))
    return ints(keys), total / np.maximum(np.bincount(which, minlength=len(keys)), 1)


def spanning_forest(n: int, i: Ints, j: Ints, order: Ints) -> Bools:
    """Return which pairs form the spanning forest that prefers pairs in this order.

    >>> spanning_forest(3, ints([0, 0, 1]), ints([1, 2, 2]), ints([2, 0, 1])).tolist()
    [True, False, True]
    """
    rank = np.empty(len(order))
    rank[order] = np.arange(1.0, len(order) + 1)  # from 1: scipy reads a zero as no edge
    tree = minimum_spanning_tree(coo_array((rank, (i, j)), shape=(n, n)).tocsr())
    inside = np.zeros(len(order), bool)
    inside[order[ints(np.rint(tree.data)) - 1]] = True
    return inside


def fastest_pairs(n: int, i: Ints, j: Ints, cost: Floats, degree: int) -> Bools:
    """Return the pairs among the `degree` cheapest of either end, and a cheapest spanning forest.

    The forest keeps connected what all pairs connect. Ties go to the lower ids.

    >>> i, j = ints([0, 0, 1, 2]), ints([1, 2, 2, 3])
    >>> fastest_pairs(4, i, j, np.array([1.0, 2.0, 3.0, 4.0]), degree=1).tolist()
    [True, True, False, True]
    """
    cheapest_first = np.lexsort((j, i, cost))
    rank = np.empty(len(i), np.int64)
    rank[cheapest_first] = np.arange(len(i))
    node, pair = np.concatenate([i, j]), np.tile(np.arange(len(i)), 2)
    order = np.lexsort((rank[pair], node))
    first = np.searchsorted(node[order], np.arange(n + 1))
    rank_at_node = np.arange(len(order)) - first[node[order]]
    chosen = spanning_forest(n, i, j, cheapest_first)
    chosen[pair[order[rank_at_node < degree]]] = True
    return chosen
