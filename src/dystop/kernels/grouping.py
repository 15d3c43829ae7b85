"""Pairs grouped by row, without sorting them all: linear in the pairs, compiled.

Rows are short (a worker's links) and many (the workers). Pairs first go to stretches of rows that
fit a processor's cache, then to their rows: written at random, they would miss the cache each time.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import compiled
from dystop.kernels.buffers import buffer
from dystop.kernels.sorting import rank_rows
from dystop.parallel import as_readonly, block_size, run_in_blocks

Ints = NDArray[np.int64]
Ids = NDArray[np.int32]  # half the room of Ints, for arrays that only pass through

_STRETCH = 12  # log2 of the rows that are handled together
_WORD = 32  # bits of a packed value
_LOW = (1 << _WORD) - 1
_PAIRS = 1 << 16  # pairs that are worth a thread


class Rows(NamedTuple):
    """Ids in compressed rows: those of row i are value[indptr[i]:indptr[i + 1]]."""

    indptr: Ints  # [n + 1]
    value: Ids


def group(n: int, row: Ints, value: Ints, *, ascending: bool = False) -> Rows:
    """Put (row, value) pairs together by row, 0 <= row < n and 0 <= value < 2^31.

    Inside a row the values keep the order given, or are sorted.

    >>> [x.tolist() for x in group(3, np.array([2, 0, 2]), np.array([7, 8, 5]))]
    [[0, 1, 1, 3], [8, 7, 5]]
    """
    rows = _placed(n, as_readonly(row), as_readonly(value))
    return Rows(rows.indptr, _ranked(rows.indptr, rows.value, rows.value)) if ascending else rows


def _placed(n: int, row: Ints, value: Ints) -> Rows:
    bounds, packed = _stretches(n, row, value)
    indptr, out = np.zeros(n + 1, np.int64), buffer(len(row), np.int32)
    run_in_blocks(
        lambda lo, hi: place_rows(packed, as_readonly(bounds), (lo, hi), indptr, out),
        len(bounds) - 1,
        max(1, _PAIRS * len(bounds) // (len(row) + 1)),
    )
    return Rows(indptr, out)


def _ranked(indptr: Ints, key: Ids, other: Ids) -> Ids:
    """`other`, in each row sorted by its key."""
    out = buffer(len(other), np.int32)
    begins = as_readonly(indptr)

    def work(lo: int, hi: int) -> None:
        part = slice(indptr[lo], indptr[hi])
        rank_rows(as_readonly(key[part]), as_readonly(other[part]), begins, (lo, hi), begins, out)

    run_in_blocks(work, len(indptr) - 1, 1 << _STRETCH)
    return out


def row_order(row: Ints, value: Ints) -> Ints:
    """The order that sorts pairs by row, then by value, equal pairs as given: a lexsort.

    >>> row_order(np.array([2, 0, 2]), np.array([7, 8, 5])).tolist()
    [1, 2, 0]
    """
    n = int(row.max(initial=-1)) + 1
    odd = min(row.min(initial=0), value.min(initial=0)) < 0 or value.max(initial=0) >= 1 << 31
    if odd or n > 16 * len(row) + (1 << 20):
        return np.lexsort((value, row))  # a mistake that is told later, or few pairs of many rows
    indptr, order = group(n, row, np.arange(len(row)))
    return _ranked(indptr, value[order].astype(np.int32), order).astype(np.int64)


def _stretches(n: int, row: Ints, value: Ints) -> tuple[Ints, Ints]:
    """Pairs packed into one number each, by stretch of rows: (where each stretch begins, pairs)."""
    size = block_size(len(row), _PAIRS)
    parts = max(1, -(-len(row) // size))
    count = np.zeros((parts, (n >> _STRETCH) + 1), np.int64)

    def look(lo: int, hi: int) -> None:
        if not count_stretches(row[lo:hi], n, count[lo // size]):
            raise IndexError(f"a pair has an id outside of {n} rows")

    run_in_blocks(look, len(row), size)
    ends = np.cumsum(count.T.ravel())  # stretch by stretch, in each the parts in order
    free = np.ascontiguousarray((ends - count.T.ravel()).reshape(-1, parts).T)
    packed = buffer(len(row), np.int64)

    def work(lo: int, hi: int) -> None:
        if not pack_stretches(row[lo:hi], value[lo:hi], free[lo // size], packed):
            raise IndexError(f"a pair of one of {n} rows has an id below 0 or from 2^31 on")

    bounds = np.append(0, ends.reshape(-1, parts)[:, -1])
    run_in_blocks(work, len(row), size)
    return bounds, packed


@compiled
def count_stretches(row: Ints, n: int, count: Ints) -> bool:
    """Count the pairs of each stretch of rows; False if there is no such row."""
    fine = True
    for k in range(len(row)):
        if 0 <= row[k] < n:
            count[row[k] >> _STRETCH] += 1
        else:
            fine = False
    return fine


@compiled
def pack_stretches(row: Ints, value: Ints, free: Ints, packed: Ints) -> bool:
    """Write pairs where their stretch has its next free place; False if a value does not fit."""
    bits = 0
    for k in range(len(row)):
        stretch = row[k] >> _STRETCH
        packed[free[stretch]] = (row[k] << _WORD) | value[k]
        free[stretch] += 1
        bits |= value[k]
    return bits >> (_WORD - 1) == 0


@compiled
def place_rows(
    packed: Ints, bounds: Ints, stretches: tuple[int, int], indptr: Ints, out: Ids
) -> None:
    """Spread stretches over their rows and note where each row ends."""
    n, size = len(indptr) - 1, 1 << _STRETCH
    for stretch in range(stretches[0], stretches[1]):
        lo, hi, end = bounds[stretch], bounds[stretch + 1], min((stretch + 1) * size, n)
        for k in range(lo, hi):
            indptr[(packed[k] >> _WORD) + 1] += 1
        at = lo
        for i in range(stretch * size + 1, end + 1):
            indptr[i], at = at, at + indptr[i]
        for k in range(lo, hi):
            i = (packed[k] >> _WORD) + 1
            out[indptr[i]] = packed[k] & _LOW
            indptr[i] += 1
