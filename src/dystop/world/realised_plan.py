"""What becomes of a plan in a world: what arrives, how long it takes, and who carries it out."""

from dataclasses import dataclass

import numpy as np

from dystop.acceleration import accelerated
from dystop.control.laws import Law, Timetable, compared, exchange_s, spare_s
from dystop.control.time_spent import NewWork, SpentParts, spent_parts
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
class Overhead:
    """What real machines add to the times of the models, in emulated seconds."""

    transfer_s: float = 0.0  # to a transfer: connecting, encryption, checks
    round_s: float = 0.0  # to a round: messages, disk, planning


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
    spent: SpentParts  # of the present workers, and [A]
    comm_s: Floats  # [A]
    failed: Bools  # [A]
    link_s: Floats  # [L]
    link_bytes: Ints  # [L]
    arrival_s: Floats  # [L]
    lost: Bools  # [L]
    stale: Bools  # [L], the sender still trains: it hands out its last finished model


def realised_plan(
    law: Law,
    view: View,
    plan: Plan,
    steps: Ints,
    progress: Progress,
    transfer: Transfer,
    table: Timetable,
) -> RealisedPlan:
    """Return what becomes of a plan if nobody fails.

    Args:
        law: How long a round lasts.
        view: What was known when the round opened.
        plan: What was decided.
        steps: Mini-batches of each new local training, [A].
        progress: Trainings that are under way.
        transfer: What happens on the links of the plan.
        table: When things happen.
    """
    links, training_s = plan.links, view.step_s[plan.active] * steps
    size = links.fraction * view.fleet.model_bytes * transfer.hops
    seconds = transfer.seconds
    idle_s, spent, stale = time_use(law, view, plan, progress, seconds, table, training_s)
    return RealisedPlan(
        plan=plan,
        steps=steps,
        begin_s=table.begin_s,
        duration_s=table.duration_s,
        idle_s=float(np.add.reduce(idle_s)),
        spent=spent,
        comm_s=table.comm_s,
        failed=np.zeros(len(plan.active), bool),
        link_s=seconds,
        link_bytes=np.ceil(size).astype(np.int64),  # also of a transfer that fails
        arrival_s=table.link_end_s,
        lost=transfer.lost,
        stale=stale,
    )


@accelerated("dystop.kernels.times:time_use", size=lambda law, view, plan, *_: compared(law, plan))
def time_use(
    law: Law,
    view: View,
    plan: Plan,
    progress: Progress,
    link_s: Floats,
    table: Timetable,
    training_s: Floats,
) -> tuple[Floats, SpentParts, Bools]:
    """Return what workers do with their time in a round, and which senders still train.

    Args:
        law: How long the round lasts.
        view: What was known when the round opened.
        plan: What is carried out.
        progress: Trainings that are under way.
        link_s: Seconds of each link, [L].
        table: When things happen.
        training_s: Length of each new training, [A].

    Returns:
        (idle seconds of each worker, what `spent_parts` returns, what `sender_trains` returns).
    """
    workers = view.fleet.workers
    own_s = exchange_s(plan, link_s, len(progress.started_s))[plan.active]
    new = NewWork(plan.active, own_s, table.begin_s, table.begin_s + training_s)
    exchange_end_s = (progress.started_s - view.now_s)[:workers]
    # Absent workers count as busy: nobody waits for them.
    busy_s = np.where(view.alive, view.remaining_s, np.inf)
    return (
        spare_s(law, table, plan, link_s, busy_s, training_s),
        spent_parts(table.duration_s, view.alive, exchange_end_s, view.remaining_s, new),
        sender_trains(plan, progress, view.now_s + table.link_begin_s),
    )


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
