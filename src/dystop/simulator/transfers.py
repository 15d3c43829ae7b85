"""Carry out a plan on the stack: transfers, mixing, mail, and the new local training."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from dystop.control.aggregation import renormalise_lost
from dystop.control.plan_check import source_kind
from dystop.control.timing import Timetable, idle_s, timetable
from dystop.plan import Mix, Plan
from dystop.simulator.mailbox import InFlight
from dystop.simulator.mixing import (
    Models,
    Sources,
    index,
    link_distances,
    mixed_rows,
    published_row,
    write_rows,
)
from dystop.simulator.replay import carried_out, failed_of, retimed, spread, trained_s, waited_s
from dystop.simulator.state import SAME_S, Components, State
from dystop.sparse import Bools, Floats, Ints
from dystop.training.problem import Trained
from dystop.types import Outcome, View
from dystop.world import Transfer


@dataclass(frozen=True)
class ScheduledRound:
    """A decided round with its realised transfers."""

    view: View
    plan: Plan
    transfer: Transfer
    table: Timetable
    steps: Ints  # [A]

    def carried_out(self) -> "ScheduledRound":
        """The round without the active workers that failed; only a recorded one has any."""
        if self.transfer.reported is None:
            return self
        failed = failed_of(self.plan.active, self.transfer.reported)
        plan = carried_out(self.plan, self.transfer.reported)
        table = replace(
            self.table, comm_s=self.table.comm_s[~failed], begin_s=self.table.begin_s[~failed]
        )
        return replace(self, plan=plan, table=table, steps=self.steps[~failed])


def schedule_transfers(parts: Components, state: State, view: View, plan: Plan) -> ScheduledRound:
    """What the world makes of a plan: transfers and the timetable. Changes nothing."""
    links = plan.links
    transfer = parts.world.transfer(view.t, view.now_s, links.dst, links.src, links.fraction)
    steps = parts.steps[plan.active] if plan.steps is None else plan.steps
    remaining_s, training_s = state.remaining_s, view.step_s[plan.active] * steps
    told = transfer.reported
    if told is None or not told.fits(plan.active):
        table = timetable(parts.laws.timing, plan, transfer.seconds, remaining_s, training_s)
        return ScheduledRound(view, plan, replace(transfer, reported=None), table, steps)
    remaining_s = waited_s(remaining_s, told)
    training_s = trained_s(training_s, plan.active, told)
    table = timetable(parts.laws.timing, plan, transfer.seconds, remaining_s, training_s)
    return ScheduledRound(view, plan, transfer, retimed(table, plan, training_s, told), steps)


@dataclass(frozen=True)
class PendingOutcome:
    """A round under way: all that is known of its outcome before the device has trained."""

    known: Outcome  # its losses are not numbers yet
    losses: Floats | Callable[[], Floats]  # not the models: a stack of them would stay alive

    def land(self) -> Outcome:
        """Wait for the losses."""
        loss = self.losses() if callable(self.losses) else self.losses
        return replace(self.known, loss=spread(loss, self.known.failed))


def execute(parts: Components, state: State, turn: ScheduledRound) -> tuple[PendingOutcome, State]:
    """Move models, mix them, let the active workers train; does not wait for a device."""
    whole, turn = turn, turn.carried_out()
    plan = turn.plan
    finished = state.models.finished
    at = index(plan.active, state.models.latest)
    before = state.models.latest[at] if finished is not None else None
    measured = "distance" in parts.mechanism.capabilities().needs
    distance = _distances(state, turn) if measured else None
    state = _mix(parts, state, turn)
    trained = _train(parts, state, turn)
    if finished is not None and before is not None:
        finished[at] = before
    known = _outcome(parts, state, whole, trained.samples)
    return PendingOutcome(replace(known, distance=distance), trained.losses), _start_training(
        state, turn
    )


def _outcome(parts: Components, state: State, turn: ScheduledRound, samples: int) -> Outcome:
    plan, view = turn.plan, turn.view
    return Outcome(
        duration_s=turn.table.duration_s,
        comm_s=turn.table.comm_s,
        link_s=turn.transfer.seconds,
        link_bytes=_link_bytes(parts, turn),
        lost=turn.transfer.lost,
        loss=np.full(len(plan.active), np.nan),
        samples=samples,
        idle_s=idle_s(
            parts.laws.timing,
            turn.table,
            plan,
            turn.transfer.seconds,
            _alive_remaining(state, view),
            view.step_s[plan.active] * turn.steps,
        ),
        active=plan.active,
        dst=plan.links.dst,
        src=plan.links.src,
        failed=failed_of(plan.active, turn.transfer.reported),
    )


def _link_bytes(parts: Components, turn: ScheduledRound) -> Ints:
    """Bytes on the air: per hop, and also for a transfer that failed; as recorded if they were."""
    if turn.transfer.reported is not None:
        return turn.transfer.reported.bytes
    size = turn.plan.links.fraction * parts.fleet.model_bytes * turn.transfer.hops
    return np.ceil(size).astype(np.int64)


def _alive_remaining(state: State, view: View) -> Floats:
    """Remaining training, with absent workers counted as busy: their waiting is nobody's fault."""
    n = view.fleet.workers
    return np.where(view.alive, state.remaining_s[:n], np.inf)


