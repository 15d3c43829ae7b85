"""One round from the coordinator's side (alg:dystop): build the view, decide, advance, record.

Simulator and testbed call `build_view`, `decide`, `advance` and `record_of` in this order. They
differ only in where the `Observation` and the `Outcome` come from.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dystop.control.plan_check import check_plan
from dystop.control.staleness import next_queue, next_staleness
from dystop.errors import TransportError
from dystop.plan import Links, Plan
from dystop.record import ACCURACY, Evaluated, RoundRecord
from dystop.sparse import Bools, Floats, Ints, PairCounts, mask_of, no_pairs
from dystop.types import (
    ControlState,
    Fleet,
    Mechanism,
    Observation,
    Outcome,
    Score,
    View,
)


def initial_state(fleet: Fleet, mechanism: Mechanism) -> ControlState:
    """Return what the coordinator knows before the first round."""
    n = fleet.workers
    return ControlState(
        t=1,
        clock_s=0.0,
        staleness=np.zeros(n, np.int64),
        queue=np.zeros(n),
        version=np.zeros(n, np.int64),
        active_s=np.zeros(n),
        pulls=no_pairs(fleet.nodes),
        memory=mechanism.init(fleet),
    )


def build_view(fleet: Fleet, control: ControlState, observation: Observation) -> View:
    """Return all that a mechanism may know when the round opens."""
    return View(
        t=control.t,
        now_s=control.clock_s,
        fleet=fleet,
        staleness=control.staleness,
        queue=control.queue,
        version=control.version,
        pulls=control.pulls,
        last=control.last,
        alive=observation.alive,
        reach=observation.reach,
        distance_m=observation.distance_m,
        link_s=observation.link_s,
        step_s=observation.step_s,
        remaining_s=observation.remaining_s,
        mailbox=observation.mailbox,
        budget_of=observation.budget_of,
    )


def decide(mechanism: Mechanism, control: ControlState, view: View) -> tuple[Plan, ControlState]:
    """Ask the mechanism for a plan and check it."""
    plan, memory = mechanism.plan(control.memory, view)
    check_plan(mechanism, plan, view)
    return plan, control if memory is control.memory else replace(control, memory=memory)


def advance(
    mechanism: Mechanism,
    control: ControlState,
    view: View,
    plan: Plan,
    outcome: Outcome,
    frozen: Bools | None = None,
) -> ControlState:
    """Return the control state after a round: clock, staleness, queues and counts.

    Only a worker whose exchange is confirmed counts as active. The staleness of a worker that
    failed grows, so that the mechanism activates it again.

    Args:
        mechanism: Mechanism that decided.
        control: State after the decision.
        view: View when the round opened.
        plan: Decision of the mechanism.
        outcome: What happened; losses are not read.
        frozen: Workers whose staleness does not grow, [N]; None: it grows for everyone.
    """
    _refuse_lost_shares(mechanism, view, plan, outcome)
    active = confirmed(plan, outcome)
    version, active_s = control.version.copy(), control.active_s.copy()
    version[active] += 1
    active_s[active] = view.now_s
    bound, queue = mechanism.capabilities().queue_bound, control.queue
    if bound is not None:
        queue = next_queue(queue, control.staleness, bound, view.alive)
    return ControlState(
        t=control.t + 1,
        clock_s=control.clock_s + outcome.duration_s,
        staleness=_next_staleness(control.staleness, active, frozen),
        queue=queue,
        version=version,
        active_s=active_s,
        pulls=_with_pulls(control.pulls, plan.links, outcome.lost),
        memory=control.memory,
        wire_bytes=control.wire_bytes + int(np.add.reduce(outcome.link_bytes)),
        samples=control.samples + outcome.samples,
        last=outcome,
    )


def seconds_apart(control: ControlState, workers: Ints) -> Floats:
    """Return the seconds since the last rounds of workers opened, for `Mechanism.after_mixing`.

    Before its first round, a worker counts them from the start of the run.
    """
    apart: Floats = control.clock_s - control.active_s[workers]
    return apart


def _refuse_lost_shares(mechanism: Mechanism, view: View, plan: Plan, outcome: Outcome) -> None:
    """Raise TransportError if a carried vector with rows of its own has lost a share."""
    if all(mix.carried is None for mix in plan.mixes):
        return
    lost = np.flatnonzero(outcome.lost)
    if not len(lost) and not np.count_nonzero(outcome.failed):
        return
    what = "an exchange failed"
    if len(lost):
        what = f"the transfer from {plan.links.src[lost[0]]} to {plan.links.dst[lost[0]]} was lost"
    raise TransportError(
        f"round {view.t}: {what}, and with it a share of what {mechanism.name} carries: nobody "
        "gets it back, and all averages would be wrong from now on; run it on links that lose "
        "nothing, or use another mechanism"
    )


def confirmed(plan: Plan, outcome: Outcome) -> Ints:
    """Return the active workers whose exchange succeeded."""
    return plan.active[~outcome.failed] if np.count_nonzero(outcome.failed) else plan.active


def _next_staleness(staleness: Ints, active: Ints, frozen: Bools | None) -> Ints:
    """Return the staleness after a round; it does not grow for a frozen worker."""
    after = next_staleness(staleness, active)
    if frozen is None:
        return after
    return np.where(frozen & ~mask_of(len(staleness), active), staleness, after)


def apply_late_report(
    control: ControlState, worker: int, src: Ints, link_bytes: int, trains: bool = True
) -> ControlState:
    """Return the control state after a report that arrived when its round was closed.

    The round stays closed. The staleness of the worker becomes 0 (eq:staleness), its version grows
    by one, and its pulls count. The seconds to its next round count from now.

    Args:
        control: Current state.
        worker: Node that sent the report.
        src: Nodes from which it pulled.
        link_bytes: Bytes of these pulls on the wire.
        trains: Whether the worker was active, and not only a receiver.
    """
    staleness, version, active_s = control.staleness, control.version, control.active_s
    if trains:
        staleness, version, active_s = staleness.copy(), version.copy(), active_s.copy()
        staleness[worker] = 0
        version[worker] += 1
        active_s[worker] = control.clock_s
    return replace(
        control,
        staleness=staleness,
        version=version,
        active_s=active_s,
        pulls=control.pulls.add(np.full(len(src), worker), src),
        wire_bytes=control.wire_bytes + link_bytes,
    )


def _with_pulls(pulls: PairCounts, links: Links, lost: Bools) -> PairCounts:
    """Return the counts after the pulls that arrived."""
    if not len(links.dst):
        return pulls
    all_arrive = not np.count_nonzero(links.pushed) and not np.count_nonzero(lost)
    if all_arrive:
        return pulls.add(links.dst, links.src, lambda: links.by_receiver)
    arrived = ~(lost | links.pushed)
    return pulls.add(links.dst[arrived], links.src[arrived])


def record_of(
    before: ControlState,
    after: ControlState,
    view: View,
    plan: Plan,
    outcome: Outcome,
    added: Mapping[str, Any] | None = None,
) -> RoundRecord:
    """Return the record of a round, from the control states before and after it.

    `added` holds the fields of recorders.
    """
    alive, total, most, histogram = staleness_counts(before.staleness, view.alive)
    lost = int(np.count_nonzero(outcome.lost))
    return RoundRecord(
        round=before.t,
        clock_s=after.clock_s,
        duration_s=outcome.duration_s,
        alive=alive,
        active=len(plan.active),
        links=len(outcome.lost) - lost,
        lost=lost,
        wire_bytes=after.wire_bytes - before.wire_bytes,
        wire_bytes_total=after.wire_bytes,
        endpoint_bytes_total=2 * after.wire_bytes,
        samples_total=after.samples,
        epochs_total=after.samples / view.fleet.samples,
        idle_s=outcome.idle_s,
        staleness_mean=total / alive,
        staleness_max=most,
        staleness_histogram=histogram,
        queue_mean=float(np.add.reduce(before.queue)) / len(before.queue),
        loss=_mean_loss(outcome),
        notes=dict(plan.notes),
        added=added or {},
    )


def staleness_counts(staleness: Ints, alive: Bools) -> tuple[int, int, int, list[int]]:
    """Return how many workers are present, the sum and the maximum of their staleness, and a count.

    The count says how many workers have staleness 0, 1, 2, ...

    >>> staleness_counts(np.array([0, 2, 5, 2]), np.array([True, True, False, True]))
    (3, 4, 2, [1, 0, 2])
    """
    present = int(np.count_nonzero(alive))
    here = staleness if present == len(alive) else staleness[alive]
    count = np.bincount(here)
    return present, int(np.add.reduce(here)), len(count) - 1, count.tolist()


def _mean_loss(outcome: Outcome) -> float | None:
    """Return the mean training loss; a worker that took no step or has diverged has none."""
    if len(outcome.loss) == 1:
        only = float(outcome.loss[0])
        return only if math.isfinite(only) else None
    known = outcome.loss[np.isfinite(outcome.loss)]
    return float(known.mean()) if len(known) else None


def with_score(record: RoundRecord, score: Score) -> RoundRecord:
    """Return the record with the results of an evaluation."""
    tested = Evaluated(
        accuracy=score.accuracy,
        accuracy_std=score.accuracy_std,
        accuracy_global=score.accuracy_global,
        test_loss=_finite(score.loss),
        test_loss_global=_finite(score.loss_global),
        diverged=score.diverged,
        tested=score.tested,
        worker_accuracy=list(score.worker_accuracy) or None,
        worker_loss=list(score.worker_loss) or None,
        score_name=None if score.name == ACCURACY else score.name,
    )
    return record.having(tested)


def _finite(value: float) -> float | None:
    """Return the number, or None where it is not finite: records are JSON."""
    return value if math.isfinite(value) else None
