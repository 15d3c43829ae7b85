"""Compiled timetables of rounds with few links (`dystop.control.timing`).

NumPy needs about a microsecond for each of the fifty steps of a timetable, whether a round has two
links or a thousand. Here a link takes nanoseconds.
"""

import numpy as np

from dystop.compiled import (
    BOOL,
    BOOLS,
    FLAGS,
    FLOAT,
    FLOATS,
    INT,
    INTS,
    compiled,
    compiled_for,
)
from dystop.control.time_spent import NewWork
from dystop.control.timing import Timetable, Timing
from dystop.plan import Links, Mix, Plan
from dystop.sparse import Bools, Floats, Ints
from dystop.world.progress import SAME_S, Progress

Columns = tuple[Ints, Ints, Ints, Bools, Bools]  # (dst, src, stage, background, pushed)
_LINKS = (INTS, INTS, INTS, BOOLS, BOOLS)


def few_times(
    law: Timing, plan: Plan, link_s: Floats, remaining_s: Floats, training_s: Floats
) -> Timetable:
    """Return the events of a round; see `dystop.control.timing.timetable`."""
    links, is_paper = plan.links, law == "paper"
    fed = links.pushed if is_paper else fed_links(links, plan.mixes)  # the paper's law asks nobody
    flags = is_paper, plan.synchronous, plan.join
    seconds = link_s, remaining_s, training_s
    return Timetable(*_timetable(plan.active, _columns(links), fed, seconds, flags))


def spare_s(
    law: Timing,
    table: Timetable,
    plan: Plan,
    link_s: Floats,
    remaining_s: Floats,
    training_s: Floats,
) -> Floats:
    """Return the idle seconds of every worker; see `dystop.control.timing.spare_s`."""
    seconds = link_s, remaining_s, training_s, table.comm_s, table.begin_s
    flags = law == "paper", plan.join
    return _spare_s(plan.active, _columns(plan.links), seconds, table.duration_s, flags)


def sender_trains(plan: Plan, progress: Progress, begin_s: Floats) -> Bools:
    """Return which senders still train; see `dystop.world.realised_plan.sender_trains`."""
    seconds = progress.started_s, progress.training_s, begin_s
    return _sender_trains(plan.active, _columns(plan.links), seconds, plan.synchronous)


def active_exchange_s(plan: Plan, link_s: Floats, nodes: int) -> Floats:
    """Return the exchange of active workers; see `dystop.control.timing.active_exchange_s`."""
    return _active_exchange_s(plan.active, _columns(plan.links), link_s)


