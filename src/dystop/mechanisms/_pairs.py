"""What mechanisms that weigh undirected pairs share: values kept by pair, and spanning forests.

A store is {"keys": sorted lower * n + higher, "values": one number each}: only pairs that ever had
a value take room, and it goes into a checkpoint as it is.
"""

from collections.abc import Mapping

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree

from dystop.sparse import Bools, Floats, Ints, ints
from dystop.types import Outcome

Store = Mapping[str, Ints | Floats]


def no_values() -> Store:
    """A store before anything is known."""
    return {"keys": ints([]), "values": np.zeros(0)}


def pair_key(n: int, i: Ints, j: Ints) -> Ints:
    """One number for each pair, whichever end is named first."""
    return np.minimum(i, j) * n + np.maximum(i, j)


def recall(store: Store, keys: Ints) -> Floats:
    """The value of each pair; NaN where none was ever noted.

    >>> recall(note(no_values(), ints([7]), np.array([0.5])), ints([3, 7])).tolist()
    [nan, 0.5]
    """
    known = store["keys"]
    if not len(known):
        return np.full(len(keys), np.nan)
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(known[at] == keys, store["values"][at], np.nan)


def note(store: Store, keys: Ints, values: Floats) -> Store:
    """The store after these pairs, each named once, got new values."""
    old = ~np.isin(store["keys"], keys)
    both = np.concatenate([store["keys"][old], keys])
    order = np.argsort(both)
    every = np.concatenate([store["values"][old], values])
    return {"keys": ints(both[order]), "values": every[order]}


def measured(n: int, last: Outcome | None) -> tuple[Ints, Floats]:
    """Pairs whose model distance was measured in the last round, with the mean of both ends."""
    if last is None or last.distance is None:
        return ints([]), np.zeros(0)
    fine = ~last.lost & np.isfinite(last.distance)
    keys, which = np.unique(pair_key(n, last.dst[fine], last.src[fine]), return_inverse=True)
    total = np.bincount(which, weights=last.distance[fine], minlength=len(keys))
    return ints(keys), total / np.maximum(np.bincount(which, minlength=len(keys)), 1)


def spanning_forest(n: int, i: Ints, j: Ints, order: Ints) -> Bools:
    """Which pairs make up the spanning forest that takes pairs greedily in this order.

    >>> spanning_forest(3, ints([0, 0, 1]), ints([1, 2, 2]), ints([2, 0, 1])).tolist()
    [True, False, True]
    """
    rank = np.empty(len(order))
    rank[order] = np.arange(1.0, len(order) + 1)  # from 1: a zero would be no pair at all
    tree = minimum_spanning_tree(coo_array((rank, (i, j)), shape=(n, n)).tocsr())
    inside = np.zeros(len(order), bool)
    inside[order[ints(np.rint(tree.data)) - 1]] = True
    return inside
