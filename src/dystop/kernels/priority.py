"""Compiled priorities of millions of links: eq:EMD and eq:priority2 in one walk each.

Sums of eq:EMD are taken in the order in which NumPy sums a row of an array: eight partial sums,
added in pairs, then the rest. So kernel and reference agree to the last bit.
"""

from collections.abc import Callable

import numpy as np

from dystop.compiled import compiled
from dystop.kernels.buffers import buffer
from dystop.kernels.pairs import seek
from dystop.parallel import as_readonly, run_in_blocks
from dystop.sparse import Floats, Ids, Ints, PairCounts, check_ids

Pair = tuple[Ints, Ints]

_BLOCK = 1 << 16  # pairs in one block
_MOST_CLASSES = 128  # with more classes NumPy sums halves of a row
_PREFETCHED = 64  # pairs whose rows are read before their distances are computed
_CHUNK = 512  # links whose staleness is read before their priorities are computed
_PARTIAL_SUMS = 8


def emd(shares: Floats, dst: Ints, src: Ints) -> Floats:
    """Return the distance of label distributions (eq:EMD); see `dystop.control.priority.emd`."""
    out = buffer(len(dst), np.float64)
    given = as_readonly(shares), as_readonly(dst), as_readonly(src)

    def compiled_block(lo: int, hi: int) -> None:
        if not _emd(*given, lo, hi, out):
            check_ids(len(shares), dst, src)

    def numpy_block(lo: int, hi: int) -> None:
        check_ids(len(shares), dst[lo:hi], src[lo:hi])
        out[lo:hi] = np.abs(shares[dst[lo:hi]] - shares[src[lo:hi]]).sum(axis=1)

    few_classes = shares.shape[1] <= _MOST_CLASSES
    run_in_blocks(compiled_block if few_classes else numpy_block, len(dst), _BLOCK)
    return out


def second_phase_of_links(
    pulls: PairCounts, t: int, staleness: Ints
) -> Callable[[Ints, Ints], Floats]:
    """Return p_2 as a function of links; see `dystop.control.priority.second_phase_of_links`."""
    counted = pulls.n, as_readonly(pulls.keys), as_readonly(pulls.counts)
    small = as_readonly(staleness.astype(np.int32))  # more of them fit a processor's cache

    def priority(dst: Ints, src: Ints) -> Floats:
        out = np.empty(len(dst))
        if not _second_phase(counted, t, small, (as_readonly(dst), as_readonly(src)), out):
            check_ids(len(small), dst, src)
        return out

    return priority


@compiled
def _emd(shares: Floats, dst: Ints, src: Ints, lo: int, hi: int, out: Floats) -> bool:
    """Write eq:EMD of pairs lo to hi; return False where an id is out of bounds."""
    rows, seen = shares.shape[0], 0.0
    for begin in range(lo, hi, _PREFETCHED):
        end = min(begin + _PREFETCHED, hi)
        for k in range(begin, end):
            if not (0 <= dst[k] < rows and 0 <= src[k] < rows):
                return False
        seen += _prefetch(shares, src, begin, end)
        for k in range(begin, end):
            out[k] = _row_distance(shares, dst[k], src[k])
    return seen >= 0.0  # shares are not negative, so this holds and keeps the reads alive


@compiled
def _prefetch(shares: Floats, src: Ints, lo: int, hi: int) -> float:
    """Read both ends of some rows in a loop of its own, so that many reads overlap."""
    seen, last = 0.0, shares.shape[1] - 1
    for k in range(lo, hi):
        seen += shares[src[k], 0] + shares[src[k], last]
    return seen


@compiled
def _row_distance(shares: Floats, i: int, j: int) -> float:
    """Return the sum of absolute differences of two rows."""
    classes = shares.shape[1]
    end, total = classes - classes % _PARTIAL_SUMS, 0.0
    if end > 0:
        r0 = r1 = r2 = r3 = r4 = r5 = r6 = r7 = 0.0
        for k in range(0, end, _PARTIAL_SUMS):
            r0 += abs(shares[i, k] - shares[j, k])
            r1 += abs(shares[i, k + 1] - shares[j, k + 1])
            r2 += abs(shares[i, k + 2] - shares[j, k + 2])
            r3 += abs(shares[i, k + 3] - shares[j, k + 3])
            r4 += abs(shares[i, k + 4] - shares[j, k + 4])
            r5 += abs(shares[i, k + 5] - shares[j, k + 5])
            r6 += abs(shares[i, k + 6] - shares[j, k + 6])
            r7 += abs(shares[i, k + 7] - shares[j, k + 7])
        total = ((r0 + r1) + (r2 + r3)) + ((r4 + r5) + (r6 + r7))
    for k in range(end, classes):
        total += abs(shares[i, k] - shares[j, k])
    return total


@compiled
def _second_phase(
    counted: tuple[int, Ints, Ints], t: int, staleness: Ids, link: Pair, out: Floats
) -> bool:
    """Write p_2 of links (dst, src) from pull counts (n, keys, counts); False: id out of bounds."""
    n, keys, counts = counted
    at, gap = 0, np.empty(_CHUNK, np.int64)
    for lo in range(0, len(out), _CHUNK):
        size = min(_CHUNK, len(out) - lo)
        if not _staleness_gaps(staleness, link, lo, size, gap):
            return False
        for k in range(size):
            wanted, pulls = link[0][lo + k] * n + link[1][lo + k], 0
            at = seek(keys, wanted, at)
            if at < len(keys) and keys[at] == wanted:
                pulls = counts[at]
            out[lo + k] = (1.0 - pulls / t) / (1.0 + abs(gap[k]))
    return True


@compiled
def _staleness_gaps(staleness: Ids, link: Pair, lo: int, size: int, gap: Ints) -> bool:
    """Write differences of staleness in a loop of its own, so that many reads overlap."""
    workers = len(staleness)
    for k in range(size):
        i, j = link[0][lo + k], link[1][lo + k]
        if not (0 <= i < workers and 0 <= j < workers):
            return False
        gap[k] = staleness[i] - staleness[j]
    return True
