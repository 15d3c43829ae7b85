"""Whether one reading fits all groups of numbers: the nearest on each, and their orders."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from dystop.units import are, plural
from dystop_paper.data.nearness import GROUPS, SIMULATED, ReadingResult
from dystop_paper.data.verdicts import FAR, NEAR
from dystop_paper.reproduce.distance import Number
from dystop_paper.reproduce.reading_runs import Group

MIN_SHARED = 3
"""Two readings have one of two orders, so that their rank correlation says nothing."""


@dataclass(frozen=True)
class GroupFit:
    """The readings that have a distance on one group of numbers."""

    group: Group
    ranked: tuple[ReadingResult, ...]  # nearest first, at least one

    @property
    def name(self) -> str:
        """The name of the group."""
        return GROUPS[self.group]

    @property
    def nearest(self) -> ReadingResult:
        """The reading that is nearest on this group."""
        return self.ranked[0]

    def among(self, readings: set[str]) -> "GroupFit":
        """Return the same with some of the readings only."""
        kept = tuple(result for result in self.ranked if result.reading.name in readings)
        return GroupFit(self.group, kept)

    def place(self, result: ReadingResult) -> str:
        """Return the place of a reading on this group, in words."""
        at = self.names.index(result.reading.name) + 1
        own = result.distance_on(self.group) or 0.0
        best = self.nearest.distance_on(self.group) or 0.0
        return (
            f"number {at} of {len(self.ranked)} on {self.name} "
            f"(distance {own:.3f}, the nearest has {best:.3f})"
        )

    @property
    def names(self) -> list[str]:
        """The names of the readings, nearest first."""
        return [result.reading.name for result in self.ranked]

    def ranks(self) -> dict[str, float]:
        """Return the rank of each reading; equal distances share the mean of their ranks."""
        distances = [result.distance_on(self.group) or 0.0 for result in self.ranked]
        _, tie, sizes = np.unique(distances, return_inverse=True, return_counts=True)
        mean_ranks = np.cumsum(sizes) - (sizes - 1) / 2
        return dict(zip(self.names, mean_ranks[tie].tolist(), strict=True))


def fits(results: Sequence[ReadingResult]) -> list[GroupFit]:
    """Return the groups of numbers that at least one reading has a distance on."""
    found = []
    for group in GROUPS:
        known = [(d, r.reading.name, r) for r in results if (d := r.distance_on(group)) is not None]
        if known:
            found.append(GroupFit(group, tuple(r for *_, r in sorted(known, key=lambda k: k[:2]))))
    return found


def is_within(number: Number, share: float) -> bool:
    """Return whether our number exists, is exact, and lies within a share of the paper's."""
    return (
        number.ours is not None
        and not number.beyond
        and abs(number.ours / number.paper - 1.0) <= share
    )


def fit_sentences(results: Sequence[ReadingResult]) -> list[str]:
    """Say which reading is the nearest on each group, and whether groups agree about it."""
    found = fits(results)
    told = [_told(fit) for fit in found]
    return [*told, *_on_both_simulated(found), *_rank_correlations(found)]


def _on_both_simulated(found: Sequence[GroupFit]) -> list[str]:
    """Say whether one reading fits both data sets of the paper's simulations."""
    simulated = [fit for fit in found if fit.group in SIMULATED]
    pair = _among_shared(*simulated) if len(simulated) > 1 else None
    if pair is None or not pair[0].ranked:
        return []
    one, other = pair
    told = [_nearest_on_both(one, other)]
    if one.names[0] != other.names[0]:
        joint = _nearest_by_mean(one, other)
        told.append(
            f"{joint.reading.name} has the smallest mean of both distances: "
            f"{joint.distance_on(one.group):.2f} and {joint.distance_on(other.group):.2f}."
        )
    return [*told, _most_given(one)]


def _rank_correlations(found: Sequence[GroupFit]) -> list[str]:
    """Say for every pair of groups whether the same readings are near on both."""
    known = []
    for one, other in (_among_shared(*pair) for pair in combinations(found, 2)):
        correlation = rank_correlation(one, other)
        if correlation is not None:
            shared = plural(len(one.ranked), "reading")
            known.append(f"{correlation:.2f} on {one.name} and {other.name} ({shared})")
    if not known:
        return []
    return [
        "Rank correlation of the distances (1: the same order; 0: no relation; -1: the reverse "
        f"order): {', '.join(known)}."
    ]


def _among_shared(one: GroupFit, other: GroupFit) -> tuple[GroupFit, GroupFit]:
    """Return both with those readings only that were run on both groups."""
    shared = {*one.names} & {*other.names}
    return one.among(shared), other.among(shared)


def _told(fit: GroupFit) -> str:
    own = [n for n in fit.nearest.numbers if n.group == fit.group]
    near, far = (sum(is_within(n, share) for n in own) for share in (NEAR, FAR))
    return (
        f"{fit.name}: {fit.names[0]} is the nearest of {plural(len(fit.ranked), 'reading')}, "
        f"with a distance of {fit.nearest.distance_on(fit.group):.2f}. Of its "
        f"{plural(len(own), 'number')}, {near} {'lies' if near == 1 else 'lie'} within 10 % of the "
        f"paper's, and {far} within 30 %."
    )


def _nearest_on_both(one: GroupFit, other: GroupFit) -> str:
    told = f"{plural(len(one.ranked), 'reading')} {'was' if len(one.ranked) == 1 else 'were'} run "
    told += f"on {one.name} and on {other.name}. "
    if one.names[0] == other.names[0]:
        return f"{told}{one.names[0]} is the nearest of them on both."
    return (
        f"{told}None of them is the nearest on both. {one.names[0]}, the nearest on {one.name}, is "
        f"{other.place(one.nearest)}. {other.names[0]}, the nearest on {other.name}, is "
        f"{one.place(other.nearest)}."
    )


def _nearest_by_mean(one: GroupFit, other: GroupFit) -> ReadingResult:
    def total(result: ReadingResult) -> float:
        return (result.distance_on(one.group) or 0.0) + (result.distance_on(other.group) or 0.0)

    return min(one.ranked, key=lambda result: (total(result), result.reading.name))


def rank_correlation(one: GroupFit, other: GroupFit) -> float | None:
    """Return Spearman's rank correlation of the distances of the same readings on two groups.

    Readings with the same distance share the mean of their ranks. There is no correlation of fewer
    than three readings, nor if all have the same distance: then it is None.
    """
    places = other.ranks()
    pairs = np.array([(rank, places[name]) for name, rank in one.ranks().items()])
    if len(pairs) < MIN_SHARED or (pairs == pairs[0]).all(axis=0).any():
        return None
    return float(np.corrcoef(pairs.T)[0, 1])


def _most_given(both: GroupFit) -> str:
    """Say how many numbers the best reading gives, and whether one gives all."""
    numbers = {r.reading.name: [n for n in r.numbers if n.group in SIMULATED] for r in both.ranked}
    counts = {name: sum(is_within(n, FAR) for n in own) for name, own in numbers.items()}
    name = max(counts, key=lambda reading: counts[reading])
    total = len(numbers[name])
    every = [reading for reading, count in counts.items() if count == total]
    fit = f"{are(len(every), 'reading')}" if every else "No reading is"
    return (
        f"{fit} within 30 % of every number of these two data sets. {name} gives the most: "
        f"{counts[name]} of {total}."
    )
