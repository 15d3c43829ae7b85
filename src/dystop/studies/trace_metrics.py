"""Differences between two runs: pure measures of durations, plans, accuracy and predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dystop.record import RoundRecord
from dystop.recorders.topology import Topology
from dystop.sparse import Floats
from dystop.world.trace import TracedRound


@dataclass(frozen=True)
class Errors:
    """Errors of predicted seconds; a relative error is |predicted - measured| / measured."""

    count: int
    mean: float | None  # of the relative errors; None if nothing was measured
    median: float | None
    q95: float | None
    measured_s: float  # sums
    predicted_s: float

    @property
    def total(self) -> float | None:
        """The signed relative error of the sums: above 0 if the prediction is too large."""
        return None if not self.measured_s else self.predicted_s / self.measured_s - 1.0

    @property
    def excess_s(self) -> float:
        """The seconds that were measured beyond the prediction, on average; at least 0."""
        return max(self.measured_s - self.predicted_s, 0.0) / max(self.count, 1)


def errors_of(predicted_s: Floats, measured_s: Floats) -> Errors:
    """Compare pairwise; leave out pairs without a finite prediction and a measurement above 0.

    >>> found = errors_of(np.array([1.0, 3.0, 9.0]), np.array([2.0, 3.0, np.nan]))
    >>> found.count, found.mean, found.total
    (2, 0.25, -0.19999999999999996)
    """
    use = np.isfinite(predicted_s) & np.isfinite(measured_s) & (measured_s > 0)
    predicted, measured = predicted_s[use], measured_s[use]
    off = np.abs(predicted - measured) / measured
    sums = float(measured.sum()), float(predicted.sum())
    if not len(off):
        return Errors(0, None, None, None, *sums)
    median, q95 = np.quantile(off, [0.5, 0.95]).tolist()
    return Errors(len(off), float(off.mean()), median, q95, *sums)


@dataclass(frozen=True)
class PlanSimilarity:
    """Similarity between the plans of two runs, over all rounds."""

    same_active: float  # share of rounds with equal active sets
    same_links: float  # share of rounds with equal links
    active_overlap: float  # mean Jaccard index of the active sets
    link_overlap: float  # mean Jaccard index of the links


Pairs = frozenset[Any]


def overlap(a: Pairs, b: Pairs) -> float:
    """Return the Jaccard index of two sets; it is 1 for two empty sets.

    >>> overlap(frozenset({1, 2}), frozenset({2, 3}))
    0.3333333333333333
    """
    return len(a & b) / len(a | b) if a | b else 1.0


def plan_similarity(
    real: Sequence[TracedRound], records: Sequence[RoundRecord], lost: bool
) -> PlanSimilarity | None:
    """Compare simulated plans with traced plans; return None if the records hold no links.

    Args:
        real: Rounds of the trace.
        records: Rounds of a simulation.
        lost: Whether to leave out the lost links of the trace; records hold no lost links.
    """
    if not records or any(r.group(Topology) is None for r in records):
        return None
    active = [
        (frozenset(t.active.tolist()), frozenset(r.get("active_ids") or ()))
        for t, r in zip(real, records, strict=False)
    ]
    links = [
        (links_of(t, lost), frozenset(map(tuple, r.get("link_pairs") or ())))
        for t, r in zip(real, records, strict=False)
    ]
    return PlanSimilarity(
        same_active=_mean([float(a == b) for a, b in active]),
        same_links=_mean([float(a == b) for a, b in links]),
        active_overlap=_mean([overlap(a, b) for a, b in active]),
        link_overlap=_mean([overlap(a, b) for a, b in links]),
    )


def links_of(line: TracedRound, lost: bool) -> Pairs:
    """Return the pairs (dst, src) of a traced round; with `lost`, leave out the lost links."""
    kept = ~line.links.lost if lost else np.ones(len(line.links.dst), bool)
    return frozenset(zip(line.links.dst[kept].tolist(), line.links.src[kept].tolist(), strict=True))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


@dataclass(frozen=True)
class Learning:
    """The final accuracy of a run, and the distance between its curve and the real one."""

    final: float | None
    final_gap: float | None  # simulated minus real
    curve_gap: float | None  # mean |simulated - real| over the rounds that both evaluated
    tested: int  # rounds that both evaluated


def learning(real: Sequence[RoundRecord], records: Sequence[RoundRecord]) -> Learning:
    """Compare test accuracies, round by round."""
    ours = {r.round: r.accuracy for r in records if r.accuracy is not None}
    theirs = {r.round: r.accuracy for r in real if r.accuracy is not None}
    both = sorted(set(ours) & set(theirs))
    gaps = [abs(ours[t] - theirs[t]) for t in both]
    return Learning(
        final=ours[max(ours)] if ours else None,
        final_gap=ours[both[-1]] - theirs[both[-1]] if both else None,
        curve_gap=_mean(gaps) if gaps else None,
        tested=len(both),
    )


@dataclass(frozen=True)
class Pace:
    """How much the workers of a run do; the law of time decides it."""

    active: float  # active workers of a round, on average
    staleness: float  # mean over workers and rounds
    passes: float  # over the training data until the end


def pace(records: Sequence[RoundRecord]) -> Pace:
    """Return the pace of one round or more."""
    return Pace(
        active=_mean([float(r.active) for r in records]),
        staleness=_mean([r.staleness_mean for r in records]),
        passes=records[-1].epochs_total,
    )
