"""Rows of mixing weights by data size (eq:aggregation), compiled: one walk over the links."""

from dystop.compiled import compiled
from dystop.kernels.grouping import Ids
from dystop.sparse import Bools, Floats, Ints

_CHUNK = 64


@compiled
def fill_rows(
    links: tuple[Ints, Ids],
    own: Bools,
    size: Ints,
    indptr: Ints,
    out: tuple[Ints, Floats],
    rows: tuple[int, int],
) -> None:
    """Senders of each row and, where `own` says so, itself among them, with their shares.

    Args:
        links: (indptr, src), src ascending in a row.
        own: whether a row has its own model, [N].
        size: D_i, [N].
        indptr: where each row of the result begins, [N + 1].
        out: (source, weight) of the result.
        rows: (first, end) of the rows to fill.
    """
    source, weight = out
    for first in range(rows[0], rows[1], _CHUNK):
        end = min(first + _CHUNK, rows[1])
        for i in range(first, end):
            _list_sources(links, own[i], i, indptr[i], source)
        for k in range(indptr[first], indptr[end]):  # alone: memory then serves many at a time
            weight[k] = size[source[k]]
        for i in range(first, end):
            _divide(weight, indptr[i], indptr[i + 1])


@compiled
def _list_sources(links: tuple[Ints, Ids], own: bool, i: int, at: int, source: Ints) -> None:
    """Write the senders of row i in id order, i itself among them if `own`."""
    for k in range(links[0][i], links[0][i + 1]):
        if own and i <= links[1][k]:
            source[at], own, at = i, False, at + 1
        source[at] = links[1][k]
        at += 1
    if own:
        source[at] = i


@compiled
def _divide(weight: Floats, lo: int, hi: int) -> None:
    """Make some weights sum to one."""
    total = 0.0
    for k in range(lo, hi):
        total += weight[k]
    for k in range(lo, hi):
        weight[k] /= total
