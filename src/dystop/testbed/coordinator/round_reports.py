"""What a round came to: reports of the nodes as an `Outcome`, and as a line of the trace.

TRACE: `Publish.trace` of a round is a whole line as `dystop.world.trace` describes it, with two
more columns in `links`: `number` and `version` of the model that was used, -1 where none was.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dystop.plan import Plan
from dystop.sparse import Bools, Floats, Ints, no_pairs
from dystop.testbed.protocol.messages import Rejected, Report, Used
from dystop.types import Outcome, View
from dystop.world.trace import Orders, Trainings, came_part

Training = tuple[int, int, int, float]  # node, round that began it, steps, emulated seconds


@dataclass(frozen=True)
class RoundReports:
    """All that has been heard of a round when it closes."""

    reports: Mapping[int, Report]  # `mixed` reports, by node
    duration_s: float  # emulated
    time_scale: float = 1.0  # seconds of a worker's clock per emulated second
    loss: Floats | None = None  # newest training loss of every worker, NaN: none yet, [N]
    ended_s: Floats | None = None  # when the last training ended, inf: it still runs, [N]
    samples: int = 0  # images trained on, reported since the last round closed
    trained: Sequence[Training] = ()  # trainings whose end was reported since then
    distances: bool = False  # whether the mechanism asks for the distance of models


LinkOutcome = Used | Rejected | None


def link_outcomes(plan: Plan, reports: Mapping[int, Report]) -> list[LinkOutcome]:
    """What became of each link of a plan, as its receiver says; None where it says nothing."""
    told: dict[tuple[int, int, int], Used | Rejected] = {}
    for node, report in reports.items():
        told |= {(node, r.node, r.stage): r for r in report.rejected}
        told |= {(node, u.node, u.stage): u for u in report.used}
    links = plan.links
    keys = zip(links.dst.tolist(), links.src.tolist(), links.stage.tolist(), strict=True)
    return [told.get(key) for key in keys]


def outcome_of(plan: Plan, view: View, tally: RoundReports) -> Outcome:
    """The outcome of a round, from what its nodes have reported (eq:duration is the clock's)."""
    links, known = plan.links, link_outcomes(plan, tally.reports)
    lost = _lost(plan, known, tally.reports)
    return Outcome(
        duration_s=tally.duration_s,
        comm_s=_exchange_s(plan, tally),
        link_s=np.array([f.seconds if f else 0.0 for f in known]) / tally.time_scale,
        link_bytes=_link_bytes(plan, view, known, lost),
        lost=lost,
        loss=_losses(plan, tally),
        samples=tally.samples,
        idle_s=_idle_s(view, tally),
        active=plan.active,
        dst=links.dst,
        src=links.src,
        distance=_distance(known) if tally.distances else None,
        failed=_failed(plan, tally),
    )


def _failed(plan: Plan, tally: RoundReports) -> Bools:
    return np.array([int(i) not in tally.reports for i in plan.active], bool)


def _lost(plan: Plan, known: list[LinkOutcome], reports: Mapping[int, Report]) -> Bools:
    """Transfers that did not arrive. One that nobody waits for is on its way: it counts as sent."""
    way = plan.links.background & np.array([int(i) in reports for i in plan.links.dst], bool)
    arrived = np.array([isinstance(f, Used) for f in known], bool)
    silent = np.array([f is None for f in known], bool)
    lost: Bools = ~(arrived | (way & silent))
    return lost


def _link_bytes(plan: Plan, view: View, known: list[LinkOutcome], lost: Bools) -> Ints:
    """Bytes on the wire; of what is still on its way, those that it is going to take."""
    size = np.ceil(plan.links.fraction * view.fleet.model_bytes).astype(np.int64)
    told = np.array([f.bytes if f else 0 for f in known], np.int64)
    silent = np.array([f is None for f in known], bool)
    return np.where(silent & ~lost, size, told)


def _exchange_s(plan: Plan, tally: RoundReports) -> Floats:
    """Seconds that each active worker spent fetching and mixing; the round where it failed."""
    reports = [tally.reports.get(int(i)) for i in plan.active]
    spent = [r.seconds / tally.time_scale if r else tally.duration_s for r in reports]
    return np.array(spent, float)


def _losses(plan: Plan, tally: RoundReports) -> Floats:
    if tally.loss is None:
        return np.full(len(plan.active), np.nan)
    return tally.loss[plan.active]


def _idle_s(view: View, tally: RoundReports) -> float:
    """Seconds, summed over the workers present, from the end of a training to the close."""
    if tally.ended_s is None:
        return 0.0
    close_s = view.now_s + tally.duration_s
    spare = np.clip(close_s - np.maximum(tally.ended_s, view.now_s), 0.0, None)
    return float(spare[view.alive].sum())


def _distance(known: list[LinkOutcome]) -> Floats:
    measured = [f.distance if isinstance(f, Used) else None for f in known]
    return np.array([np.nan if d is None else d for d in measured], float)


def trace_observation(view: View) -> View:
    """What of a view goes into the trace: what the mechanism saw of its surroundings."""
    none = np.zeros(0, np.int64)
    fleet = replace(view.fleet, data_size=none, label_counts=none)
    return replace(view, fleet=fleet, pulls=no_pairs(view.fleet.nodes), last=None)


def trace_outcome(
    plan: Plan, view: View, tally: RoundReports, outcome: Outcome, orders: Iterable[int]
) -> dict[str, Any]:
    """Second half of a line of the trace: what became of the plan. `orders` are its nodes."""
    known = link_outcomes(plan, tally.reports)
    used = [f if isinstance(f, Used) else None for f in known]
    number = np.array([-1 if u is None else u.number for u in used], np.int64)
    seconds = np.where([f is None for f in known], np.nan, outcome.link_s)
    src = np.minimum(plan.links.src, view.fleet.workers - 1)
    stale = (number < view.version[src]) & (plan.links.src < view.fleet.workers)
    stale &= np.array([u is not None for u in used], bool)
    line = came_part(
        plan,
        replace(outcome, link_s=seconds),
        stale,
        _orders(plan, tally, sorted(orders)),
        _trainings(tally),
    )
    line["links"]["number"] = number.tolist()
    line["links"]["version"] = [-1 if u is None else u.version for u in used]
    return line


def _orders(plan: Plan, tally: RoundReports, nodes: list[int]) -> Orders:
    reports = [tally.reports.get(node) for node in nodes]
    waited = [np.nan if r is None else r.waited_s / tally.time_scale for r in reports]
    spent = [np.nan if r is None else r.seconds / tally.time_scale for r in reports]
    return Orders(
        node=np.array(nodes, np.int64),
        train=np.isin(nodes, plan.active),
        waited_s=np.array(waited, float),
        exchange_s=np.array(spent, float),
        failed=np.array([r is None for r in reports], bool),
    )


def _trainings(tally: RoundReports) -> Trainings:
    node, began, steps, seconds = zip(*tally.trained, strict=True) if tally.trained else ((),) * 4
    return Trainings(
        np.array(node, np.int64),
        np.array(began, np.int64),
        np.array(steps, np.int64),
        np.array(seconds, float),
    )
