"""Leads: by how much one group reaches the target before another, and how sure that is.

Seeds are compared in pairs, because all mechanisms of a seed share fleet, data and channel. A lead
counts as a win if its mean over the seeds exceeds both its own standard deviation and the time
between two evaluations; anything less is a tie.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dystop.report.data.groups import Group
from dystop.report.data.scores import evaluated_rounds, first_reaching
from dystop.units import seconds


@dataclass(frozen=True)
class Arrival:
    """When a seed reached the target."""

    clock_s: float
    since_s: float  # from the evaluation before, by which the target was not reached yet


@dataclass(frozen=True)
class Lead:
    """By how much one group reaches the target before another, seed by seed."""

    gaps_s: tuple[float, ...]  # arrival of the other group minus arrival of the first one
    interval_s: float  # the longest time between the evaluations that the gaps rest on
    saved: float  # mean share of the other group's time

    @property
    def mean_s(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.gaps_s)

    @property
    def std_s(self) -> float:
        """Sample standard deviation between seeds; 0 for one seed."""
        return statistics.stdev(self.gaps_s) if len(self.gaps_s) > 1 else 0.0

    @property
    def doubt(self) -> str:
        """Why the lead is no win; empty if it is one."""
        if self.mean_s <= self.interval_s:
            return f"within one evaluation interval ({seconds(self.interval_s)})"
        if self.mean_s <= self.std_s:
            return "within its spread over the seeds"
        return ""


@dataclass(frozen=True)
class FirstPlace:
    """Who was first to a target with every seed, and who ties with it or comes behind."""

    first: Group
    tied: tuple[tuple[Group, Lead], ...]
    behind: tuple[tuple[Group, Lead], ...]


def first_place(groups: Sequence[Group], target: float | None) -> FirstPlace | None:
    """Return who reached the target first with every seed; None if nobody did."""
    if target is None:
        return None
    found = [(group, arrivals(group, target)) for group in groups]
    finished = [(group, _mean_s(arrived)) for group, arrived in found if arrived is not None]
    if not finished:
        return None
    finished.sort(key=lambda pair: pair[1])
    first, *others = (group for group, _ in finished)
    leads = [(other, lead) for other in others if (lead := lead_of(first, other, target))]
    return FirstPlace(
        first,
        tuple(pair for pair in leads if pair[1].doubt),
        tuple(pair for pair in leads if not pair[1].doubt),
    )


def _mean_s(arrived: Mapping[str, Arrival]) -> float:
    return statistics.fmean(arrival.clock_s for arrival in arrived.values())


def arrivals(group: Group, target: float) -> dict[str, Arrival] | None:
    """Return the arrivals by seed; None unless every seed reached the target."""
    found = {}
    for seed, run in zip(group.seeds, group.runs, strict=True):
        reached = first_reaching(run.records, target)
        if reached is None:
            return None
        before = [r.clock_s for r in evaluated_rounds(run.records) if r.round < reached.round]
        found[seed] = Arrival(reached.clock_s, reached.clock_s - max(before, default=0.0))
    return found


def lead_of(first: Group, other: Group, target: float) -> Lead | None:
    """Return the lead over the seeds that both groups have; None if they share none."""
    ours, theirs = arrivals(first, target) or {}, arrivals(other, target) or {}
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    if not pairs:
        return None
    return Lead(
        gaps_s=tuple(b.clock_s - a.clock_s for a, b in pairs),
        interval_s=max(max(a.since_s, b.since_s) for a, b in pairs),
        saved=statistics.fmean(1 - a.clock_s / b.clock_s if b.clock_s else 0.0 for a, b in pairs),
    )
