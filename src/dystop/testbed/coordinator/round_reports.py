"""The reports of a round as its `Outcome`, and as its line of the trace.

`PublishRecord.trace` of a round is a whole line as `dystop.world.trace` describes it. Its `links`
have two more columns: `number` and `version` of the model that was used, -1 if none was.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dystop.control.laws import exchange_s
from dystop.control.time_spent import (
    NewWork,
    SpentParts,
    spent_parts,
    total_of,
)
from dystop.plan import Plan
from dystop.sparse import Bools, Floats, Ints, graph_of_sorted, no_pairs
from dystop.testbed.protocol.messages import Rejected, Report, Used
from dystop.types import Outcome, View, no_mail
from dystop.world import WorldState
from dystop.world.trace import Orders as TracedOrders
from dystop.world.trace import Trainings as TracedTrainings
from dystop.world.trace import outcome_part

Training = tuple[int, int, int, float]  # node, round that started it, steps, emulated seconds


@dataclass(frozen=True)
class RoundReports:
    """Everything that is known about a round when it closes."""

    reports: Mapping[int, Report]  # reports of kind `mixed`, by node
    duration_s: float  # emulated
    time_scale: float = 1.0  # real seconds per emulated second
    loss: Floats | None = None  # newest training loss of each worker, NaN: none yet, [N]
    ended_s: Floats | None = None  # when the last training ended, inf: one is running, [N]
    samples: int = 0  # samples trained on since the last round closed
    trainings: Sequence[Training] = ()  # trainings that ended since the last round closed
    emulated_s: float | None = None  # of these on the emulated devices; None: not emulated
    distances: bool = False  # whether the mechanism needs distances of models


LinkOutcome = Used | Rejected | None


def emulated_seconds(
    trainings: Sequence[Training], world: WorldState | None, devices: str
) -> float | None:
    """Return how long the devices of a world take for trainings; None if it emulates none."""
    if world is None or not trainings or devices == "free":
        return None
    return sum(steps * float(world.step_s[node]) for node, _, steps, _ in trainings)


def link_outcomes(plan: Plan, reports: Mapping[int, Report]) -> list[LinkOutcome]:
    """Return what each receiver reported about its links; None: not reported."""
    reported: dict[tuple[int, int, int], Used | Rejected] = {}
    for node, report in reports.items():
        reported |= {(node, r.node, r.stage): r for r in report.rejected}
        reported |= {(node, u.node, u.stage): u for u in report.used}
    links = plan.links
    keys = zip(links.dst.tolist(), links.src.tolist(), links.stage.tolist(), strict=True)
    return [reported.get(key) for key in keys]


def round_outcome(plan: Plan, view: View, summary: RoundReports) -> Outcome:
    """Return the outcome of a round from the reports; its duration (eq:duration) is measured."""
    links, outcomes = plan.links, link_outcomes(plan, summary.reports)
    lost = _lost(plan, outcomes, summary.reports)
    link_s = np.array([o.seconds if o else 0.0 for o in outcomes]) / summary.time_scale
    spent = total_of(spent_by_workers(plan, view, summary, link_s))
    return Outcome(
        duration_s=summary.duration_s,
        comm_s=_exchange_s(plan, summary),
        link_s=link_s,
        link_bytes=_link_bytes(plan, view, outcomes, lost),
        lost=lost,
        loss=_losses(plan, summary),
        samples=summary.samples,
        idle_s=_idle_s(view, summary),
        active=plan.active,
        dst=links.dst,
        src=links.src,
        distance=_distance(outcomes) if summary.distances else None,
        failed=_failed(plan, summary),
        compute_s=spent.compute_s,
        transfer_s=spent.transfer_s,
        wait_others_s=spent.wait_others_s,
        trained_s=None if summary.emulated_s is None else sum(t[3] for t in summary.trainings),
        emulated_s=summary.emulated_s,
    )


def _failed(plan: Plan, summary: RoundReports) -> Bools:
    return np.array([int(i) not in summary.reports for i in plan.active], bool)


def _lost(plan: Plan, outcomes: list[LinkOutcome], reports: Mapping[int, Report]) -> Bools:
    """Return which transfers did not arrive; a running background transfer counts as sent."""
    running = plan.links.background & np.array([int(i) in reports for i in plan.links.dst], bool)
    arrived = np.array([isinstance(o, Used) for o in outcomes], bool)
    unreported = np.array([o is None for o in outcomes], bool)
    lost: Bools = ~(arrived | (running & unreported))
    return lost


def _link_bytes(plan: Plan, view: View, outcomes: list[LinkOutcome], lost: Bools) -> Ints:
    """Return the bytes on the wire; a running background transfer counts with its full size."""
    size = np.ceil(plan.links.fraction * view.fleet.model_bytes).astype(np.int64)
    reported = np.array([o.bytes if o else 0 for o in outcomes], np.int64)
    unreported = np.array([o is None for o in outcomes], bool)
    return np.where(unreported & ~lost, size, reported)


def _exchange_s(plan: Plan, summary: RoundReports) -> Floats:
    """Return the exchange time of each active worker; the duration of the round if it failed."""
    reports = [summary.reports.get(int(i)) for i in plan.active]
    spent = [r.seconds / summary.time_scale if r else summary.duration_s for r in reports]
    return np.array(spent, float)


def _losses(plan: Plan, summary: RoundReports) -> Floats:
    if summary.loss is None:
        return np.full(len(plan.active), np.nan)
    return summary.loss[plan.active]


def _idle_s(view: View, summary: RoundReports) -> float:
    """Return the time between the end of a training and the close, summed over present workers."""
    if summary.ended_s is None:
        return 0.0
    close_s = view.now_s + summary.duration_s
    spare = np.clip(close_s - np.maximum(summary.ended_s, view.now_s), 0.0, None)
    return float(spare[view.alive].sum())


def _distance(outcomes: list[LinkOutcome]) -> Floats:
    measured = [o.distance if isinstance(o, Used) else None for o in outcomes]
    return np.array([np.nan if d is None else d for d in measured], float)


def _training_times(plan: Plan, view: View, summary: RoundReports) -> tuple[Floats, Floats, Floats]:
    """Return when the training under way ends, and when the new one begins and ends, [N] each.

    Times count from the opening of the round; inf: not in this round.
    """
    workers = view.fleet.workers
    end_s = np.full(workers, np.inf) if summary.ended_s is None else summary.ended_s - view.now_s
    first_end_s, begin_s = np.where(view.remaining_s > 0, end_s, 0.0), np.full(workers, np.inf)
    for node in plan.active.tolist():
        if (report := summary.reports.get(node)) is not None:
            first_end_s[node] = report.waited_s / summary.time_scale
            begin_s[node] = first_end_s[node] + report.seconds / summary.time_scale
    return first_end_s, begin_s, end_s


def spent_by_workers(plan: Plan, view: View, summary: RoundReports, link_s: Floats) -> SpentParts:
    """Return what the workers did with their time, as they reported it."""
    first_end_s, begin_s, end_s = _training_times(plan, view, summary)
    own_s = exchange_s(plan, link_s, view.fleet.nodes)[plan.active]
    new = NewWork(plan.active, own_s, begin_s[plan.active], end_s[plan.active])
    no_exchange_s = np.zeros(view.fleet.workers)  # a testbed's round closes after its exchanges
    return spent_parts(summary.duration_s, view.alive, no_exchange_s, first_end_s, new)


def traced_view(view: View) -> View:
    """Return the part of a view that goes into the trace: what the mechanism saw of the world."""
    return replace(without_fleet_data(view), pulls=no_pairs(view.fleet.nodes), last=None)


def without_links(view: View) -> View:
    """Return the view without the links and counts that only the decision needs."""
    none = np.zeros(0, np.int64)
    return replace(
        view,
        reach=graph_of_sorted(view.fleet.nodes, none, none),
        distance_m=np.zeros(0),
        link_s=np.zeros(0),
        pulls=no_pairs(view.fleet.nodes),
        mailbox=no_mail(),
        last=None,
    )


def without_fleet_data(view: View) -> View:
    """Return the view without data sizes and label counts, which do not change during a run."""
    none = np.zeros(0, np.int64)
    return replace(view, fleet=replace(view.fleet, data_size=none, label_counts=none))


def trace_outcome(
    plan: Plan, view: View, summary: RoundReports, outcome: Outcome, orders: Iterable[int]
) -> dict[str, Any]:
    """Return the second half of a trace line: what became of the plan. `orders` are its nodes."""
    outcomes = link_outcomes(plan, summary.reports)
    used = [o if isinstance(o, Used) else None for o in outcomes]
    number = np.array([-1 if u is None else u.number for u in used], np.int64)
    seconds = np.where([o is None for o in outcomes], np.nan, outcome.link_s)
    src = np.minimum(plan.links.src, view.fleet.workers - 1)
    stale = (number < view.version[src]) & (plan.links.src < view.fleet.workers)
    stale &= np.array([u is not None for u in used], bool)
    line = outcome_part(
        plan,
        replace(outcome, link_s=seconds),
        stale,
        _traced_orders(plan, summary, sorted(orders)),
        _traced_trainings(summary),
    )
    line["links"]["number"] = number.tolist()
    line["links"]["version"] = [-1 if u is None else u.version for u in used]
    return line


def _traced_orders(plan: Plan, summary: RoundReports, nodes: list[int]) -> TracedOrders:
    reports = [summary.reports.get(node) for node in nodes]
    waited = [np.nan if r is None else r.waited_s / summary.time_scale for r in reports]
    spent = [np.nan if r is None else r.seconds / summary.time_scale for r in reports]
    return TracedOrders(
        node=np.array(nodes, np.int64),
        train=np.isin(nodes, plan.active),
        waited_s=np.array(waited, float),
        exchange_s=np.array(spent, float),
        failed=np.array([r is None for r in reports], bool),
    )


def _traced_trainings(summary: RoundReports) -> TracedTrainings:
    columns = zip(*summary.trainings, strict=True) if summary.trainings else ((),) * 4
    node, began, steps, seconds = columns
    return TracedTrainings(
        np.array(node, np.int64),
        np.array(began, np.int64),
        np.array(steps, np.int64),
        np.array(seconds, float),
    )
