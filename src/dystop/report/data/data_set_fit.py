"""Whether one reading fits both data sets: the nearest on each, and what it gives of the other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dystop.experiments.reproduce.campaigns import Data
from dystop.experiments.reproduce.distance import Number
from dystop.report.data.nearness import DATA_SETS, SIMULATED, ReadingResult
from dystop.report.data.verdicts import FAR, NEAR
from dystop.units import are, plural


@dataclass(frozen=True)
class DataSetFit:
    """The readings that were run on one data set."""

    data: Data
    ranked: tuple[ReadingResult, ...]  # nearest first, at least one

    @property
    def name(self) -> str:
        """The name of the data set."""
        return DATA_SETS[self.data]

    @property
    def nearest(self) -> ReadingResult:
        """The reading that is nearest on this data set."""
        return self.ranked[0]

    def among(self, readings: set[str]) -> "DataSetFit":
        """Return the same with some of the readings only."""
        kept = tuple(result for result in self.ranked if result.reading.name in readings)
        return DataSetFit(self.data, kept)

    def place(self, result: ReadingResult) -> str:
        """Return the place of a reading on this data set, in words."""
        at = self.names.index(result.reading.name) + 1
        own = result.distance_on(self.data) or 0.0
        best = self.nearest.distance_on(self.data) or 0.0
        return (
            f"number {at} of {len(self.ranked)} on {self.name} "
            f"(distance {own:.3f}, the nearest has {best:.3f})"
        )

    @property
    def names(self) -> list[str]:
        """The names of the readings, nearest first."""
        return [result.reading.name for result in self.ranked]


def fits(results: Sequence[ReadingResult]) -> list[DataSetFit]:
    """Return the data sets that at least one reading has a distance on."""
    found = []
    for data in DATA_SETS:
        known = [(d, r.reading.name, r) for r in results if (d := r.distance_on(data)) is not None]
        if known:
            found.append(DataSetFit(data, tuple(r for *_, r in sorted(known, key=lambda k: k[:2]))))
    return found


def is_within(number: Number, share: float) -> bool:
    """Return whether our number exists, is exact, and lies within a share of the paper's."""
    return (
        number.ours is not None
        and not number.beyond
        and abs(number.ours / number.paper - 1.0) <= share
    )


def fit_sentences(results: Sequence[ReadingResult]) -> list[str]:
    """Say which reading is the nearest on each data set, and whether one fits both simulations."""
    every = fits(results)
    told = [_told(fit) for fit in every]
    found = [fit for fit in every if fit.data in SIMULATED]
    shared = set.intersection(*(set(fit.names) for fit in found)) if len(found) > 1 else set()
    if not shared:
        return told
    one, other = (fit.among(shared) for fit in found)
    told.append(_nearest_on_both(one, other))
    if one.names[0] != other.names[0]:
        joint = _nearest_by_mean(one, other)
        told.append(
            f"{joint.reading.name} has the smallest mean of both distances: "
            f"{joint.distance_on(one.data):.2f} and {joint.distance_on(other.data):.2f}."
        )
    if len(shared) > 2:
        told.append(
            f"The rank correlation of both distances is {rank_correlation(one, other):.2f} "
            "(1: the same order; 0: no relation; -1: the reverse order)."
        )
    return [*told, _most_given(one)]


def _told(fit: DataSetFit) -> str:
    own = [n for n in fit.nearest.numbers if n.data == fit.data]
    near, far = (sum(is_within(n, share) for n in own) for share in (NEAR, FAR))
    return (
        f"{fit.name}: {fit.names[0]} is the nearest of {plural(len(fit.ranked), 'reading')}, "
        f"with a distance of {fit.nearest.distance_on(fit.data):.2f}. Of its "
        f"{plural(len(own), 'number')}, {near} {'lies' if near == 1 else 'lie'} within 10 % of the "
        f"paper's, and {far} within 30 %."
    )


def _nearest_on_both(one: DataSetFit, other: DataSetFit) -> str:
    told = f"{plural(len(one.ranked), 'reading')} {'was' if len(one.ranked) == 1 else 'were'} run "
    told += f"on {one.name} and on {other.name}. "
    if one.names[0] == other.names[0]:
        return f"{told}{one.names[0]} is the nearest of them on both."
    return (
        f"{told}None of them is the nearest on both. {one.names[0]}, the nearest on {one.name}, is "
        f"{other.place(one.nearest)}. {other.names[0]}, the nearest on {other.name}, is "
        f"{one.place(other.nearest)}."
    )


def _nearest_by_mean(one: DataSetFit, other: DataSetFit) -> ReadingResult:
    def total(result: ReadingResult) -> float:
        return (result.distance_on(one.data) or 0.0) + (result.distance_on(other.data) or 0.0)

    return min(one.ranked, key=lambda result: (total(result), result.reading.name))


def rank_correlation(one: DataSetFit, other: DataSetFit) -> float:
    """Return Spearman's rank correlation of the distances on two data sets."""
    places = {name: k for k, name in enumerate(other.names)}
    ranks = np.array([places[name] for name in one.names], dtype=float)
    return float(np.corrcoef(np.arange(len(ranks)), ranks)[0, 1])


def _most_given(both: DataSetFit) -> str:
    """Say how many numbers the best reading gives, and whether one gives all."""
    numbers = {r.reading.name: [n for n in r.numbers if n.data in SIMULATED] for r in both.ranked}
    counts = {name: sum(is_within(n, FAR) for n in own) for name, own in numbers.items()}
    name = max(counts, key=lambda reading: counts[reading])
    total = len(numbers[name])
    every = [reading for reading, count in counts.items() if count == total]
    fit = f"{are(len(every), 'reading')}" if every else "No reading is"
    return (
        f"{fit} within 30 % of every number of these two data sets. {name} gives the most: "
        f"{counts[name]} of {total}."
    )
