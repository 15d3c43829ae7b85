"""Points of lines: records condensed to few points, means over seeds, moving means."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dystop.record import RoundRecord
from dystop.report.data.groups import Group
from dystop.report.data.scores import evaluated_rounds
from dystop.sparse import Floats
from dystop.units import known, number

Quantity = Callable[[RoundRecord], float | None]
"""Reads a number from a record; None where the record has none."""

MAX_POINTS = 200
"""Points of a line; with more rounds, a point stands for several of them."""

SMOOTHED_FROM = 60
"""Points beyond which a noisy line is smoothed."""


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


@dataclass(frozen=True)
class MeanCurve:
    """The mean over the seeds of a group, on the part of the axis that all seeds cover."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    seeds: tuple[tuple[Floats, Floats], ...]  # x and y of each
    smoothed: bool = False

    def __len__(self) -> int:
        return len(self.x)

    @property
    def covers_little(self) -> bool:
        """Whether the mean covers less than half of what the longest seed covers."""
        longest = max((x[-1] - x[0] for x, _ in self.seeds), default=0.0)
        return len(self.seeds) > 1 and bool(self.x[-1] - self.x[0] < 0.5 * longest)


def clock_s(record: RoundRecord) -> float:
    """Return the clock in seconds when the round closed."""
    return record.clock_s


def wire_bytes(record: RoundRecord) -> float:
    """Return the bytes on the wire since the start."""
    return record.wire_bytes_total


def epochs(record: RoundRecord) -> float:
    """Return the local epochs since the start, in passes over the training set."""
    return record.epochs_total


def series(records: Sequence[RoundRecord], x: Quantity, y: Quantity) -> Series:
    """Return the points of the records that have both values, grouped if they are many.

    A group is placed at its last x, so that nothing is shown before it happened.
    """
    pairs = [(a, b) for r in records if (a := known(x(r))) is not None
             and (b := known(y(r))) is not None]  # fmt: skip
    points = np.asarray(pairs, float).reshape(-1, 2)
    group = max(1, -(-len(points) // MAX_POINTS))
    first = np.arange(0, len(points), group)
    last = np.minimum(first + group, len(points)) - 1
    values = points[:, 1]
    if not len(values):
        return Series(values, values, values, values)
    mean = np.add.reduceat(values, first) / (last - first + 1)
    low, high = np.minimum.reduceat(values, first), np.maximum.reduceat(values, first)
    return Series(points[last, 0], mean, low, high, group)


def mean_curve(group: Group, x: Quantity, y: Quantity, *, smooth: bool = False) -> MeanCurve:
    """Return mean, lowest and highest over the seeds wherever one of them has a point.

    A seed is interpolated linearly between its own points. With a single seed the points are its
    own and nothing is interpolated.
    """
    lines = [series(records, x, y) for records in group.histories]
    points = [(line.x, line.mean) for line in lines if len(line)]
    smoothed = smooth and any(len(at) > SMOOTHED_FROM for at, _ in points)
    if smoothed:
        points = [(at, moving_mean(value, len(at) // 20)) for at, value in points]
    if not points:
        none = np.zeros(0)
        return MeanCurve(none, none, none, none, ())
    grid = _common_grid([at for at, _ in points])
    rows = np.array([np.interp(grid, at, value) for at, value in points])
    low, high = rows.min(axis=0), rows.max(axis=0)
    return MeanCurve(grid, rows.mean(axis=0), low, high, tuple(points), smoothed)


def _common_grid(seeds: Sequence[Floats]) -> Floats:
    """Return the x of all points inside the range of every seed, at most `MAX_POINTS` of them."""
    first, last = max(x[0] for x in seeds), min(x[-1] for x in seeds)
    every = np.unique(np.concatenate(seeds))
    inside = every[(every >= first) & (every <= last)]
    if not len(inside):  # seeds that do not overlap share no range; the latest start stands for it
        inside = np.array([first])
    take = np.unique(np.linspace(0, len(inside) - 1, MAX_POINTS).round().astype(int))
    out: Floats = inside[take] if len(inside) > MAX_POINTS else inside
    return out


def moving_mean(values: Floats, reach: int) -> Floats:
    """Return the mean over each value and up to `reach` neighbours on either side.

    >>> moving_mean(np.array([0.0, 3.0, 6.0]), 1).tolist()
    [1.5, 3.0, 4.5]
    """
    total = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(len(values))
    low, high = np.maximum(place - reach, 0), np.minimum(place + reach + 1, len(values))
    out: Floats = (total[high] - total[low]) / (high - low)
    return out


def staleness_shares(records: Sequence[RoundRecord]) -> Floats:
    """Return the share of all (worker, round) pairs at staleness 0, 1, 2, ...; may be empty."""
    total = np.zeros(max((len(r.staleness_histogram) for r in records), default=0))
    for record in records:
        total[: len(record.staleness_histogram)] += record.staleness_histogram
    out: Floats = np.trim_zeros(total, "b")
    return out / out.sum() if out.sum() else np.zeros(0)


def grouping_note(drawn: Sequence[Series]) -> tuple[str, ...]:
    """Return a note where points stand for several rounds."""
    groups = sorted({s.group for s in drawn if s.group > 1})
    if not groups:
        return ()
    size = str(groups[0]) if len(groups) == 1 else f"{groups[0]} to {groups[-1]}"
    return (f"Each point is the mean of {size} rounds; the band spans their extremes.",)


def evaluation_note(histories: Sequence[Sequence[RoundRecord]]) -> tuple[str, ...]:
    """Return a note on how often the models were evaluated."""
    evaluated = [rows for rows in map(evaluated_rounds, histories) if rows]
    gaps = [float(np.median(np.diff([r.clock_s for r in e]))) for e in evaluated if len(e) > 1]
    if not gaps:
        return ("Evaluated once.",) if evaluated else ()
    low, high = number(min(gaps)), number(max(gaps))
    every = low if low == high else f"{low} to {high}"
    return (f"Evaluated about every {every} s of the clock; lines only join the points.",)
