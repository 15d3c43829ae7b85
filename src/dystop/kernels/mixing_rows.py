"""Compiled rows of mixing weights (eq:aggregation): build them by data size, and check them."""

from functools import reduce
from operator import or_

import numpy as np
from numpy.typing import NDArray

from dystop.compiled import (
    BOOLS,
    FLOAT,
    FLOATS,
    INT,
    INTS,
    compiled,
    compiled_dense,
    compiled_for,
)
from dystop.control.plan_check import ALL, NEGATIVE, UNEVEN, UNLINKED, UNSORTED
from dystop.kernels.buffers import buffer
from dystop.kernels.pairs import AnyRows
from dystop.parallel import as_readonly, run_in_blocks
from dystop.plan import Links, Mix
from dystop.sparse import Bools, Floats, Ids, Ints, Rows, check_ids
from dystop.types import Mailbox

Vector = NDArray[np.float32]

_ROWS_TYPE = (INTS, INTS, INTS)  # receiver, indptr, source
_LINKS_TYPE = (INTS, INTS, INTS)  # dst, src, stage
_MAIL_TYPE = (INTS, INTS)  # dst, src

_ROWS = 1 << 15  # rows in one block
_CHUNK = 64  # rows whose data sizes are read before their weights are computed


def size_rows(receiver: Ints, pulled: Rows, data_size: Ints) -> Mix:
    """Return rows of weights by data size; see `dystop.control.aggregation.size_rows`."""
    n, linked = len(data_size), len(pulled.indptr) - 1
    check_ids(n, pulled.value)
    if linked > n:
        check_ids(n, pulled.row_of)
    own, count = np.zeros(n, bool), np.zeros(n, np.int64)
    own[receiver] = True
    count[:linked] = np.diff(pulled.indptr)[:n]
    indptr = np.concatenate([[0], np.cumsum(count + own)])
    ends = np.concatenate([pulled.indptr[: n + 1], np.full(max(0, n - linked), pulled.indptr[-1])])
    links = as_readonly(ends), as_readonly(pulled.value)
    given = as_readonly(own), as_readonly(data_size), as_readonly(indptr)
    out = buffer(indptr[-1], np.int64), buffer(indptr[-1], np.float64)
    run_in_blocks(lambda lo, hi: _fill_rows(links, *given, out, (lo, hi)), n, _ROWS)
    some = np.flatnonzero(np.diff(indptr))
    return Mix(some, np.append(indptr[some], indptr[-1]), *out)


def mix_violations(mix: Mix, linked: Rows, tolerance: float) -> int:
    """Return what may be wrong with mixing rows; see `dystop.control.plan_check.mix_violations`."""
    rows = as_readonly(mix.indptr), as_readonly(mix.source)
    pulls = as_readonly(linked.indptr), as_readonly(linked.value)
    receiver, weight, found = as_readonly(mix.receiver), as_readonly(mix.weight), list[int]()

    def look(lo: int, hi: int) -> None:
        found.append(_mix_violations(receiver, rows, weight, pulls, tolerance, (lo, hi)))

    run_in_blocks(look, len(receiver), _ROWS)
    return reduce(or_, found, 0)


def violations(
    mix: Mix, links: Links, mailbox: Mailbox, stage: int, nodes: int, tolerance: float
) -> int:
    """Return what may be wrong; see `dystop.control.plan_check.violations`."""
    mail = mailbox.to(mix.receiver)
    brought = (links.dst, links.src, links.stage), (mail.dst, mail.src)
    return _few_violations(_rows(mix), mix.weight, *brought, stage, nodes, tolerance)


def sources_of(
    mix: Mix, links: Links, mailbox: Mailbox, stage: int, nodes: int
) -> tuple[Bools, Bools]:
    """Return where models come from; see `dystop.control.plan_check.sources_of`."""
    mail = mailbox.to(mix.receiver)
    brought = (links.dst, links.src, links.stage), (mail.dst, mail.src)
    return _sources_of(_rows(mix), *brought, stage)


