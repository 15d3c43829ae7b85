"""What changes where the surroundings are a recorded run instead of a simulated one.

The recorded facts take the place of what the simulator would have worked out: when rounds opened,
how much training was left, which mail had arrived, who waited how long for what, and who failed.
Plans, mixing and training stay the simulator's own.
"""

from dataclasses import replace

import numpy as np

from dystop.control.timing import Timetable, round_duration_s
from dystop.plan import Mix, Plan
from dystop.simulator.state import State
from dystop.sparse import Bools, Floats, Ints
from dystop.types import Mailbox
from dystop.world import Reported, WorldState


def as_recorded(state: State, around: WorldState) -> State:
    """The state with the clock, the trainings in flight and the mail of the recorded opening."""
    line = around.recorded
    if line is None:
        return state
    n = len(line.alive)
    started, training = state.started_s.copy(), state.training_s.copy()
    started[:n], training[:n] = line.opened_s, line.remaining_s
    return replace(
        state,
        books=replace(state.books, clock_s=line.opened_s),
        started_s=started,
        training_s=training,
        post=replace(state.post, arrival_s=_arrivals(state, line.mailbox, line.opened_s)),
    )


def _arrivals(state: State, seen: Mailbox, now_s: float) -> Floats:
    """When envelopes arrive: by now, if the recorded mailbox had them."""
    post = state.post
    if not len(post.dst) or not len(seen.dst):
        return post.arrival_s
    known = set(zip(seen.dst.tolist(), seen.src.tolist(), seen.sent.tolist(), strict=True))
    sent = zip(post.dst.tolist(), post.src.tolist(), post.sent.tolist(), strict=True)
    here = np.array([envelope in known for envelope in sent]) & np.isnan(post.weight)
    return np.where(here, np.minimum(post.arrival_s, now_s), post.arrival_s)


def waited_s(remaining_s: Floats, told: Reported) -> Floats:
    """Training in flight of every node: for those that had to finish it first, as measured."""
    out, orders = remaining_s.copy(), told.orders
    known = orders.train & np.isfinite(orders.waited_s)
    out[orders.node[known]] = orders.waited_s[known]
    return out


def trained_s(planned_s: Floats, active: Ints, told: Reported) -> Floats:
    """Length of the new training of each active worker: as measured, where it is known."""
    measured = told.train_s[active]
    return np.where(np.isfinite(measured), measured, planned_s)


def retimed(table: Timetable, plan: Plan, training_s: Floats, told: Reported) -> Timetable:
    """The timetable by the reports: a round closes when all that had an order have reported.

    Where one has failed, or did not say how long it took, the round lasts as long as it did.
    """
    orders = told.orders
    ends = orders.waited_s + orders.exchange_s
    whole = len(ends) > 0 and not orders.failed.any() and bool(np.isfinite(ends).all())
    close = round_duration_s(ends) if whole else told.duration_s
    exchanged = _of(orders.node, orders.exchange_s, plan.active)
    comm = np.where(np.isfinite(exchanged), exchanged, table.comm_s)
    begin = np.full(len(plan.active), close)
    if plan.join and whole:
        own = _of(orders.node, ends, plan.active)
        measured = np.isfinite(told.train_s[plan.active]).all()
        close = round_duration_s((own if measured else begin) + training_s)
    return replace(table, duration_s=close, comm_s=comm, begin_s=begin)


def _of(nodes: Ints, values: Floats, wanted: Ints) -> Floats:
    """Values of the wanted nodes, all of which are among the (ascending) nodes."""
    found: Floats = values[np.searchsorted(nodes, wanted)]
    return found


def failed_of(active: Ints, told: Reported | None) -> Bools:
    """Which active workers did not carry out their order."""
    if told is None:
        return np.zeros(len(active), bool)
    return np.isin(active, told.orders.node[told.orders.failed])


def carried_out(plan: Plan, told: Reported | None) -> Plan:
    """The plan without what the failed nodes were to do: they neither mix nor train."""
    if told is None or not told.orders.failed.any():
        return plan
    gone, failed = told.orders.node[told.orders.failed], failed_of(plan.active, told)
    return replace(
        plan,
        active=plan.active[~failed],
        mixes=tuple(_without(mix, gone) for mix in plan.mixes),
        steps=None if plan.steps is None else plan.steps[~failed],
        rate=None if plan.rate is None else plan.rate[~failed],
    )


def _without(mix: Mix, gone: Ints) -> Mix:
    """The rows of all other receivers."""
    stays = ~np.isin(mix.receiver, gone)
    kept = stays[mix.row_of]
    counts = np.diff(mix.indptr)[stays]
    return replace(
        mix,
        receiver=mix.receiver[stays],
        indptr=np.append(0, np.cumsum(counts)).astype(np.int64),
        source=mix.source[kept],
        weight=mix.weight[kept],
    )


def spread(values: Floats, failed: Bools) -> Floats:
    """Values of those that did not fail, in the order of all; NaN for the others."""
    if not failed.any():
        return values
    out = np.full(len(failed), np.nan)
    out[~failed] = values
    return out
