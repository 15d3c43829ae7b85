"""Finding pairs (dst, src) in sorted collections, and counting them there; compiled.

A pair is looked for from where the last one was found: pairs asked for in ascending order cost a
step or two each, in any order a binary search each.
"""

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import compiled

Ints = NDArray[np.int64]
Pair = tuple[Ints, Ints]
Grouped = tuple[Ints, NDArray[np.int32]]  # (indptr, src), src ascending in a row


@compiled
def first_at_least(values: Ints, wanted: int, lo: int, hi: int) -> int:
    """Position of the first of the ascending values[lo:hi] that is not below the wanted one."""
    while lo < hi:
        mid = (lo + hi) >> 1
        if values[mid] < wanted:
            lo = mid + 1
        else:
            hi = mid
    return lo


@compiled
def seek(keys: Ints, wanted: int, near: int) -> int:
    """The same over all keys, fast where the position is at or a little after `near`."""
    if near == len(keys) or keys[near] >= wanted:
        if near == 0 or keys[near - 1] < wanted:
            return near
        return first_at_least(keys, wanted, 0, near)
    step = 1
    while near + step < len(keys) and keys[near + step] < wanted:
        near += step
        step *= 2
    return first_at_least(keys, wanted, near + 1, min(near + step, len(keys)))


@compiled
def find_edges(graph: Pair, pair: Pair, lo: int, hi: int, out: Ints) -> None:
    """Number of each edge in a graph (indptr, src), -1 where there is none."""
    indptr, src = graph
    for k in range(lo, hi):
        dst, wanted, out[k] = pair[0][k], pair[1][k], -1
        if 0 <= dst < len(indptr) - 1:
            at = first_at_least(src, wanted, indptr[dst], indptr[dst + 1])
            if at < indptr[dst + 1] and src[at] == wanted:
                out[k] = at


@compiled
def find_counts(n: int, held: Pair, pair: Pair, lo: int, hi: int, out: Ints) -> None:
    """How often each pair was counted; held is (keys, counts)."""
    keys, counts = held
    at = 0
    for k in range(lo, hi):
        wanted = pair[0][k] * n + pair[1][k]
        at = seek(keys, wanted, at)
        out[k] = counts[at] if at < len(keys) and keys[at] == wanted else 0


@compiled
def count_new(n: int, keys: Ints, used: Grouped, lo: int, hi: int) -> int:
    """How many different pairs in rows lo to hi of `used` (indptr, src) have no count yet."""
    at, new, last = first_at_least(keys, lo * n, 0, len(keys)), 0, -1
    for i in range(lo, hi):
        for k in range(used[0][i], used[0][i + 1]):
            wanted = i * n + used[1][k]
            at = seek(keys, wanted, at)
            new += (wanted != last) & (at == len(keys) or keys[at] != wanted)
            last = wanted
    return new


@compiled
def count_known(n: int, keys: Ints, used: Grouped, lo: int, hi: int, counts: Ints) -> None:
    """Count the pairs of rows lo to hi, all of which have a count."""
    at = first_at_least(keys, lo * n, 0, len(keys))
    for i in range(lo, hi):
        for k in range(used[0][i], used[0][i + 1]):
            at = seek(keys, i * n + used[1][k], at)
            counts[at] += 1


@compiled
def merge(n: int, held: Pair, used: Grouped, rows: tuple[int, int], out: Pair) -> None:
    """Write the counted pairs (keys, counts) from row lo to hi, those of `used` counted, to out."""
    keys, counts = held
    at, end = 0, 0
    for i in range(rows[0], rows[1]):
        for k in range(used[0][i], used[0][i + 1]):
            wanted = i * n + used[1][k]
            while at < len(keys) and keys[at] <= wanted:
                out[0][end], out[1][end] = keys[at], counts[at]
                at, end = at + 1, end + 1
            if end == 0 or out[0][end - 1] != wanted:
                out[0][end], out[1][end] = wanted, 0
                end += 1
            out[1][end - 1] += 1
    for k in range(at, len(keys)):
        out[0][end], out[1][end] = keys[k], counts[k]
        end += 1
