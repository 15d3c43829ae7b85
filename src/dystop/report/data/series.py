"""From records to the points of a line; long histories are condensed, and say so."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dystop.record import RoundRecord
from dystop.report.data.arrays import Floats
from dystop.report.data.summary import evaluated
from dystop.units import known, number

BINS = 200
"""Points a line may have before rounds are drawn in groups."""

Pick = Callable[[RoundRecord], float | None]


@dataclass(frozen=True)
class Series:
    """Points of one line; where `group` rounds share a point, `low` and `high` span them."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    group: int = 1

    def __len__(self) -> int:
        return len(self.x)


def series(records: Sequence[RoundRecord], x: Pick, y: Pick) -> Series:
    """Points of the records that have both values, grouped where there are too many.

    A group sits at its last x, so that nothing is shown before it happened.
    """
    pairs = [(a, b) for r in records if (a := known(x(r))) is not None
             and (b := known(y(r))) is not None]  # fmt: skip
    points = np.asarray(pairs, float).reshape(-1, 2)
    group = max(1, -(-len(points) // BINS))
    first = np.arange(0, len(points), group)
    last = np.minimum(first + group, len(points)) - 1
    values = points[:, 1]
    if not len(values):
        return Series(values, values, values, values)
    mean = np.add.reduceat(values, first) / (last - first + 1)
    low, high = np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)
    return Series(points[last, 0], mean, low, high, group)


def group_note(drawn: Sequence[Series]) -> tuple[str, ...]:
    """Says that points stand for several rounds, where they do."""
    groups = sorted({s.group for s in drawn if s.group > 1})
    if not groups:
        return ()
    size = str(groups[0]) if len(groups) == 1 else f"{groups[0]} to {groups[-1]}"
    return (f"Each point is the mean of {size} rounds; the band spans their extremes.",)


def evaluation_note(histories: Sequence[Sequence[RoundRecord]]) -> tuple[str, ...]:
    """How often the models were tested: the points between which a line is only a guide."""
    scored = [e for e in map(evaluated, histories) if e]
    gaps = [float(np.median(np.diff([r.clock_s for r in e]))) for e in scored if len(e) > 1]
    if not gaps:
        return ("Evaluated once.",) if scored else ()
    low, high = number(min(gaps)), number(max(gaps))
    every = low if low == high else f"{low} to {high}"
    return (f"Evaluated about every {every} s of the clock; lines only join the points.",)
