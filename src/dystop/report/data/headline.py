"""The headline of a comparison: who reached the target first, by how much, and how sure that is.

Seeds are compared in pairs, because all mechanisms of a seed share fleet, data and channel. A lead
counts as a win if its mean over the seeds exceeds both its own standard deviation and the time
between two evaluations; anything less is a tie.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from dystop.record import RoundRecord
from dystop.report.data.groups import Group
from dystop.report.data.ranking import Ranking
from dystop.report.data.summary import evaluated_rounds, first_reaching, idle_share
from dystop.units import data, goal, number, percent, plural, seconds


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


def headline(ranking: Ranking, target: float | None) -> str:
    """Say who was first to the target under one timing law, how sure that is, and at what cost.

    Empty where there is nothing to compare.
    """
    if target is None or len(ranking.groups) < 2:
        return ""
    finished = [group for group in ranking.groups if _arrivals(group, target) is not None]
    if not finished:
        return f"No row reached {goal(target)} with every seed."
    first, others = finished[0], finished[1:]
    leads = [(other, lead) for other in others if (lead := _lead(first, other, target))]
    tied = [(other, lead) for other, lead in leads if lead.doubt]
    behind = [(other, lead) for other, lead in leads if not lead.doubt]
    sentences = [
        _tie(first, tied, target) if tied else _win(first, behind, target),
        _distance(*behind[0]) if tied and behind else "",
        _costs(first, others[0] if others else None, target),
    ]
    return " ".join(sentence for sentence in sentences if sentence)


def _arrivals(group: Group, target: float) -> dict[str, Arrival] | None:
    """Return the arrivals by seed; None unless every seed reached the target."""
    found = {}
    for seed, run in zip(group.seeds, group.runs, strict=True):
        reached = first_reaching(run.records, target)
        if reached is None:
            return None
        before = [r.clock_s for r in evaluated_rounds(run.records) if r.round < reached.round]
        found[seed] = Arrival(reached.clock_s, reached.clock_s - max(before, default=0.0))
    return found


def _lead(first: Group, other: Group, target: float) -> Lead | None:
    """Return the lead over the seeds that both groups have; None if they share none."""
    ours, theirs = _arrivals(first, target) or {}, _arrivals(other, target) or {}
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    if not pairs:
        return None
    return Lead(
        gaps_s=tuple(b.clock_s - a.clock_s for a, b in pairs),
        interval_s=max(max(a.since_s, b.since_s) for a, b in pairs),
        saved=statistics.fmean(1 - a.clock_s / b.clock_s if b.clock_s else 0.0 for a, b in pairs),
    )


def _win(first: Group, behind: Sequence[tuple[Group, Lead]], target: float) -> str:
    mean_s = statistics.fmean(a.clock_s for a in (_arrivals(first, target) or {}).values())
    begin = f"{first.label} is first to {goal(target)}, after {seconds(mean_s)}"
    if not behind:
        return f"{begin}; no other row reached it with every seed."
    return f"{begin}, {_gap(*behind[0])}."


def _tie(first: Group, tied: Sequence[tuple[Group, Lead]], target: float) -> str:
    names = [first.label, *(other.label for other, _ in tied)]
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
    reasons = "; ".join(
        f"{other.label} is {seconds(abs(lead.mean_s))} behind, {lead.doubt}" for other, lead in tied
    )
    return f"{listed} tie for the first place to {goal(target)}: {reasons}."


def _distance(other: Group, lead: Lead) -> str:
    return f"{other.label} comes next, {_spread(lead)} later."


def _gap(other: Group, lead: Lead) -> str:
    ahead = sum(gap > 0 for gap in lead.gaps_s)
    seeds = f", in {ahead} of {plural(len(lead.gaps_s), 'seed')}" if len(lead.gaps_s) > 1 else ""
    return f"{_spread(lead)} ({percent(lead.saved, 0)}) before {other.label}{seeds}"


def _spread(lead: Lead) -> str:
    return seconds(lead.mean_s) if len(lead.gaps_s) < 2 else (
        f"{number(lead.mean_s)} ± {number(lead.std_s)} s"
    )  # fmt: skip


def _costs(first: Group, second: Group | None, target: float) -> str:
    """Say what the first group had spent when it arrived, and in brackets what the second had."""
    ours = _spent(first, target)
    theirs = [""] * len(ours) if second is None else [f" ({x})" for x in _spent(second, target)]
    epochs, sent, idle = (a + b for a, b in zip(ours, theirs, strict=True))
    who = "" if second is None else f"; in brackets {second.label}"
    return (
        f"By then the workers of {first.label} had trained {epochs} epochs, moved {sent} and idled "
        f"{idle} of the time{who}."
    )


def _spent(group: Group, target: float) -> tuple[str, str, str]:
    """Return epochs, data and idle share until the target, each as a mean over the seeds."""
    parts = [_until(run.records, target) for run in group.runs]
    last = [rows[-1] for rows in parts]
    idle = [share for rows in parts if (share := idle_share(rows)) is not None]
    return (
        number(statistics.fmean(r.epochs_total for r in last)),
        data(statistics.fmean(r.wire_bytes_total for r in last)),
        percent(statistics.fmean(idle) if idle else None, 0),
    )


def _until(records: Sequence[RoundRecord], target: float) -> Sequence[RoundRecord]:
    reached = first_reaching(records, target)
    assert reached is not None, "only groups that reached the target are described"
    return [r for r in records if r.round <= reached.round]
