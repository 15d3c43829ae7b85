"""Compiled sorting inside short rows. Ties keep their order and NaN comes last, as in NumPy.

A worker has some twenty neighbours. So few entries are sorted fastest by counting, for each entry,
how many come before it: no branch is mispredicted. Longer rows are merge-sorted. Rows are copied to
a scratch array instead of sliced: the compiler then sees that no index is negative and uses vector
registers.
"""

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import compiled
from dystop.sparse import Floats, Ints

AnyIds = NDArray[np.int32] | Ints
Keys = AnyIds | Floats  # ids are exact as floats

_COUNTED = 128  # entries up to which counting pays
_RUN = 16


@compiled
def rank_rows(
    keys: Keys, other: AnyIds, indptr: Ints, rows: tuple[int, int], dest: Ints, out: AnyIds
) -> None:
    """Sort `other` by its keys inside each of some rows; row i goes to out[dest[i]] and after.

    `keys` and `other` begin with the first entry of the first of these rows.
    """
    begin, row = indptr[rows[0]], np.empty(_COUNTED, keys.dtype)
    for i in range(rows[0], rows[1]):
        lo, size, at = indptr[i] - begin, indptr[i + 1] - indptr[i], dest[i]
        if size > _COUNTED or _copied(keys, lo, size, row):
            order = _order(keys, lo, size)
            for k in range(size):
                out[at + k] = other[lo + order[k]]
        else:
            for k in range(size):
                out[at + _before(row, size, k)] = other[lo + k]


@compiled
def kth_of_rows(values: Floats, indptr: Ints, rank: int, lo: int, hi: int, out: Floats) -> None:
    """Write the rank-th smallest value of each row, the largest if there are fewer, 0 if none."""
    row = np.empty(_COUNTED)
    for i in range(lo, hi):
        first, size = indptr[i], indptr[i + 1] - indptr[i]
        wanted = min(rank, size) - 1
        out[i] = 0.0
        if size > _COUNTED or _copied(values, first, size, row):
            out[i] = values[first + _order(values, first, size)[wanted]]
            continue
        for k in range(size):
            if _before(row, size, k) == wanted:
                out[i] = row[k]
                break


@compiled
def sort_ids(values: Ints, out: Ints) -> None:
    """Write the values in ascending order."""
    size = len(values)
    if size > _COUNTED:
        order = _order(values, 0, size)
        for k in range(size):
            out[k] = values[order[k]]
    else:
        for k in range(size):
            out[_before(values, size, k)] = values[k]


@compiled
def _copied(keys: Keys, lo: int, size: int, row: Keys) -> bool:
    """Copy keys to the scratch row; return True if one is NaN, which counting cannot place."""
    odd = False
    for k in range(size):
        row[k] = keys[lo + k]
        odd |= row[k] != row[k]
    return odd


@compiled
def _before(row: Keys, size: int, k: int) -> int:
    """Return how many of the first `size` keys come before the k-th."""
    key, before = row[k], 0
    for j in range(size):
        before += (row[j] < key) | ((row[j] == key) & (j < k))
    return before


@compiled
def _order(keys: Keys, lo: int, size: int) -> Ints:
    """Return the positions of `size` keys from `lo` on, in ascending order of the keys."""
    key, order = np.empty((2, size)), np.empty((2, size), np.int64)
    for k in range(size):
        key[0, k], order[0, k] = keys[lo + k], k
    return _merge_sort(key, order)


@compiled
def _merge_sort(key: Floats, order: Ints) -> Ints:
    """Sort the first row of each array by merging sorted runs; the second row is scratch."""
    size, width = key.shape[1], _RUN
    for lo in range(0, size, _RUN):
        _insert(key, order, lo, min(lo + _RUN, size))
    while width < size:
        for lo in range(0, size - width, 2 * width):
            _merge(key, order, lo, lo + width, min(lo + 2 * width, size))
        width *= 2
    done: Ints = order[0]
    return done


@compiled
def _insert(key: Floats, order: Ints, lo: int, hi: int) -> None:
    for k in range(lo + 1, hi):
        value, follows, at = key[0, k], order[0, k], k
        while at > lo and _comes_before(value, key[0, at - 1]):
            key[0, at], order[0, at] = key[0, at - 1], order[0, at - 1]
            at -= 1
        key[0, at], order[0, at] = value, follows


@compiled
def _merge(key: Floats, order: Ints, lo: int, mid: int, hi: int) -> None:
    for k in range(lo, mid):
        key[1, k], order[1, k] = key[0, k], order[0, k]
    a, b, at = lo, mid, lo
    while a < mid:
        if b < hi and _comes_before(key[0, b], key[1, a]):
            key[0, at], order[0, at] = key[0, b], order[0, b]
            b += 1
        else:
            key[0, at], order[0, at] = key[1, a], order[1, a]
            a += 1
        at += 1


@compiled
def _comes_before(a: float, b: float) -> bool:
    """Return whether a comes strictly before b, where NaN comes last."""
    return a < b or (b != b and a == a)
