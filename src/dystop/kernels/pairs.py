"""Compiled pairs (dst, src): group them by row, find them in sorted collections, count them.

Rows are short (the links of one worker) and many (the workers). Grouping is linear in the pairs: it
first moves them to stretches of rows that fit a processor's cache, then to their rows. Writing them
to their rows directly would miss the cache at every pair. A lookup starts where the last pair was
found: pairs in ascending order cost a step or two each, others a binary search each.
"""

import numpy as np

from dystop import sparse
from dystop.compiled import INTS, NUMBERS, compiled, compiled_for
from dystop.kernels.buffers import buffer
from dystop.kernels.sorting import rank_rows
from dystop.parallel import as_readonly, block_size, run_in_blocks
from dystop.plan import Links
from dystop.sparse import Graph, Ids, Ints, PairCounts, Rows, check_ids

Pair = tuple[Ints, Ints]
Grouped = tuple[Ints, Ids]  # (indptr, src), src ascending in a row
AnyRows = tuple[Ints, Ints | Ids]  # (indptr, ids ascending in a row)

_STRETCH = 12  # log2 of the rows in a stretch
_WORD = 32  # bits of a packed value
_LOW = (1 << _WORD) - 1
_PAIRS = 1 << 16  # smallest number of pairs worth a thread
_ROWS = 1 << 15  # rows that are compared in one block
_BLOCK = 1 << 16  # pairs or rows that are looked up in one block
_FEW = 512  # pairs that NumPy sorts while the passes of a kernel still start


def group(n: int, row: Ints, value: Ints, *, ascending: bool = False) -> Rows:
    """Put (row, value) pairs together by row; see `dystop.sparse.group`."""
    if len(row) <= _FEW:
        return sparse.group.reference(n, row, value, ascending=ascending)
    rows = _grouped(n, as_readonly(row), as_readonly(value))
    return Rows(rows.indptr, _ranked(rows.indptr, rows.value, rows.value)) if ascending else rows


def row_order(row: Ints, value: Ints) -> Ints:
    """Return the order that sorts pairs by row, then by value; see `dystop.sparse.row_order`."""
    if len(row) <= _FEW:
        return sparse.row_order.reference(row, value)
    n = int(row.max(initial=-1)) + 1
    odd = min(row.min(initial=0), value.min(initial=0)) < 0 or value.max(initial=0) >= 1 << 31
    if odd or n > 16 * len(row) + (1 << 20):
        return np.lexsort((value, row))  # ids that do not fit, or few pairs of many rows
    indptr, order = group(n, row, np.arange(len(row)))
    return _ranked(indptr, value[order].astype(np.int32), order).astype(np.int64)


def find_edges(graph: Graph, dst: Ints, src: Ints) -> Ints:
    """Return the edge number of each pair, or -1; see `dystop.sparse.find_edges`."""
    if len(dst) <= _FEW:
        return _find_few_edges(graph.indptr, graph.src, dst, src)
    rows = as_readonly(graph.indptr), as_readonly(graph.src)
    pair = as_readonly(dst), as_readonly(src)
    out = np.empty(len(dst), np.int64)
    run_in_blocks(lambda lo, hi: _find_edges(rows, pair, lo, hi, out), len(dst), _BLOCK)
    return out


def all_in_reach(reach: Graph, links: Links) -> bool:
    """Return whether every link is an edge; see `dystop.control.plan_check.all_in_reach`."""
    if len(links) <= _FEW:
        return not len(links) or int(find_edges(reach, links.dst, links.src).min()) >= 0
    if min(links.dst.min(), links.src.min()) < 0 or links.dst.max() >= reach.n:
        return False
    pairs, found = links.by_receiver, list[bool]()
    inner = as_readonly(pairs.indptr), as_readonly(pairs.value)
    outer = as_readonly(reach.indptr), as_readonly(reach.src)
    run_in_blocks(
        lambda lo, hi: found.append(_rows_within(inner, outer, lo, hi)),
        len(pairs.indptr) - 1,
        _ROWS,
    )
    return all(found)


