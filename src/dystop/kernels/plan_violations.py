"""A first look at a plan, compiled: whether anything at all calls for the slower, naming checks."""

from dystop.compiled import compiled
from dystop.kernels.grouping import Ids
from dystop.sparse import Floats, Ints

Rows = tuple[Ints, Ints | Ids]  # (indptr, values ascending in a row)

UNSORTED, UNEVEN, NEGATIVE, LOOSE = 1, 2, 4, 8


@compiled
def rows_within(inner: Rows, outer: Rows, lo: int, hi: int) -> bool:
    """Whether rows lo to hi name only values that the same row of `outer` has."""
    for i in range(lo, hi):
        at, end = outer[0][i], outer[0][i + 1]
        for k in range(inner[0][i], inner[0][i + 1]):
            while at < end and outer[1][at] < inner[1][k]:
                at += 1
            if at == end or outer[1][at] != inner[1][k]:
                return False
    return True


@compiled
def plan_violations(
    receiver: Ints,
    rows: Rows,
    weight: Floats,
    linked: Rows,
    tolerance: float,
    part: tuple[int, int],
) -> int:
    """What may be wrong with mixing rows, as a sum of flags; 0 where all is well.

    UNSORTED: a source is not above the one before it. UNEVEN: weights do not sum to one. NEGATIVE:
    a weight is. LOOSE: a source is neither the worker itself nor the sender of a link.
    """
    out = 0
    for r in range(part[0], part[1]):
        lo, hi = rows[0][r], rows[0][r + 1]
        out |= _weights(weight, lo, hi, tolerance) | _sources(rows[1], lo, hi, receiver[r], linked)
    return out


@compiled
def _weights(weight: Floats, lo: int, hi: int, tolerance: float) -> int:
    out, total = 0, 0.0
    for k in range(lo, hi):
        total += weight[k]
        if weight[k] < 0:
            out |= NEGATIVE
    return out if abs(total - 1.0) <= tolerance else out | UNEVEN


@compiled
def _sources(source: Ints | Ids, lo: int, hi: int, own: int, linked: Rows) -> int:
    """Walk along the sources and the links of one worker side by side."""
    out, at, end, last = 0, 0, 0, -1
    if 0 <= own < len(linked[0]) - 1:
        at, end = linked[0][own], linked[0][own + 1]
    for k in range(lo, hi):
        j = source[k]
        if j <= last:
            out |= UNSORTED
        last = j
        while at < end and linked[1][at] < j:
            at += 1
        if j != own and (at == end or linked[1][at] != j):
            out |= LOOSE
    return out