def spent_parts(
    duration_s: float,
    alive: Bools,
    exchange_end_s: Floats,
    training_end_s: Floats,
    new: NewWork,
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """Return what workers do with their time; see `dystop.control.time_spent.spent_parts`."""
    before = exchange_end_s, training_end_s
    begun = new.transfer_s, new.begin_s, new.end_s
    return (
        *_spent_before(duration_s, alive, *before),
        *_spent_by_active(duration_s, training_end_s, new.active, begun),
    )


def _columns(links: Links) -> Columns:
    return links.dst, links.src, links.stage, links.background, links.pushed


def fed_links(links: Links, mixes: tuple[Mix, ...]) -> Bools:
    """Return which links bring a source of a row of their stage, [L]."""
    fed = np.zeros(len(links), bool)
    for stage, mix in enumerate(mixes):
        _feed((mix.receiver, mix.indptr, mix.source), links.dst, links.src, links.stage, stage, fed)
    return fed


@compiled_for((INTS, INTS, INTS), INTS, INTS, INTS, INT, FLAGS)
def _feed(
    rows: tuple[Ints, Ints, Ints], dst: Ints, src: Ints, stages: Ints, stage: int, out: Bools
) -> None:
    """Note which links of a stage bring a source of one of its rows."""
    receiver, indptr, source = rows
    for link in range(len(dst)):
        for r in range(len(receiver)):
            if stages[link] == stage and receiver[r] == dst[link]:
                for k in range(indptr[r], indptr[r + 1]):
                    out[link] |= source[k] == src[link]


@compiled_for(INTS, _LINKS, (FLOATS, FLOATS, FLOATS), BOOL)
def _sender_trains(
    active: Ints, links: Columns, seconds: tuple[Floats, Floats, Floats], synchronous: bool
) -> Bools:
    """Return which links read a model while its sender trains, [L]."""
    (_, src, stage, _, pushed), (started_s, training_s, begin_s) = links, seconds
    out = np.empty(len(src), np.bool_)
    for k in range(len(src)):
        out[k] = started_s[src[k]] + training_s[src[k]] > begin_s[k] + SAME_S
        if out[k] and (pushed[k] or stage[k] > 0 or synchronous):
            for a in range(len(active)):
                out[k] &= active[a] != src[k]
    return out


@compiled
def _larger(a: float, b: float) -> float:
    """Return the larger number, or NaN where there is one, as `np.maximum` does."""
    return a if a >= b or a != a else b


@compiled
def _stages(stage: Ints) -> tuple[int, int]:
    """Return the first stage of some links, and the one after the last."""
    first, end = 0, 0
    for k in range(len(stage)):
        first = stage[k] if k == 0 or stage[k] < first else first
        end = max(end, stage[k] + 1)
    return first, end


@compiled
def _exchange_s(worker: int, links: Columns, link_s: Floats) -> float:
    """Return the exchange seconds of a worker: per stage, the slowest link charged to it."""
    dst, src, stage, background, pushed = links
    total = 0.0
    first, end = _stages(stage)
    for s in range(first, end):
        slowest = 0.0
        for k in range(len(dst)):
            payer = src[k] if pushed[k] else dst[k]
            if stage[k] == s and payer == worker and not background[k]:
                slowest = _larger(slowest, link_s[k])
        total += slowest
    return total


@compiled_for(INTS, _LINKS, FLOATS)
def _active_exchange_s(active: Ints, links: Columns, link_s: Floats) -> Floats:
    """Return the exchange seconds of each active worker."""
    out = np.empty(len(active))
    for a in range(len(active)):
        out[a] = _exchange_s(active[a], links, link_s)
    return out


@compiled
def _clipped(value: float, low: float, high: float) -> float:
    """Return a number inside of bounds, or NaN, as `np.clip` does."""
    value = low if value < low else value
    return high if value > high else value


@compiled_for(FLOAT, BOOLS, FLOATS, FLOATS)
def _spent_before(
    duration_s: float, alive: Bools, exchange_end_s: Floats, training_end_s: Floats
) -> tuple[Floats, Floats]:
    """Return the seconds of work from earlier rounds, and those of exchanges among them."""
    busy, late, count = np.empty(len(alive)), np.empty(len(alive)), 0
    for i in range(len(alive)):
        if alive[i]:
            busy[count] = _clipped(training_end_s[i], 0.0, duration_s)
            late[count] = _clipped(exchange_end_s[i], 0.0, busy[count])
            count += 1
    return busy[:count], late[:count]


@compiled_for(FLOAT, FLOATS, INTS, (FLOATS, FLOATS, FLOATS))
def _spent_by_active(
    duration_s: float, training_end_s: Floats, active: Ints, new: tuple[Floats, Floats, Floats]
) -> tuple[Floats, Floats, Floats]:
    """Return the seconds that active workers train, exchange, and wait for others."""
    transfer_s, begin_s, end_s = new
    trains, moves, waits = np.empty(len(active)), np.empty(len(active)), np.empty(len(active))
    for a in range(len(active)):
        first = _clipped(training_end_s[active[a]], 0.0, duration_s)
        begin = _clipped(begin_s[a], first, duration_s)
        end = _clipped(end_s[a], begin, duration_s)
        waiting = min(max(begin_s[a] - first - transfer_s[a], 0.0), begin - first)
        trains[a], moves[a] = end - begin, begin - first - waiting
        waits[a] = waiting + duration_s - end
    return trains, moves, waits


@compiled_for(INTS, _LINKS, BOOLS, (FLOATS, FLOATS, FLOATS), (BOOL, BOOL, BOOL))
def _timetable(
    active: Ints,
    links: Columns,
    fed: Bools,
    seconds: tuple[Floats, Floats, Floats],
    flags: tuple[bool, bool, bool],
) -> tuple[float, Floats, Floats, Floats, Floats]:
    """Return the fields of a `Timetable`.

    Args:
        active: Active workers.
        links: Their columns.
        fed: Which links bring a source of a row; the paper's law does not ask.
        seconds: Of each link, remaining of each node, of the new training of each active worker.
        flags: Whether the law is the paper's, exchanges are synchronous, and trainings are joined.
    """
    (link_s, remaining_s, training_s), (is_paper, synchronous, join) = seconds, flags
    ready = np.zeros(len(remaining_s))  # an inactive worker serves its model immediately
    for a in range(len(active)):
        ready[active[a]] = remaining_s[active[a]]
    begin, end = np.zeros(len(link_s)), np.empty(len(link_s))
    first, last = _stages(links[2])
    for s in range(first, last):
        _begin_stage(s, links, is_paper, synchronous, ready, begin)
        _end_stage(s, links, fed, is_paper, link_s, begin, ready)
    for k in range(len(link_s)):
        end[k] = begin[k] + link_s[k]
    comm, starts, duration = np.empty(len(active)), np.empty(len(active)), 0.0
    for a in range(len(active)):
        left = remaining_s[active[a]]
        comm[a] = _exchange_s(active[a], links, link_s) if is_paper else ready[active[a]] - left
        starts[a] = ready[active[a]]
        duration = _larger(duration, left + comm[a] if is_paper else left)
    if is_paper:
        starts[:] = duration
    if join:
        duration = 0.0
        for a in range(len(active)):
            duration = _larger(duration, starts[a] + training_s[a])
    return duration, comm, starts, begin, end


@compiled
def _begin_stage(
    s: int, links: Columns, is_paper: bool, synchronous: bool, ready: Floats, begin: Floats
) -> None:
    """Write when the links of a stage begin, from when each node is ready."""
    dst, src, stage, _, pushed = links
    for k in range(len(dst)):
        if stage[k] != s:
            continue
        begin[k] = ready[src[k]] if pushed[k] else ready[dst[k]]
        if s > 0 or (synchronous and not is_paper):
            other = ready[dst[k]] if pushed[k] and not is_paper else ready[src[k]]
            begin[k] = _larger(begin[k], other)


@compiled
def _end_stage(
    s: int,
    links: Columns,
    fed: Bools,
    is_paper: bool,
    link_s: Floats,
    begin: Floats,
    ready: Floats,
) -> None:
    """Write when each node is ready for the next stage."""
    dst, src, stage, background, pushed = links
    for k in range(len(dst)):
        if stage[k] != s or background[k]:
            continue
        payer, end = src[k] if pushed[k] else dst[k], begin[k] + link_s[k]
        ready[payer] = _larger(ready[payer], end)
        if not is_paper and fed[k]:
            ready[dst[k]] = _larger(ready[dst[k]], end)


@compiled_for(INTS, _LINKS, (FLOATS, FLOATS, FLOATS, FLOATS, FLOATS), FLOAT, (BOOL, BOOL))
def _spare_s(
    active: Ints,
    links: Columns,
    seconds: tuple[Floats, Floats, Floats, Floats, Floats],
    duration_s: float,
    flags: tuple[bool, bool],
) -> Floats:
    """Return the idle seconds of every worker, [N]; the arguments are those of `spare_s`."""
    link_s, remaining_s, training_s, comm_s, begin_s = seconds
    is_paper, join = flags
    out = np.empty(len(remaining_s))
    for i in range(len(out)):
        out[i] = _larger(duration_s - remaining_s[i], 0.0)
    for a in range(len(active)):
        i, joined = active[a], training_s[a] if join else 0.0
        if is_paper:
            out[i] = _larger(out[i] - comm_s[a] - joined, 0.0)
        else:
            own = _exchange_s(i, links, link_s)
            early = duration_s - begin_s[a] - joined if join else 0.0
            out[i] = _larger(comm_s[a] - own, 0.0) + _larger(early, 0.0)
    return out