def find_counts(held: PairCounts, dst: Ints, src: Ints) -> Ints:
    """Return how often each pair was counted; see `dystop.sparse.find_counts`."""
    known, pair = (
        (as_readonly(held.keys), as_readonly(held.counts)),
        (
            as_readonly(dst),
            as_readonly(src),
        ),
    )
    out = np.empty(len(dst), np.int64)
    run_in_blocks(lambda lo, hi: _find_counts(held.n, known, pair, lo, hi, out), len(dst), _BLOCK)
    return out


def add_counts(held: PairCounts, used: Rows) -> PairCounts:
    """Return the counts after one more use of some pairs; see `dystop.sparse.add_counts`."""
    rows, keys = (as_readonly(used.indptr), as_readonly(used.value)), as_readonly(held.keys)
    size = len(used.indptr) - 1
    new = np.zeros(-(-size // _BLOCK), np.int64)

    def count(lo: int, hi: int) -> None:
        new[lo // _BLOCK] = _count_new(held.n, keys, rows, lo, hi)

    run_in_blocks(count, size, _BLOCK)
    if new.any():
        return _merged(held, rows, new)
    counts = held.counts.copy()
    run_in_blocks(lambda lo, hi: _count_known(held.n, keys, rows, lo, hi, counts), size, _BLOCK)
    return PairCounts(held.n, held.keys, counts)


def count_few(held: PairCounts, used: Ints) -> PairCounts:
    """Return the counts after one more use of few pairs; see `dystop.sparse.count_few`."""
    counts = held.counts.copy()
    if _count_again(held.keys, used, counts):
        return PairCounts(held.n, held.keys, counts)
    return PairCounts(held.n, *_with_few(held.keys, held.counts, np.sort(used)))


def _merged(held: PairCounts, rows: Grouped, new: Ints) -> PairCounts:
    """Return known and new pairs together; `new` counts the new pairs of each block of rows."""
    begin = np.searchsorted(held.keys, np.arange(len(new)) * _BLOCK * held.n)
    old = np.append(begin, len(held.keys))  # keys beyond the last row belong to the last block
    at = old + np.append(0, np.cumsum(new))
    keys, counts = buffer(at[-1], np.int64), buffer(at[-1], np.int64)
    known = as_readonly(held.keys), as_readonly(held.counts)

    def merge(lo: int, hi: int) -> None:
        k = lo // _BLOCK
        part, to = slice(old[k], old[k + 1]), slice(at[k], at[k + 1])
        _merge(held.n, (known[0][part], known[1][part]), rows, (lo, hi), (keys[to], counts[to]))

    run_in_blocks(merge, len(rows[0]) - 1, _BLOCK)
    return PairCounts(held.n, keys, counts)


def _grouped(n: int, row: Ints, value: Ints) -> Rows:
    """Group pairs by row and keep their order inside a row."""
    bounds, packed = _stretches(n, row, value)
    indptr, out = np.zeros(n + 1, np.int64), buffer(len(row), np.int32)
    run_in_blocks(
        lambda lo, hi: _place_rows(packed, as_readonly(bounds), (lo, hi), indptr, out),
        len(bounds) - 1,
        max(1, _PAIRS * len(bounds) // (len(row) + 1)),
    )
    return Rows(indptr, out)


def _ranked(indptr: Ints, key: Ids, other: Ids) -> Ids:
    """Return `other` with each row sorted by its keys."""
    out = buffer(len(other), np.int32)
    begins = as_readonly(indptr)

    def rank(lo: int, hi: int) -> None:
        part = slice(indptr[lo], indptr[hi])
        rank_rows(as_readonly(key[part]), as_readonly(other[part]), begins, (lo, hi), begins, out)

    run_in_blocks(rank, len(indptr) - 1, 1 << _STRETCH)
    return out


def _stretches(n: int, row: Ints, value: Ints) -> tuple[Ints, Ints]:
    """Pack each pair into one number, by stretch of rows: (where each stretch begins, pairs)."""
    size = block_size(len(row), _PAIRS)
    parts = max(1, -(-len(row) // size))
    count = np.zeros((parts, (n >> _STRETCH) + 1), np.int64)

    def count_part(lo: int, hi: int) -> None:
        if not _count_stretches(row[lo:hi], n, count[lo // size]):
            check_ids(n, row)

    run_in_blocks(count_part, len(row), size)
    ends = np.cumsum(count.T.ravel())  # stretch by stretch; inside a stretch, part by part
    free = np.ascontiguousarray((ends - count.T.ravel()).reshape(-1, parts).T)
    packed = buffer(len(row), np.int64)

    def pack_part(lo: int, hi: int) -> None:
        if not _pack_stretches(row[lo:hi], value[lo:hi], free[lo // size], packed):
            check_ids(1 << (_WORD - 1), value)

    bounds = np.append(0, ends.reshape(-1, parts)[:, -1])
    run_in_blocks(pack_part, len(row), size)
    return bounds, packed


@compiled
def _count_stretches(row: Ints, n: int, count: Ints) -> bool:
    """Count the pairs of each stretch of rows; return False where a row id is out of bounds."""
    valid = True
    for k in range(len(row)):
        if 0 <= row[k] < n:
            count[row[k] >> _STRETCH] += 1
        else:
            valid = False
    return valid


@compiled
def _pack_stretches(row: Ints, value: Ints, free: Ints, packed: Ints) -> bool:
    """Write each pair to the next free place of its stretch; return False: one is too large."""
    bits = 0
    for k in range(len(row)):
        stretch = row[k] >> _STRETCH
        packed[free[stretch]] = (row[k] << _WORD) | value[k]
        free[stretch] += 1
        bits |= value[k]
    return bits >> (_WORD - 1) == 0


@compiled
def _place_rows(
    packed: Ints, bounds: Ints, stretches: tuple[int, int], indptr: Ints, out: Ids
) -> None:
    """Write the pairs of some stretches to their rows, and where each row ends."""
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


@compiled
def _first_at_least(values: Ints, wanted: int, lo: int, hi: int) -> int:
    """Return the position of the first of the ascending values[lo:hi] that is >= `wanted`."""
    while lo < hi:
        mid = (lo + hi) >> 1
        if values[mid] < wanted:
            lo = mid + 1
        else:
            hi = mid
    return lo


@compiled
def seek(keys: Ints, wanted: int, near: int) -> int:
    """Return the position of the first key >= `wanted`; fast where it is just after `near`."""
    if near == len(keys) or keys[near] >= wanted:
        if near == 0 or keys[near - 1] < wanted:
            return near
        return _first_at_least(keys, wanted, 0, near)
    step = 1
    while near + step < len(keys) and keys[near + step] < wanted:
        near += step
        step *= 2
    return _first_at_least(keys, wanted, near + 1, min(near + step, len(keys)))


@compiled
def _find_edges(graph: Pair, pair: Pair, lo: int, hi: int, out: Ints) -> None:
    """Write the number of each edge in a graph (indptr, src), -1 where there is none."""
    indptr, src = graph
    for k in range(lo, hi):
        dst, wanted, out[k] = pair[0][k], pair[1][k], -1
        if 0 <= dst < len(indptr) - 1:
            at = _first_at_least(src, wanted, indptr[dst], indptr[dst + 1])
            if at < indptr[dst + 1] and src[at] == wanted:
                out[k] = at


@compiled_for(INTS, INTS, INTS, INTS)
def _find_few_edges(indptr: Ints, sender: Ints, dst: Ints, src: Ints) -> Ints:
    """Return the number of each edge in a graph (indptr, sender), -1 where there is none."""
    out = np.empty(len(dst), np.int64)
    _find_edges((indptr, sender), (dst, src), 0, len(dst), out)
    return out


@compiled
def _rows_within(inner: AnyRows, outer: AnyRows, lo: int, hi: int) -> bool:
    """Return whether rows lo to hi of `inner` hold only ids that the same row of `outer` holds."""
    for i in range(lo, hi):
        at, end = outer[0][i], outer[0][i + 1]
        for k in range(inner[0][i], inner[0][i + 1]):
            while at < end and outer[1][at] < inner[1][k]:
                at += 1
            if at == end or outer[1][at] != inner[1][k]:
                return False
    return True


@compiled
def _find_counts(n: int, held: Pair, pair: Pair, lo: int, hi: int, out: Ints) -> None:
    """Write how often each pair was counted; `held` is (keys, counts)."""
    keys, counts = held
    at = 0
    for k in range(lo, hi):
        wanted = pair[0][k] * n + pair[1][k]
        at = seek(keys, wanted, at)
        out[k] = counts[at] if at < len(keys) and keys[at] == wanted else 0


@compiled
def _count_new_keys(keys: Ints, wanted: Ints) -> int:
    """Return how many different wanted keys, which ascend, are not among the ascending keys."""
    new, at = 0, 0
    for k in range(len(wanted)):
        at = seek(keys, wanted[k], at)
        is_new = at == len(keys) or keys[at] != wanted[k]
        new += is_new and (k == 0 or wanted[k] != wanted[k - 1])
    return new


@compiled_for(INTS, INTS, NUMBERS)
def _count_again(keys: Ints, wanted: Ints, counts: Ints) -> bool:
    """Count wanted keys once more, and return whether all were among the ascending keys."""
    for k in range(len(wanted)):
        at = _first_at_least(keys, wanted[k], 0, len(keys))
        if at == len(keys) or keys[at] != wanted[k]:
            return False
        counts[at] += 1
    return True


@compiled_for(INTS, INTS, INTS)
def _with_few(keys: Ints, counts: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """Return keys and counts with wanted keys, which ascend, counted once more."""
    size = len(keys) + _count_new_keys(keys, wanted)
    out, times = np.empty(size, np.int64), np.empty(size, np.int64)
    begin, end = 0, 0
    for k in range(len(wanted)):
        at = seek(keys, wanted[k], begin)
        if at < len(keys) and keys[at] == wanted[k]:
            at += 1
        out[end : end + at - begin] = keys[begin:at]
        times[end : end + at - begin] = counts[begin:at]
        end, begin = end + at - begin, at
        if end == 0 or out[end - 1] != wanted[k]:
            out[end], times[end] = wanted[k], 0
            end += 1
        times[end - 1] += 1
    out[end:], times[end:] = keys[begin:], counts[begin:]
    return out, times


@compiled
def _count_new(n: int, keys: Ints, used: Grouped, lo: int, hi: int) -> int:
    """Return how many different pairs in rows lo to hi of `used` (indptr, src) have no count."""
    at, new, last = _first_at_least(keys, lo * n, 0, len(keys)), 0, -1
    for i in range(lo, hi):
        for k in range(used[0][i], used[0][i + 1]):
            wanted = i * n + used[1][k]
            at = seek(keys, wanted, at)
            new += (wanted != last) & (at == len(keys) or keys[at] != wanted)
            last = wanted
    return new


@compiled
def _count_known(n: int, keys: Ints, used: Grouped, lo: int, hi: int, counts: Ints) -> None:
    """Count the pairs of rows lo to hi once more; all of them have a count."""
    at = _first_at_least(keys, lo * n, 0, len(keys))
    for i in range(lo, hi):
        for k in range(used[0][i], used[0][i + 1]):
            at = seek(keys, i * n + used[1][k], at)
            counts[at] += 1


@compiled
def _merge(n: int, held: Pair, used: Grouped, rows: tuple[int, int], out: Pair) -> None:
    """Write the pairs (keys, counts) of some rows to `out`, with those of `used` counted."""
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