def _mix(parts: Components, state: State, turn: ScheduledRound) -> State:
    """All stages of mixing, with the mail that is sent and consumed on the way."""
    for stage in range(max(len(turn.plan.mixes), _stages(turn.plan))):
        rows = turn.plan.mixes[stage] if stage < len(turn.plan.mixes) else None
        state = _post_stage(state, turn, stage, rows)
        if rows is not None:
            _mix_stage(parts, state, turn, stage)
    return _consume(state, turn)


def _stages(plan: Plan) -> int:
    return int(plan.links.stage.max(initial=-1)) + 1


def _mix_stage(parts: Components, state: State, turn: ScheduledRound, stage: int) -> None:
    links, lost = turn.plan.links, turn.transfer.lost
    here = links.stage == stage
    gone = here & lost
    rows = _without_background(turn, stage)
    keep_mean = parts.mechanism.capabilities().doubly_stochastic
    rows = renormalise_lost(rows, links.dst[gone], links.src[gone], to_self=keep_mean)
    if not len(rows.receiver):
        return
    sources = _sources(state, turn, stage, rows)
    mixed = mixed_rows(state.models, rows, sources)
    passive = ~np.isin(rows.receiver, turn.plan.active)
    write_rows(state.models, rows.receiver, mixed, passive, sources.busy)


def _without_background(turn: ScheduledRound, stage: int) -> Mix:
    """Rows of a stage that are mixed now; a row fed by a background link waits for its arrival."""
    rows, links = turn.plan.mixes[stage], turn.plan.links
    late = links.background & (links.stage == stage)
    if not late.any():
        return rows
    waits = np.isin(_keys(turn, rows.dst, rows.source), _keys(turn, links.dst, links.src)[late])
    hold = np.bincount(rows.row_of, weights=waits, minlength=len(rows.receiver)) > 0
    kept = ~hold[rows.row_of]
    counts = np.diff(rows.indptr)[~hold]
    return replace(
        rows,
        receiver=rows.receiver[~hold],
        indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        source=rows.source[kept],
        weight=rows.weight[kept],
    )


def _sources(state: State, turn: ScheduledRound, stage: int, rows: Mix) -> Sources:
    """Find out, for every weight, which model of the source the receiver really gets."""
    plan = replace(turn.plan, mixes=(*turn.plan.mixes[:stage], rows))
    linked, mailed = source_kind(plan, turn.view, stage)
    busy = ~np.isin(rows.receiver, turn.plan.active) & ~state.done[rows.receiver]
    stale = np.zeros(len(rows.source), bool)
    if state.models.finished is not None:
        stale = (rows.dst == rows.source) & busy[rows.row_of]
        stale |= linked & _reads_stale(state, turn, stage, rows)
    snapshot = np.full(len(rows.source), -1)
    if mailed.any():
        snapshot[mailed] = state.post.snapshot_of(
            turn.view.now_s, rows.dst[mailed], rows.source[mailed]
        )
    return Sources(~stale & ~mailed, stale, mailed, snapshot, busy)


def _reads_stale(state: State, turn: ScheduledRound, stage: int, rows: Mix) -> Bools:
    """Whether a link behind each weight would find the training of its source unfinished."""
    links = turn.plan.links
    late = _unfinished(state, turn) & (links.stage == stage)
    stale: Bools = np.isin(
        _keys(turn, rows.dst, rows.source), _keys(turn, links.dst[late], links.src[late])
    )
    return stale


def _unfinished(state: State, turn: ScheduledRound) -> Bools:
    """Which links find the training of their sender unfinished, [L]; as recorded if they were."""
    links, plan = turn.plan.links, turn.plan
    if turn.transfer.reported is not None:
        return turn.transfer.reported.stale
    ended = state.finish_s[links.src] <= turn.view.now_s + turn.table.link_begin_s + SAME_S
    # A push, a later stage and a synchronous exchange wait for a sender that is active.
    waits = links.pushed | (links.stage > 0) | plan.synchronous
    late: Bools = ~ended & ~(waits & np.isin(links.src, plan.active))
    return late


def _distances(state: State, turn: ScheduledRound) -> Floats:
    """How far what each link brings is from the model that its receiver has then, [L].

    A receiver that is not active and still trains has its last finished model (ADR 0007). NaN for
    an update: who gets one does not know the model behind it.
    """
    links = turn.plan.links
    busy = ~(state.done[links.dst] | np.isin(links.dst, turn.plan.active))
    late = busy, _unfinished(state, turn)
    return np.where(links.delta, np.nan, link_distances(state.models, links.dst, links.src, late))


