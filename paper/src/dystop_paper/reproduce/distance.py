"""The distance between measured numbers and those that the paper states.

The distance of one number is |ln(ours / paper)|: 0 where they are equal, 0.69 for half or double.
A number that is off by more than a factor of five, or that does not exist, counts as a factor of
five. The distance of a reading is the mean over its measures (time, traffic, accuracy, staleness)
of the mean over the numbers of each measure, so that a measure with many numbers does not outweigh
the others.

A time that is not reached lies beyond the end of the run. If the paper's number lies there as well,
the end of the run is taken in its place; otherwise it counts as a factor of five.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

FACTOR = 5.0
CAP = math.log(FACTOR)
"""The largest distance of one number."""

Beyond = Literal[-1, 0, 1]


@dataclass(frozen=True)
class Number:
    """A number of the paper beside ours.

    Attributes:
        name: The sentence of the paper, with its data set.
        measure: What it measures; numbers of one measure are averaged first.
        paper: The paper's number.
        ours: Ours; None: there is none.
        beyond: 0: ours is exact; 1: it is larger than `ours`; -1: it is smaller.
        group: The numbers that have a distance together: those on a data set, or of settings on it
            (ADR 0044).
        in_distance: Whether it counts in the distance of a reading, or only in that of the reading
            on its group (ADR 0044).
    """

    name: str
    measure: str
    paper: float
    ours: float | None
    beyond: Beyond = 0
    group: str = "fmnist"
    in_distance: bool = True

    @property
    def distance(self) -> float:
        """How far ours is from the paper's, from 0 to `CAP`.

        >>> Number("time", "time", 80.0, 40.0).distance == math.log(2)
        True
        >>> Number("time", "time", 350.0, 120.0, beyond=1).distance < CAP  # not reached in 120 s
        True
        >>> Number("time", "time", 80.0, 120.0, beyond=1).distance == CAP
        True
        """
        if self.ours is None or not math.isfinite(self.ours) or self.ours <= 0:
            return CAP
        log_ratio = math.log(self.ours / self.paper)
        if self.beyond * log_ratio > 0:  # ours lies still farther away
            return CAP
        return min(abs(log_ratio), CAP)


def distance(numbers: Iterable[Number]) -> float | None:
    """Return the distance of a reading; None without a number."""
    by_measure: dict[str, list[float]] = {}
    for number in numbers:
        by_measure.setdefault(number.measure, []).append(number.distance)
    return fmean(map(fmean, by_measure.values())) if by_measure else None
