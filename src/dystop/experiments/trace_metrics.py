"""How far two histories are apart: pure measures of rounds, plans, curves and predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dystop.record import RoundRecord
from dystop.sparse import Floats
from dystop.world.trace import TracedRound


@dataclass(frozen=True)
class Errors:
    """Predicted against measured seconds. Relative errors are |predicted - measured| / measured."""

    count: int
    mean: float | None  # of the relative errors; None: nothing was measured
    median: float | None
    q95: float | None
    measured_s: float  # sums
    predicted_s: float

    @property
    def total(self) -> float | None:
        """Relative error of the sums, with its sign: above 0 where too much was predicted."""
        return None if not self.measured_s else self.predicted_s / self.measured_s - 1.0


def errors_of(predicted_s: Floats, measured_s: Floats) -> Errors:
    """Compare pairwise; pairs that were not measured, or measured as nothing, are left out.

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
    """How alike the plans of two histories are; shares of rounds, or means over rounds."""

    same_active: float
    same_links: float
    active_overlap: float  # Jaccard: common workers / all workers named
    link_overlap: float


Pairs = frozenset[Any]


def overlap(a: Pairs, b: Pairs) -> float:
    """Jaccard index; two empty sets are alike.

    >>> overlap(frozenset({1, 2}), frozenset({2, 3}))
    0.3333333333333333
    """
    return len(a & b) / len(a | b) if a | b else 1.0


def plan_similarity(
    real: Sequence[TracedRound], records: Sequence[RoundRecord], lost: bool
) -> PlanSimilarity | None:
    """Compare decided plans with recorded ones; None where the records hold no links.

    Args:
        real: Rounds of the trace.
        records: Rounds of a simulation.
        lost: Whether the links of the trace that were lost are left out, as records leave them out.
    """
    if not records or any(r.active_ids is None or r.link_pairs is None for r in records):
        return None
    active = [
        (frozenset(t.active.tolist()), frozenset(r.active_ids or ()))
        for t, r in zip(real, records, strict=False)
    ]
    links = [
        (links_of(t, lost), frozenset(map(tuple, r.link_pairs or ())))
        for t, r in zip(real, records, strict=False)
    ]
    return PlanSimilarity(
        same_active=_mean([float(a == b) for a, b in active]),
        same_links=_mean([float(a == b) for a, b in links]),
        active_overlap=_mean([overlap(a, b) for a, b in active]),
        link_overlap=_mean([overlap(a, b) for a, b in links]),
    )


def links_of(line: TracedRound, lost: bool) -> Pairs:
    """Pairs (dst, src) of a recorded round, without those that were lost if asked to."""
    kept = ~line.links.lost if lost else np.ones(len(line.links.dst), bool)
    return frozenset(zip(line.links.dst[kept].tolist(), line.links.src[kept].tolist(), strict=True))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


@dataclass(frozen=True)
class Learning:
    """Accuracy at the end and how far the curves are apart where both were tested."""

    final: float | None
    final_gap: float | None  # simulated minus real
    curve_gap: float | None  # mean |simulated - real| over the rounds that both tested
    tested: int  # such rounds


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