def _keys(turn: ScheduledRound, dst: Ints, src: Ints) -> Ints:
    return dst * turn.view.fleet.nodes + src


def _post_stage(state: State, turn: ScheduledRound, stage: int, rows: Mix | None) -> State:
    """Send what no row of this stage uses now: pushes to mailboxes and background links."""
    links = turn.plan.links
    here = (links.stage == stage) & ~turn.transfer.lost
    used = np.zeros(len(links), bool)
    weight = np.full(len(links), np.nan)
    if rows is not None:
        used, weight = _use_of(turn, rows)
    send = np.flatnonzero(here & (links.background | ~used))
    if not len(send):
        return state
    numbers, made = _snap(state, turn, links.src[send], links.delta[send])
    mail = InFlight(
        arrival_s=turn.view.now_s + turn.table.link_end_s[send],
        dst=links.dst[send],
        src=links.src[send],
        version=_version(turn, links.src[send]),
        sent=np.full(len(send), turn.view.t),
        snapshot=numbers,
        weight=np.where(links.background[send], weight[send], np.nan),
    )
    return replace(state, post=state.post.add(mail), snapshots_made=made)


def _use_of(turn: ScheduledRound, rows: Mix) -> tuple[Bools, Floats]:
    """Which links feed a row, and with which weight."""
    links = turn.plan.links
    if not len(rows.source):
        return np.zeros(len(links), bool), np.full(len(links), np.nan)
    keys, wanted = _keys(turn, rows.dst, rows.source), _keys(turn, links.dst, links.src)
    order = np.argsort(keys)
    at = order[np.minimum(np.searchsorted(keys[order], wanted), len(keys) - 1)]
    used = keys[at] == wanted
    return used, np.where(used, rows.weight[at], np.nan)


def _version(turn: ScheduledRound, src: Ints) -> Ints:
    """Trainings that each sender has finished; an active one has just finished another."""
    n = turn.view.fleet.workers
    finished = turn.view.version[np.minimum(src, n - 1)] + np.isin(src, turn.plan.active)
    return np.where(src < n, finished, turn.view.t)


def _snap(state: State, turn: ScheduledRound, src: Ints, delta: Bools) -> tuple[Ints, int]:
    """Keep one copy of each model (or update) that is pushed, however many receive it."""
    models: Models = state.models
    what, which = np.unique(np.stack([src, delta.astype(np.int64)]), axis=1, return_inverse=True)
    # An active sender has waited for its own training; any other hands out what is finished.
    done = state.done
    done[turn.plan.active] = True
    for k, (node, update) in enumerate(what.T.tolist()):
        number, row = state.snapshots_made + k, published_row(models, done, node)
        origin = _origin(models, done, node)
        models.snapshots[number] = row - origin if update and origin is not None else row.clone()
        if origin is not None:
            models.origins[number] = origin.clone()
    return state.snapshots_made + which.reshape(-1), state.snapshots_made + what.shape[1]


def _origin(models: Models, done: Bools, node: int) -> Tensor | None:
    """Where the training behind the model that a node hands out began, if that is kept."""
    if models.start is None:
        return None
    if models.finished_start is None or done[node]:
        return models.start[node]
    return models.finished_start[node]


def _consume(state: State, turn: ScheduledRound) -> State:
    """Empty the mailboxes of the active workers, unless kept; forget snapshots nobody wants."""
    post = state.post
    if not turn.plan.keep_mail:
        read = post.waiting(turn.view.now_s) & np.isin(post.dst, turn.plan.active)
        post = post.take(~read)
    forget_unused(state.models, post)
    return replace(state, post=post)


def forget_unused(models: Models, post: InFlight) -> None:
    """Drop the snapshots that no envelope carries any more."""
    wanted = set(post.snapshot.tolist())
    for number in [k for k in models.snapshots if k not in wanted]:
        del models.snapshots[number]
        models.origins.pop(number, None)


def _train(parts: Components, state: State, turn: ScheduledRound) -> Trained:
    """Train the active rows from the mixed models, in place."""
    models, active = state.models, turn.plan.active
    at = index(active, models.latest)
    if not len(active):  # all have failed
        return Trained(models.latest[at], models.counters[at], np.zeros(0), 0)
    if models.start is not None:
        if models.finished_start is not None:
            models.finished_start[at] = models.start[at]
        models.start[at] = models.latest[at]
    versions = turn.view.version[active] + 1
    trained = parts.trainer.train(
        models.latest[at], models.counters[at], active, versions, turn.steps, turn.plan.rate
    )
    models.latest[at] = trained.models
    models.counters[at] = trained.counters
    return trained


def _start_training(state: State, turn: ScheduledRound) -> State:
    active = turn.plan.active
    started, training = state.started_s.copy(), state.training_s.copy()
    started[active] = turn.view.now_s + turn.table.begin_s
    training[active] = turn.view.step_s[active] * turn.steps
    return replace(state, started_s=started, training_s=training)
