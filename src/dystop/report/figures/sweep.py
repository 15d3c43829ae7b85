"""The figures of a sweep: what an outcome is at each value of the keys that were varied."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from dystop.params import short_names
from dystop.report.data.groups import Group, Spread, common_time_s, interval_s, over_seeds
from dystop.report.data.names import numeric, shown, value_of, values_of
from dystop.report.data.ranking import accuracy_by, to_target
from dystop.report.data.summary import summarise
from dystop.report.figures.heat_map import heat, is_map
from dystop.report.figures.learning import NO_ROUND, NO_SCORE
from dystop.report.figures.style import Mark, Plot, canvas, house_style, legend_keys, line_key, look
from dystop.units import data_unit, goal, number, seconds, time_unit

MOST_LINES = 12
_WIDE = 20.0
"""Ratio of the largest value to the smallest from which an axis is logarithmic."""
WHISKER = "Line: mean over the seeds; whisker: lowest to highest seed."
PARTLY = "Hollow: not every seed reached the target; the mean is over those that did."
TOO_MANY = "More than {most} combinations of the other keys: see the tables and results.csv."

Measure = Callable[[Group], Spread]


@dataclass(frozen=True)
class Line(Mark):
    """The groups that share all swept values but the one along the axis."""

    at: Mapping[int, Group] = field(default_factory=dict)  # by place on the axis


@dataclass(frozen=True)
class Grid:
    """Where the groups of a sweep lie."""

    key: str  # along the axis
    values: list[Any]  # in order
    lines: list[Line]

    @property
    def numeric(self) -> bool:
        """Whether the values have places of their own."""
        return numeric(self.values)

    @property
    def places(self) -> list[float]:
        """Where each value is on the axis."""
        return [float(v) for v in self.values] if self.numeric else list(range(len(self.values)))


def lay_out(every: Sequence[Group], over: Sequence[str]) -> Grid:
    """Along the axis goes the key with the most numbers; each combination of others is a line."""
    runs = [group.runs[0] for group in every]
    values = {key: values_of(runs, key) for key in over}
    across = max(over, key=lambda k: (len(values[k]) > 1, numeric(values[k]), len(values[k])))
    rest = [key for key in over if key != across and len(values[key]) > 1]
    lines: dict[str, dict[int, Group]] = {}
    short = short_names(rest)
    for group in every:
        label = ", ".join(_told(group, key, short[key]) for key in rest)
        lines.setdefault(label, {})[values[across].index(value_of(group.runs[0], across))] = group
    return Grid(across, values[across], [
        Line(label, *look(k), len(lines) > 1, at) for k, (label, at) in enumerate(lines.items())
    ])  # fmt: skip


def _told(group: Group, key: str, short: str) -> str:
    """A setting in words; a mechanism with its provenance."""
    if key == "mechanism.name":
        return group.mechanism.name + group.mechanism.caveat
    return f"{short} = {shown(value_of(group.runs[0], key))}"


def draw_sweep(every: Sequence[Group], over: Sequence[str], target: float | None) -> list[Plot]:
    """The figures of a sweep, in reading order."""
    grid = lay_out(every, over)
    own, when = own_accuracy(every)
    maps = [heat(every, over, target, (own, when))] if is_map(every, over) else []
    return [accuracy(grid, every), cost(grid, target), *maps, pace(grid)]


def _draw(axes: Axes, grid: Grid, measure: Measure, scale: float, style: str = "-") -> bool:
    """A line per combination; returns whether some point stands for a part of its seeds."""
    partly = False
    for line in grid.lines:
        spreads = {k: measure(group) for k, group in sorted(line.at.items())}
        known = {k: s for k, s in spreads.items() if s.mean is not None}
        x = np.array([grid.places[k] for k in known])
        mean = np.array([s.mean for s in known.values()], float) / scale
        axes.plot(x, mean, color=line.color, linestyle=style, marker=line.marker)
        for at, spread in zip(x, known.values(), strict=True):
            ends = np.array([min(spread.values), max(spread.values)]) / scale
            axes.plot([at, at], ends, color=line.color, linewidth=1.0)
            if not spread.complete:
                partly = True
                axes.plot(at, (spread.mean or 0.0) / scale, line.marker, color=line.color, mfc="w")
    _ticks(axes, grid)
    return partly


def _ticks(axes: Axes, grid: Grid) -> None:
    """The values themselves, and nothing between them."""
    places = grid.places
    if grid.numeric and min(places) > 0 and max(places) >= _WIDE * min(places):
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(places))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([shown(v) for v in grid.values])
    axes.set_xlabel(grid.key)


def _notes(grid: Grid, *, partly: bool = False) -> tuple[str, ...]:
    several = any(len(g.runs) > 1 for line in grid.lines for g in line.at.values())
    return (*((WHISKER,) if several else ()), *((PARTLY,) if partly else ()))


def _alt(what: str, grid: Grid, measure: Measure, scale: float = 1.0) -> str:
    told = []
    for line in grid.lines:
        means = [(k, measure(group).mean) for k, group in sorted(line.at.items())]
        points = [
            f"{number(mean / scale) if mean is not None else 'nothing'} at {shown(grid.values[k])}"
            for k, mean in means
        ]
        told.append(f"{line.label + ': ' if line.label else ''}{', '.join(points)}")
    return f"Line chart: {what} against {grid.key}. {'; '.join(told)}."


def own_accuracy(every: Sequence[Group]) -> tuple[Measure, str]:
    """Accuracy of own models at a time that all runs reached, else at their ends; and when."""
    at_s, step_s = common_time_s(every), interval_s(every)
    if at_s is None:
        return lambda g: over_seeds(s.accuracy for s in summarise(g.runs)), "at the end of each run"

    def by_then(group: Group) -> Spread:
        return over_seeds(accuracy_by(run.records, at_s, step_s) for run in group.runs)

    return by_then, f"after {seconds(round(at_s, 9))}"


@house_style()
def accuracy(grid: Grid, every: Sequence[Group]) -> Plot:
    """Accuracy of own models and of their average."""
    own, when = own_accuracy(every)
    plot = Plot(
        "sweep-accuracy",
        f"Test accuracy {when}, by {grid.key}",
        "Higher is better: the mean over the workers' own models, and (dashed) the global model at "
        "the end of each run.",
        missing=NO_SCORE,
    )

    def whole(group: Group) -> Spread:
        return over_seeds(s.accuracy_global for s in summarise(group.runs))

    if len(grid.lines) > MOST_LINES:
        return _left_out(plot)
    if not any(own(g).values for g in every):
        return plot
    keys = [line_key("own models"), line_key("global model", "--")]
    figure, axes = canvas([*legend_keys(grid.lines), *keys])
    _draw(axes, grid, own, 1.0)
    _draw(axes, grid, whole, 1.0, "--")
    axes.set_ylabel("test accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    return plot.drawn(figure, _alt("accuracy of own models", grid, own), _notes(grid))


def _left_out(plot: Plot) -> Plot:
    return Plot(plot.key, plot.title, plot.caption, missing=TOO_MANY.format(most=MOST_LINES))


@house_style()
def cost(grid: Grid, target: float | None) -> Plot:
    """Time and bytes to the target."""
    aim = "the target" if target is None else goal(target)
    plot = Plot(
        "sweep-cost",
        f"What it takes to reach {aim}, by {grid.key}",
        "Lower is better: simulated time on the left, data on the wire on the right, until the "
        "first evaluation at or above the target; no point where no seed reached it.",
        missing="No target was given and none was reached."
        if target is None
        else f"No run reached {aim}.",
        wide=True,
    )

    def time(group: Group) -> Spread:
        return to_target(group, target, lambda r: r.clock_s)

    def sent(group: Group) -> Spread:
        return to_target(group, target, lambda r: r.wire_bytes_total)

    if len(grid.lines) > MOST_LINES:
        return _left_out(plot)
    if not _most(grid, time):
        return plot
    figure, (left, right) = _two(grid)
    scale, unit = time_unit(_most(grid, time))
    partly = _draw(left, grid, time, scale)
    left.set_ylabel(f"simulated time to {aim} ({unit})")
    alt = _alt(f"simulated time to {aim} ({unit})", grid, time, scale)
    scale, unit = data_unit(_most(grid, sent))
    _draw(right, grid, sent, scale)
    right.set_ylabel(f"data on the wire to {aim} ({unit})")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
    return plot.drawn(figure, alt, _notes(grid, partly=partly))


def _most(grid: Grid, measure: Measure) -> float:
    spreads = [measure(group) for line in grid.lines for group in line.at.values()]
    return max((max(s.values) for s in spreads if s.values), default=0.0)


def _two(grid: Grid) -> tuple[Figure, Any]:
    figure = Figure(figsize=(9.9, 3.5), layout=ConstrainedLayoutEngine(wspace=0.06))
    axes = figure.subplots(1, 2)
    if keys := legend_keys(grid.lines):
        figure.legend(handles=keys, loc="outside upper left", ncols=min(4, len(keys)))
    return figure, axes


@house_style()
def pace(grid: Grid) -> Plot:
    """Staleness, and how many workers take part in a round."""
    plot = Plot(
        "sweep-pace",
        f"Staleness and active workers, by {grid.key}",
        "Left: rounds since a worker last started training, mean over workers and rounds. Right: "
        "workers that train in a round.",
        missing=NO_ROUND,
        wide=True,
    )

    def stale(group: Group) -> Spread:
        return over_seeds(s.staleness_mean for s in summarise(group.runs))

    def active(group: Group) -> Spread:
        return over_seeds(s.active_mean for s in summarise(group.runs))

    if len(grid.lines) > MOST_LINES:
        return _left_out(plot)
    if not any(g.histories for line in grid.lines for g in line.at.values()):
        return plot
    figure, (left, right) = _two(grid)
    for axes, measure, title in (
        (left, stale, "mean staleness (rounds)"),
        (right, active, "active workers per round"),
    ):
        _draw(axes, grid, measure, 1.0)
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0)
    return plot.drawn(figure, _alt("mean staleness", grid, stale), _notes(grid))
