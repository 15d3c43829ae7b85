"""The inner loop of eq:EMD, compiled: no array of all differences is ever made.

Sums are taken in the order in which NumPy sums a row of an array, so that both agree to the last
bit and no priority changes: eight lanes side by side, added in pairs, then the rest.
"""

from dystop.compiled import compiled
from dystop.sparse import Floats, Ints

MOST_CLASSES = 128  # beyond, NumPy sums halves of a row: leave that to NumPy
_CHUNK = 64
_LANES = 8


@compiled
def label_distance(shares: Floats, dst: Ints, src: Ints, lo: int, hi: int, out: Floats) -> bool:
    """Sum of absolute differences of two rows of shares for pairs lo to hi; False: no such row."""
    rows, seen = shares.shape[0], 0.0
    for begin in range(lo, hi, _CHUNK):
        end = min(begin + _CHUNK, hi)
        for k in range(begin, end):
            if not (0 <= dst[k] < rows and 0 <= src[k] < rows):
                return False
        seen += _fetch(shares, src, begin, end)
        for k in range(begin, end):
            out[k] = _row(shares, dst[k], src[k])
    return seen >= 0.0  # shares are not negative: always so


@compiled
def _fetch(shares: Floats, src: Ints, lo: int, hi: int) -> float:
    """Read the ends of some rows and do nothing else: memory then serves many rows at a time."""
    seen, last = 0.0, shares.shape[1] - 1
    for k in range(lo, hi):
        seen += shares[src[k], 0] + shares[src[k], last]
    return seen


@compiled
def _row(shares: Floats, i: int, j: int) -> float:
    classes = shares.shape[1]
    end, total = classes - classes % _LANES, 0.0
    if end > 0:
        r0 = r1 = r2 = r3 = r4 = r5 = r6 = r7 = 0.0
        for k in range(0, end, _LANES):
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
