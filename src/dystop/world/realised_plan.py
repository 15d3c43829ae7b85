"""What becomes of a plan in a world: what arrives, how long it takes, and who carries it out."""

from dataclasses import dataclass

import numpy as np

from dystop.acceleration import accelerated
from dystop.control.time_spent import NewWork, TimeSpent, time_spent
from dystop.control.timing import Timetable, Timing, active_exchange_s, idle_s, is_small
from dystop.plan import Plan
from dystop.sparse import Bools, Floats, Ints
from dystop.types import View
from dystop.world.progress import SAME_S, Progress


@dataclass(frozen=True)
class Transfer:
    """What happens on some links."""

    seconds: Floats  # [L]
    hops: Ints  # [L], links travelled; bytes are paid on each
    lost: Bools  # [L]


@dataclass(frozen=True)
class RealisedPlan:
    """Everything that a world decides about a round; times count from the opening of the round.

    `[L]` follows the links of the decided plan, `[A]` its active workers, and `[B]` those of them
    that carry out their orders.
    """

    plan: Plan  # what is carried out: the decided plan without the orders of nodes that fail
    steps: Ints  # [B], mini-batches of the new local trainings
    begin_s: Floats  # [B], when they begin
    duration_s: float  # H_t
    idle_s: float
    spent: TimeSpent
    comm_s: Floats  # [A]
    failed: Bools  # [A]
    link_s: Floats  # [L]
    link_bytes: Ints  # [L]
    arrival_s: Floats  # [L]
    lost: Bools  # [L]
    stale: Bools  # [L], the sender still trains: it hands out its last finished model


def realised_plan(
    timing: Timing,
    view: View,
    plan: Plan,
    steps: Ints,
    progress: Progress,
    transfer: Transfer,
    table: Timetable,
) -> RealisedPlan:
    """Return what becomes of a plan if nobody fails.

    Args:
        timing: Law of a round's duration.
        view: What was known when the round opened.
        plan: What was decided.
        steps: Mini-batches of each new local training, [A].
        progress: Trainings that are under way.
        transfer: What happens on the links of the plan.
        table: When things happen.
    """
    links = plan.links
    # Absent workers count as busy: nobody waits for them.
    busy_s = np.where(view.alive, view.remaining_s, np.inf)
    training_s = view.step_s[plan.active] * steps
    size = links.fraction * view.fleet.model_bytes * transfer.hops
    return RealisedPlan(
        plan=plan,
        steps=steps,
        begin_s=table.begin_s,
        duration_s=table.duration_s,
        idle_s=idle_s(timing, table, plan, transfer.seconds, busy_s, training_s),
        spent=_spent(view, plan, progress, transfer, table, training_s),
        comm_s=table.comm_s,
        failed=np.zeros(len(plan.active), bool),
        link_s=transfer.seconds,
        link_bytes=np.ceil(size).astype(np.int64),  # also of a transfer that fails
        arrival_s=table.link_end_s,
        lost=transfer.lost,
        stale=(sender_trains if is_small(plan) else sender_trains.reference)(
            plan, progress, view.now_s + table.link_begin_s
        ),
    )


def _spent(
    view: View,
    plan: Plan,
    progress: Progress,
    transfer: Transfer,
    table: Timetable,
    training_s: Floats,
) -> TimeSpent:
    """Return what the workers do with their time in this round."""
    workers = view.fleet.workers
    exchange = active_exchange_s if is_small(plan) else active_exchange_s.reference
    own_s = exchange(plan, transfer.seconds, len(progress.started_s))
    return time_spent(
        table.duration_s,
        view.alive,
        (progress.started_s - view.now_s)[:workers],
        view.remaining_s,
        NewWork(plan.active, own_s, table.begin_s, table.begin_s + training_s),
    )


@accelerated("dystop.kernels.times:sender_trains")
def sender_trains(plan: Plan, progress: Progress, begin_s: Floats) -> Bools:
    """Return which links read a model while the training of its sender is unfinished, [L].

    Args:
        plan: What is carried out.
        progress: Trainings that are under way.
        begin_s: When each transfer begins, [L].
    """
    links = plan.links
    late: Bools = progress.finish_s[links.src] > begin_s + SAME_S
    if late.any():  # a push, a later stage and a synchronous exchange wait for an active sender
        active = np.zeros(len(progress.finish_s), bool)
        active[plan.active] = True
        late &= ~((links.pushed | (links.stage > 0) | plan.synchronous) & active[links.src])
    return late
