"""Compiled timetables of rounds with few links (`dystop.control.laws`).

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
    TABLE,
    compiled,
    compiled_for,
)
from dystop.control.laws import Law, Timetable
from dystop.control.time_spent import SpentParts
from dystop.plan import Links, Mix, Plan
from dystop.sparse import Bools, Floats, Ints
from dystop.types import View
from dystop.world.progress import SAME_S, Progress, Table

Columns = tuple[Ints, Ints, Ints, Bools, Bools]  # (dst, src, stage, background, pushed)
_LINKS = (INTS, INTS, INTS, BOOLS, BOOLS)


def timetable(
    law: Law, plan: Plan, link_s: Floats, remaining_s: Floats, training_s: Floats
) -> Timetable:
    """Return the events of a round; see `dystop.control.laws.timetable`."""
    links, is_paper = plan.links, not law.starts_alone
    fed = links.pushed if is_paper else fed_links(links, plan.mixes)  # the paper's law asks nobody
    flags = is_paper, plan.synchronous, plan.join
    seconds = link_s, remaining_s, training_s
    of_active, of_links = np.empty((2, len(plan.active))), np.zeros((2, len(link_s)))
    out = of_active, of_links
    duration_s = _timetable(plan.active, _columns(links), fed, seconds, flags, out)
    return Timetable(duration_s, *of_active, *of_links)


def time_use(
    law: Law,
    view: View,
    plan: Plan,
    progress: Progress,
    link_s: Floats,
    table: Timetable,
    training_s: Floats,
) -> tuple[Floats, SpentParts, Bools]:
    """Return what workers do with their time; see `dystop.world.realised_plan.time_use`."""
    under_way = progress.started_s, progress.training_s, view.remaining_s
    begun = link_s, training_s, table.comm_s, table.begin_s, table.link_begin_s
    now_s = view.now_s, table.duration_s
    flags = not law.starts_alone, plan.join, plan.synchronous
    of_all, of_active = np.empty((3, len(view.alive))), np.empty((3, len(plan.active)))
    stale, links = np.empty(len(link_s), bool), _columns(plan.links)
    out = of_all, of_active, stale
    workers = plan.active, view.alive
    present = _time_use(workers, links, under_way, begun, now_s, flags, out)
    idle_s, busy_s, late_s = of_all
    return idle_s, (busy_s[:present], late_s[:present], *of_active), stale


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


@compiled_for(
    (INTS, BOOLS),
    _LINKS,
    (FLOATS, FLOATS, FLOATS),
    (FLOATS, FLOATS, FLOATS, FLOATS, FLOATS),
    (FLOAT, FLOAT),
    (BOOL, BOOL, BOOL),
    (TABLE, TABLE, FLAGS),
)
def _time_use(
    workers: tuple[Ints, Bools],
    links: Columns,
    under_way: tuple[Floats, Floats, Floats],
    begun: tuple[Floats, Floats, Floats, Floats, Floats],
    now_s: tuple[float, float],
    flags: tuple[bool, bool, bool],
    out: tuple[Table, Table, Bools],
) -> int:
    """Write what `time_use` returns; return how many workers are present.

    Args:
        workers: Which are active, and whether each is present.
        links: Their columns.
        under_way: When trainings started, how long they are, and how much of them remains.
        begun: Seconds of links and new trainings, exchanges, when trainings begin, and links.
        now_s: When the round opens, and how long it lasts.
        flags: Whether the law is the paper's, trainings are joined, and exchanges synchronous.
        out: Idle seconds and parts of present workers [3, N], parts of active ones [3, A], and
            which links read a model while its sender trains, [L].
    """
    (active, alive), (opens_s, duration_s) = workers, now_s
    started_s, length_s, remaining_s = under_way
    link_s, training_s, _, begin_s, link_begin_s = begun
    own_s = np.empty(len(active))
    for a in range(len(active)):
        own_s[a] = _exchange_s(active[a], links, link_s)
    of_all, of_active, stale = out
    _spare_s(workers, remaining_s, own_s, begun, duration_s, flags, of_all[0])
    _spent_by_active(duration_s, remaining_s, active, (own_s, begin_s, training_s), of_active)
    _sender_trains(active, links, (started_s, length_s, link_begin_s), opens_s, flags[2], stale)
    return _spent_before(duration_s, alive, started_s, opens_s, remaining_s, of_all[1:])


@compiled
def _sender_trains(
    active: Ints,
    links: Columns,
    seconds: tuple[Floats, Floats, Floats],
    opens_s: float,
    synchronous: bool,
    out: Bools,
) -> None:
    """Write which links read a model while its sender trains, [L]."""
    (_, src, stage, _, pushed), (started_s, training_s, begin_s) = links, seconds
    for k in range(len(src)):
        out[k] = started_s[src[k]] + training_s[src[k]] > opens_s + begin_s[k] + SAME_S
        if out[k] and (pushed[k] or stage[k] > 0 or synchronous):
            for a in range(len(active)):
                out[k] &= active[a] != src[k]


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


@compiled
def _clipped(value: float, low: float, high: float) -> float:
    """Return a number inside of bounds, or NaN, as `np.clip` does."""
    value = low if value < low else value
    return high if value > high else value


@compiled
def _spent_before(
    duration_s: float,
    alive: Bools,
    started_s: Floats,
    opens_s: float,
    training_end_s: Floats,
    out: Table,
) -> int:
    """Write the seconds of work from earlier rounds, and of exchanges; return how many work."""
    (busy, late), count = (out[0], out[1]), 0
    for i in range(len(alive)):
        if alive[i]:
            busy[count] = _clipped(training_end_s[i], 0.0, duration_s)
            late[count] = _clipped(started_s[i] - opens_s, 0.0, busy[count])
            count += 1
    return count


@compiled
def _spent_by_active(
    duration_s: float,
    training_end_s: Floats,
    active: Ints,
    new: tuple[Floats, Floats, Floats],
    out: Table,
) -> None:
    """Write the seconds that active workers train, exchange, and wait for others."""
    transfer_s, begin_s, training_s = new
    for a in range(len(active)):
        first = _clipped(training_end_s[active[a]], 0.0, duration_s)
        begin = _clipped(begin_s[a], first, duration_s)
        end = _clipped(begin_s[a] + training_s[a], begin, duration_s)
        waiting = min(max(begin_s[a] - first - transfer_s[a], 0.0), begin - first)
        out[0, a], out[1, a] = end - begin, begin - first - waiting
        out[2, a] = waiting + duration_s - end


@compiled_for(INTS, _LINKS, BOOLS, (FLOATS, FLOATS, FLOATS), (BOOL, BOOL, BOOL), (TABLE, TABLE))
def _timetable(
    active: Ints,
    links: Columns,
    fed: Bools,
    seconds: tuple[Floats, Floats, Floats],
    flags: tuple[bool, bool, bool],
    out: tuple[Table, Table],
) -> float:
    """Return the duration of a round, and write the other fields of a `Timetable`.

    Args:
        active: Active workers.
        links: Their columns.
        fed: Which links bring a source of a row; the paper's law does not ask.
        seconds: Of each link, remaining of each node, of the new training of each active worker.
        flags: Whether the law is the paper's, exchanges are synchronous, and trainings are joined.
        out: Exchanges and beginnings [2, A]; beginnings, which are zero so far, and ends [2, L].
    """
    (link_s, remaining_s, training_s), (is_paper, synchronous, join) = seconds, flags
    ready = np.zeros(len(remaining_s))  # an inactive worker serves its model immediately
    for a in range(len(active)):
        ready[active[a]] = remaining_s[active[a]]
    (comm, starts), (begin, end), duration = (out[0][0], out[0][1]), (out[1][0], out[1][1]), 0.0
    first, last = _stages(links[2])
    for s in range(first, last):
        _begin_stage(s, links, is_paper, synchronous, ready, begin)
        _end_stage(s, links, fed, is_paper, link_s, begin, ready)
    for k in range(len(link_s)):
        end[k] = begin[k] + link_s[k]
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
    return duration


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


@compiled
def _spare_s(
    workers: tuple[Ints, Bools],
    remaining_s: Floats,
    own_s: Floats,
    begun: tuple[Floats, Floats, Floats, Floats, Floats],
    duration_s: float,
    flags: tuple[bool, bool, bool],
    out: Floats,
) -> None:
    """Write the idle seconds of every worker, [N]; an absent one counts as busy."""
    (active, alive), (is_paper, join, _) = workers, flags
    _, training_s, comm_s, begin_s, _ = begun
    for i in range(len(out)):
        out[i] = _larger(duration_s - (remaining_s[i] if alive[i] else np.inf), 0.0)
    for a in range(len(active)):
        i, joined = active[a], training_s[a] if join else 0.0
        if is_paper:
            out[i] = _larger(out[i] - comm_s[a] - joined, 0.0)
        else:
            early = duration_s - begin_s[a] - joined if join else 0.0
            out[i] = _larger(comm_s[a] - own_s[a], 0.0) + _larger(early, 0.0)
