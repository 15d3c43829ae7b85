"""One round from the coordinator's side (alg:dystop): look, decide, and settle.

Simulator and testbed call these same functions; they differ only in where the `Observation` and the
`Outcome` come from.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from dystop.control.plan_check import check_plan
from dystop.control.staleness import next_queue, next_staleness
from dystop.control.staleness_weighting import StalenessWeighting, apply
from dystop.kernels.grouping import Rows
from dystop.plan import Links, Plan, anywhere
from dystop.record import RoundRecord
from dystop.sparse import Bools, Ints, no_pairs
from dystop.types import ControlState, Fleet, Mechanism, Observation, Outcome, Score, View


def initial_state(fleet: Fleet, mechanism: Mechanism) -> ControlState:
    """What the coordinator knows before the first round."""
    n = fleet.workers
    return ControlState(
        t=1,
        clock_s=0.0,
        staleness=np.zeros(n, np.int64),
        queue=np.zeros(n),
        version=np.zeros(n, np.int64),
        pulls=no_pairs(fleet.nodes),
        memory=mechanism.init(fleet),
    )


def build_view(fleet: Fleet, books: ControlState, seen: Observation) -> View:
    """Put together all that a mechanism may know when the round opens."""
    return View(
        t=books.t,
        now_s=books.clock_s,
        fleet=fleet,
        staleness=books.staleness,
        queue=books.queue,
        version=books.version,
        pulls=books.pulls,
        last=books.last,
        alive=seen.alive,
        reach=seen.reach,
        distance_m=seen.distance_m,
        link_s=seen.link_s,
        step_s=seen.step_s,
        remaining_s=seen.remaining_s,
        budget=seen.budget,
        mailbox=seen.mailbox,
    )


def decide(
    mechanism: Mechanism, books: ControlState, view: View, remedy: StalenessWeighting | None = None
) -> tuple[Plan, ControlState]:
    """Ask the mechanism for a plan, treat it for staleness if asked to, and check the contract."""
    plan, memory = mechanism.plan(books.memory, view)
    check_plan(mechanism, plan, view)
    if remedy is not None and remedy.rule != "none":
        plan = apply(remedy, plan, view)
        check_plan(mechanism, plan, view)
    return plan, replace(books, memory=memory)


def settle(
    mechanism: Mechanism,
    books: ControlState,
    view: View,
    plan: Plan,
    outcome: Outcome,
    score: Score | None = None,
) -> tuple[RoundRecord, ControlState]:
    """Close a round: advance clock, staleness, queues and counts, and write its line of history."""
    after = advance(mechanism, books, view, plan, outcome)
    return record_of(books, after, view, plan, outcome, score), after


def advance(
    mechanism: Mechanism,
    books: ControlState,
    view: View,
    plan: Plan,
    outcome: Outcome,
    frozen: Bools | None = None,
) -> ControlState:
    """The books after a round: clock, staleness, queues and counts.

    Only a worker whose exchange is confirmed counts as active: one that failed grows older, so that
    the mechanism comes back to it. Who is `frozen` does not grow older, [N].
    """
    active = np.zeros(view.fleet.workers, bool)
    active[confirmed(plan, outcome)] = True
    bound = mechanism.capabilities().queue_bound
    return replace(
        books,
        t=books.t + 1,
        clock_s=books.clock_s + outcome.duration_s,
        staleness=_aged(books.staleness, active, frozen),
        queue=books.queue
        if bound is None
        else next_queue(books.queue, books.staleness, bound, view.alive),
        version=books.version + active,
        pulls=books.pulls.add_rows(_pulled(plan.links, outcome.lost)),
        wire_bytes=books.wire_bytes + int(outcome.link_bytes.sum()),
        samples=books.samples + outcome.samples,
        last=outcome,
    )


def confirmed(plan: Plan, outcome: Outcome) -> Ints:
    """Active workers that have carried out their order."""
    return plan.active[~outcome.failed] if len(outcome.failed) else plan.active


def _aged(staleness: Ints, active: Bools, frozen: Bools | None) -> Ints:
    """Staleness after a round; it stands still for who is frozen and was not active."""
    after = next_staleness(staleness, active)
    return after if frozen is None else np.where(frozen & ~active, staleness, after)


def apply_late_report(
    books: ControlState, worker: int, src: Ints, link_bytes: int, trains: bool = True
) -> ControlState:
    """The books after a report that came when its round was closed already.

    The round is not opened again: the worker is fresh from now on (eq:staleness), has begun one
    training more, and what it pulled counts.

    Args:
        books: As they stand.
        worker: Node that reports.
        src: Whom it has pulled from.
        link_bytes: What that took on the wire.
        trains: Whether its order was one of an active worker.
    """
    staleness, version = books.staleness, books.version
    if trains:
        staleness, version = staleness.copy(), version.copy()
        staleness[worker] = 0
        version[worker] += 1
    return replace(
        books,
        staleness=staleness,
        version=version,
        pulls=books.pulls.add(np.full(len(src), worker), src),
        wire_bytes=books.wire_bytes + link_bytes,
    )


def _pulled(links: Links, lost: Bools) -> Rows:
    """Pulls that arrived, by receiver."""
    if not anywhere(links.pushed) and not lost.any():
        return links.by_receiver
    return links.take(~lost & ~links.pushed).by_receiver


def record_of(
    before: ControlState,
    after: ControlState,
    view: View,
    plan: Plan,
    outcome: Outcome,
    score: Score | None,
) -> RoundRecord:
    """The line of history of a round, from the books before and after it."""
    staleness = before.staleness[view.alive]
    return RoundRecord(
        round=before.t,
        clock_s=after.clock_s,
        duration_s=outcome.duration_s,
        alive=int(view.alive.sum()),
        active=len(plan.active),
        links=len(outcome.lost) - int(outcome.lost.sum()),
        lost=int(outcome.lost.sum()),
        wire_bytes=int(outcome.link_bytes.sum()),
        wire_bytes_total=after.wire_bytes,
        endpoint_bytes_total=2 * after.wire_bytes,
        samples_total=after.samples,
        epochs_total=after.samples / int(view.fleet.data_size.sum()),
        idle_s=outcome.idle_s,
        staleness_mean=float(staleness.mean()),
        staleness_max=int(staleness.max()),
        staleness_histogram=np.bincount(staleness).tolist(),
        queue_mean=float(before.queue.mean()),
        loss=mean_loss(outcome),
        notes=dict(plan.notes),
        **_scores(score),
    )


def mean_loss(outcome: Outcome) -> float | None:
    """Mean training loss; a worker that took no step or has diverged has none."""
    known = outcome.loss[np.isfinite(outcome.loss)]
    return float(known.mean()) if len(known) else None


def _finite(value: float) -> float | None:
    """The number, or None where it is no number: history is JSON."""
    return value if math.isfinite(value) else None


def _scores(score: Score | None) -> dict[str, Any]:
    if score is None:
        return {}
    return {
        "accuracy": score.accuracy,
        "accuracy_std": score.accuracy_std,
        "accuracy_global": score.accuracy_global,
        "test_loss": _finite(score.loss),
        "test_loss_global": _finite(score.loss_global),
        "diverged": score.diverged,
    }


def with_topology(record: RoundRecord, plan: Plan, lost: Bools) -> RoundRecord:
    """Add who was active and which links were used; left out where a fleet is too large for it."""
    pairs: Ints = np.stack([plan.links.dst[~lost], plan.links.src[~lost]], axis=1)
    return replace(record, active_ids=plan.active.tolist(), link_pairs=pairs.tolist())