def to_send(links: Links, rows: Mix, stage: int, lost: Bools) -> tuple[Ints, Floats]:
    """Return what no row uses now; see `dystop.simulator.mailbox.to_send`."""
    columns = links.dst, links.src, links.stage
    return _to_send(_rows(rows), rows.weight, columns, links.background, lost, stage)


def _rows(mix: Mix) -> tuple[Ints, Ints, Ints]:
    return mix.receiver, mix.indptr, mix.source


def square_sum(vector: Vector) -> float:
    """Return the sum of squares; see `dystop.exchange.rules.square_sum`."""
    return _square_sum(as_readonly(vector))


def square_gap(a: Vector, b: Vector) -> float:
    """Return the sum of squared differences; see `dystop.exchange.rules.square_gap`."""
    return _square_gap(as_readonly(a), as_readonly(b))


@compiled
def _fill_rows(
    links: tuple[Ints, Ids],
    own: Bools,
    size: Ints,
    indptr: Ints,
    out: tuple[Ints, Floats],
    rows: tuple[int, int],
) -> None:
    """Write the sources of each row, the own model included where `own` is set, and their weights.

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
        for k in range(indptr[first], indptr[end]):  # a loop of its own: many reads overlap
            weight[k] = size[source[k]]
        for i in range(first, end):
            _normalise(weight, indptr[i], indptr[i + 1])


@compiled
def _list_sources(links: tuple[Ints, Ids], own: bool, i: int, at: int, source: Ints) -> None:
    """Write the senders of row i in id order, and i itself where `own` is set."""
    for k in range(links[0][i], links[0][i + 1]):
        if own and i <= links[1][k]:
            source[at], own, at = i, False, at + 1
        source[at] = links[1][k]
        at += 1
    if own:
        source[at] = i


@compiled
def _normalise(weight: Floats, lo: int, hi: int) -> None:
    """Divide some weights by their sum."""
    total = 0.0
    for k in range(lo, hi):
        total += weight[k]
    for k in range(lo, hi):
        weight[k] /= total


@compiled
def _mix_violations(
    receiver: Ints,
    rows: AnyRows,
    weight: Floats,
    linked: AnyRows,
    tolerance: float,
    part: tuple[int, int],
) -> int:
    """Return the flags of some rows, combined."""
    out = 0
    for r in range(part[0], part[1]):
        lo, hi = rows[0][r], rows[0][r + 1]
        out |= _weight_flags(weight, lo, hi, tolerance)
        out |= _source_flags(rows[1], lo, hi, receiver[r], linked)
    return out


@compiled
def _weight_flags(weight: Floats, lo: int, hi: int, tolerance: float) -> int:
    """Return UNEVEN and NEGATIVE where they hold for one row."""
    out, total = 0, 0.0
    for k in range(lo, hi):
        total += weight[k]
        if weight[k] < 0:
            out |= NEGATIVE
    return out if abs(total - 1.0) <= tolerance else out | UNEVEN


@compiled
def _source_flags(source: Ints | Ids, lo: int, hi: int, own: int, linked: AnyRows) -> int:
    """Walk along the sources and the links of one worker; return UNSORTED and UNLINKED."""
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
            out |= UNLINKED
    return out


@compiled_for(_ROWS_TYPE, FLOATS, _LINKS_TYPE, _MAIL_TYPE, INT, INT, FLOAT)
def _few_violations(
    mix: tuple[Ints, Ints, Ints],
    weight: Floats,
    links: tuple[Ints, Ints, Ints],
    mail: tuple[Ints, Ints],
    stage: int,
    nodes: int,
    tolerance: float,
) -> int:
    """Return the flags of all rows (receiver, indptr, source), combined."""
    receiver, indptr, source = mix
    if not _fits(receiver, indptr, len(source), len(weight), nodes):
        return ALL
    out = 0
    for r in range(len(receiver)):
        out |= _weight_flags(weight, indptr[r], indptr[r + 1], tolerance)
        last = -1
        for k in range(indptr[r], indptr[r + 1]):
            i, j = receiver[r], source[k]
            if j <= last:
                out |= UNSORTED
            last = j
            if j != i and not (_has_link(links, stage, i, j) or _has_mail(mail, i, j)):
                out |= UNLINKED
    return out


@compiled
def _fits(receiver: Ints, indptr: Ints, sources: int, weights: int, nodes: int) -> bool:
    """Return whether the arrays of a mix fit together, and its receivers exist and ascend."""
    if len(indptr) != len(receiver) + 1 or indptr[0] != 0:
        return False
    if indptr[-1] != sources or sources != weights:
        return False
    last = -1
    for r in range(len(receiver)):
        if indptr[r + 1] < indptr[r] or receiver[r] <= last or receiver[r] >= nodes:
            return False
        last = receiver[r]
    return True


@compiled_for(_ROWS_TYPE, _LINKS_TYPE, _MAIL_TYPE, INT)
def _sources_of(
    mix: tuple[Ints, Ints, Ints],
    links: tuple[Ints, Ints, Ints],
    mail: tuple[Ints, Ints],
    stage: int,
) -> tuple[Bools, Bools]:
    """Return which weights apply to a link and which to a message."""
    receiver, indptr, source = mix
    linked, mailed = np.zeros(len(source), np.bool_), np.zeros(len(source), np.bool_)
    for r in range(len(receiver)):
        for k in range(indptr[r], indptr[r + 1]):
            i, j = receiver[r], source[k]
            if j != i:
                linked[k] = _has_link(links, stage, i, j)
                mailed[k] = not linked[k] and _has_mail(mail, i, j)
    return linked, mailed


@compiled_for(_ROWS_TYPE, FLOATS, _LINKS_TYPE, BOOLS, BOOLS, INT)
def _to_send(
    rows: tuple[Ints, Ints, Ints],
    weight: Floats,
    links: tuple[Ints, Ints, Ints],
    background: Bools,
    lost: Bools,
    stage: int,
) -> tuple[Ints, Floats]:
    """Return the links that no row uses now, and the weight of those in the background."""
    dst, src, stages = links
    sent, share, count = np.empty(len(dst), np.int64), np.empty(len(dst)), 0
    for link in range(len(dst)):
        if stages[link] != stage or lost[link]:
            continue
        at = _weight_of(rows, dst[link], src[link])
        if background[link] or at < 0:
            is_mixed = background[link] and at >= 0
            sent[count], share[count] = link, weight[at] if is_mixed else np.nan
            count += 1
    return sent[:count], share[:count]


@compiled
def _weight_of(rows: tuple[Ints, Ints, Ints], i: int, j: int) -> int:
    """Return the number of the weight of source j in the row of i, or -1."""
    receiver, indptr, source = rows
    for r in range(len(receiver)):
        if receiver[r] == i:
            for k in range(indptr[r], indptr[r + 1]):
                if source[k] == j:
                    return k
    return -1


@compiled
def _has_link(links: tuple[Ints, Ints, Ints], stage: int, i: int, j: int) -> bool:
    """Return whether a link (dst, src, stage) brings the model of j to i."""
    for k in range(len(links[0])):
        if links[0][k] == i and links[1][k] == j and links[2][k] == stage:
            return True
    return False


@compiled
def _has_mail(mail: tuple[Ints, Ints], i: int, j: int) -> bool:
    """Return whether a message of j waits at i; the messages (dst, src) are sorted by dst."""
    at, end = 0, len(mail[0])
    while at < end:
        middle = (at + end) >> 1
        if mail[0][middle] < i:
            at = middle + 1
        else:
            end = middle
    while at < len(mail[0]) and mail[0][at] == i:
        if mail[1][at] == j:
            return True
        at += 1
    return False


@compiled_dense
def _square_sum(vector: Vector) -> float:
    """Return the sum of squares in double precision; not finite where an entry is not."""
    total = 0.0
    for k in range(len(vector)):
        wide = np.float64(vector[k])
        total += wide * wide
    return total


@compiled_dense
def _square_gap(a: Vector, b: Vector) -> float:
    """Return the sum of squared differences of two vectors of equal length."""
    total = 0.0
    for k in range(len(a)):
        gap = np.float64(a[k]) - np.float64(b[k])
        total += gap * gap
    return total
