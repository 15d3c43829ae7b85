"""Figures of a sweep: accuracy, cost of the target and staleness against the swept key."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, NullLocator

from dystop.params import short_names
from dystop.report.data.groups import (
    Group,
    SeedSpread,
    common_time_s,
    evaluation_interval_s,
    over_seeds,
)
from dystop.report.data.ranking import accuracy_at, cost_to_target
from dystop.report.data.scores import score_of
from dystop.report.data.settings import are_numbers, value_of, value_text, values_of
from dystop.report.data.summary import summarise
from dystop.report.figures.heat_map import draw_heat_map, fits_heat_map
from dystop.report.figures.learning import NO_EVALUATION, NO_ROUND
from dystop.report.figures.style import (
    LineStyle,
    Plot,
    color_and_marker,
    figure_style,
    legend_handles,
    new_figure,
    set_score_axis,
    style_handle,
)
from dystop.units import data_unit, goal, number, seconds, time_unit

MAX_LINES = 12
_WIDE = 20.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
WHISKER_NOTE = "Line: mean over the seeds; whisker: lowest to highest seed."
PARTIAL_NOTE = "Hollow marker: not every seed reached the target; the mean is over those that did."
TOO_MANY = "More than {most} combinations of the other keys: see the tables and results.csv."

Measure = Callable[[Group], SeedSpread]


@dataclass(frozen=True)
class SweepLine(LineStyle):
    """The groups that share all swept values except the one on the axis."""

    groups: Mapping[int, Group] = field(default_factory=dict)  # by index of the axis value


@dataclass(frozen=True)
class SweepGrid:
    """The groups of a sweep, arranged in lines along one key."""

    key: str  # on the axis
    values: list[Any]  # in order
    lines: list[SweepLine]

    @property
    def numeric(self) -> bool:
        """Whether all values are numbers."""
        return are_numbers(self.values)

    @property
    def positions(self) -> list[float]:
        """Position of each value on the axis."""
        return [float(v) for v in self.values] if self.numeric else list(range(len(self.values)))


def sweep_grid(groups: Sequence[Group], keys: Sequence[str]) -> SweepGrid:
    """Put the key with the most numbers on the axis; each combination of the others is a line."""
    runs = [group.runs[0] for group in groups]
    values = {key: values_of(runs, key) for key in keys}
    axis_key = max(keys, key=lambda k: (len(values[k]) > 1, are_numbers(values[k]), len(values[k])))
    rest = [key for key in keys if key != axis_key and len(values[key]) > 1]
    lines: dict[str, dict[int, Group]] = {}
    short = short_names(rest)
    for group in groups:
        label = ", ".join(_setting_label(group, key, short[key]) for key in rest)
        index = values[axis_key].index(value_of(group.runs[0], axis_key))
        lines.setdefault(label, {})[index] = group
    styled = [
        SweepLine(label, *color_and_marker(k), len(lines) > 1, by_index)
        for k, (label, by_index) in enumerate(lines.items())
    ]
    return SweepGrid(axis_key, values[axis_key], styled)


def _setting_label(group: Group, key: str, short: str) -> str:
    """Return a setting as text; a mechanism with its caveat."""
    if key == "mechanism.name":
        return group.mechanism.name + group.mechanism.caveat
    return f"{short} = {value_text(value_of(group.runs[0], key))}"


def draw_sweep(
    groups: Sequence[Group], keys: Sequence[str], target: float | None, *, is_trained: bool = True
) -> list[Plot]:
    """Draw the figures of a sweep, in reading order; planning only has no accuracy to draw."""
    grid = sweep_grid(groups, keys)
    if not is_trained:
        return [staleness(grid)]
    own, when = own_accuracy(groups)
    maps = [draw_heat_map(groups, keys, target, (own, when))] if fits_heat_map(groups, keys) else []
    return [accuracy(grid, groups), cost(grid, target), *maps, staleness(grid)]


def _draw_lines(
    axes: Axes, grid: SweepGrid, measure: Measure, scale: float, style: str = "-"
) -> bool:
    """Draw a line per combination; return whether some point covers only a part of its seeds."""
    partial = False
    for line in grid.lines:
        spreads = {k: measure(group) for k, group in sorted(line.groups.items())}
        known = {k: s for k, s in spreads.items() if s.mean is not None}
        x = np.array([grid.positions[k] for k in known])
        mean = np.array([s.mean for s in known.values()], float) / scale
        axes.plot(x, mean, color=line.color, linestyle=style, marker=line.marker)
        for at, spread in zip(x, known.values(), strict=True):
            ends = np.array([min(spread.values), max(spread.values)]) / scale
            axes.plot([at, at], ends, color=line.color, linewidth=1.0)
            if not spread.complete:
                partial = True
                axes.plot(at, (spread.mean or 0.0) / scale, line.marker, color=line.color, mfc="w")
    _set_ticks(axes, grid)
    return partial


def _set_ticks(axes: Axes, grid: SweepGrid) -> None:
    """Put ticks at the values and nowhere else."""
    positions = grid.positions
    if grid.numeric and min(positions) > 0 and max(positions) >= _WIDE * min(positions):
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(positions))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([value_text(v) for v in grid.values])
    axes.set_xlabel(grid.key)


def _notes(grid: SweepGrid, *, partial: bool = False) -> tuple[str, ...]:
    several = any(len(g.runs) > 1 for line in grid.lines for g in line.groups.values())
    return (*((WHISKER_NOTE,) if several else ()), *((PARTIAL_NOTE,) if partial else ()))


def _alt(what: str, grid: SweepGrid, measure: Measure, scale: float = 1.0) -> str:
    values = []
    for line in grid.lines:
        means = [(k, measure(group).mean) for k, group in sorted(line.groups.items())]
        points = [
            f"{'none' if mean is None else number(mean / scale)} at {value_text(grid.values[k])}"
            for k, mean in means
        ]
        values.append(f"{line.label + ': ' if line.label else ''}{', '.join(points)}")
    return f"Line chart: {what} against {grid.key}. {'; '.join(values)}."


def own_accuracy(groups: Sequence[Group]) -> tuple[Measure, str]:
    """Return accuracy of own models at the common time, else at the end; and that time as text."""
    at_s, step_s = common_time_s(groups), evaluation_interval_s(groups)
    if at_s is None:
        return lambda g: over_seeds(s.accuracy for s in summarise(g.runs)), "at the end of each run"

    def by_then(group: Group) -> SeedSpread:
        return over_seeds(accuracy_at(run.records, at_s, step_s) for run in group.runs)

    return by_then, f"after {seconds(round(at_s, 9))}"


@figure_style()
def accuracy(grid: SweepGrid, groups: Sequence[Group]) -> Plot:
    """Draw the accuracy of own models and of the global model."""
    own, when = own_accuracy(groups)
    plot = Plot(
        "sweep-accuracy",
        f"Test accuracy {when}, by {grid.key}",
        "Higher is better. Solid line: mean over the workers' own models; dashed line: the global "
        "model at the end of each run.",
        missing=NO_EVALUATION,
    )

    def merged(group: Group) -> SeedSpread:
        return over_seeds(s.accuracy_global for s in summarise(group.runs))

    if len(grid.lines) > MAX_LINES:
        return _without_figure(plot)
    if not any(own(g).values for g in groups):
        return plot
    handles = [style_handle("own models"), style_handle("global model", "--")]
    figure, axes = new_figure([*legend_handles(grid.lines), *handles])
    _draw_lines(axes, grid, own, 1.0)
    _draw_lines(axes, grid, merged, 1.0, "--")
    axes.set_ylabel("test accuracy")
    set_score_axis(axes.yaxis, score_of([run for group in groups for run in group.runs]))
    return plot.with_figure(figure, _alt("accuracy of own models", grid, own), _notes(grid))


def _without_figure(plot: Plot) -> Plot:
    return Plot(plot.key, plot.title, plot.caption, missing=TOO_MANY.format(most=MAX_LINES))


@figure_style()
def cost(grid: SweepGrid, target: float | None) -> Plot:
    """Draw time and data to the target."""
    name = "the target" if target is None else goal(target)
    plot = Plot(
        "sweep-cost",
        f"Cost of reaching {name}, by {grid.key}",
        "Lower is better: simulated time on the left, data on the wire on the right, until the "
        "first evaluation at or above the target. Without a point, no seed reached it.",
        missing="No target was given and none was reached."
        if target is None
        else f"No run reached {name}.",
        wide=True,
    )

    def time(group: Group) -> SeedSpread:
        return cost_to_target(group, target, lambda r: r.clock_s)

    def sent(group: Group) -> SeedSpread:
        return cost_to_target(group, target, lambda r: r.wire_bytes_total)

    if len(grid.lines) > MAX_LINES:
        return _without_figure(plot)
    if not _largest(grid, time):
        return plot
    figure, (left, right) = _two_panels(grid)
    scale, unit = time_unit(_largest(grid, time))
    partial = _draw_lines(left, grid, time, scale)
    left.set_ylabel(f"simulated time to {name} ({unit})")
    alt = _alt(f"simulated time to {name} ({unit})", grid, time, scale)
    scale, unit = data_unit(_largest(grid, sent))
    _draw_lines(right, grid, sent, scale)
    right.set_ylabel(f"data on the wire to {name} ({unit})")
    for axes in (left, right):
        axes.set_ylim(bottom=0)
    return plot.with_figure(figure, alt, _notes(grid, partial=partial))


def _largest(grid: SweepGrid, measure: Measure) -> float:
    spreads = [measure(group) for line in grid.lines for group in line.groups.values()]
    return max((max(s.values) for s in spreads if s.values), default=0.0)


def _two_panels(grid: SweepGrid) -> tuple[Figure, Any]:
    figure = Figure(figsize=(9.9, 3.5), layout=ConstrainedLayoutEngine(wspace=0.06))
    axes = figure.subplots(1, 2)
    if handles := legend_handles(grid.lines):
        figure.legend(handles=handles, loc="outside upper left", ncols=min(4, len(handles)))
    return figure, axes


@figure_style()
def staleness(grid: SweepGrid) -> Plot:
    """Draw mean staleness and active workers per round."""
    plot = Plot(
        "sweep-pace",
        f"Staleness and active workers, by {grid.key}",
        "Left: rounds since a worker last started training, mean over workers and rounds. Right: "
        "workers that a round activates.",
        missing=NO_ROUND,
        wide=True,
    )

    def staleness_mean(group: Group) -> SeedSpread:
        return over_seeds(s.staleness_mean for s in summarise(group.runs))

    def active(group: Group) -> SeedSpread:
        return over_seeds(s.active_mean for s in summarise(group.runs))

    if len(grid.lines) > MAX_LINES:
        return _without_figure(plot)
    if not any(g.histories for line in grid.lines for g in line.groups.values()):
        return plot
    figure, (left, right) = _two_panels(grid)
    for axes, measure, title in (
        (left, staleness_mean, "mean staleness (rounds)"),
        (right, active, "active workers per round"),
    ):
        _draw_lines(axes, grid, measure, 1.0)
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0)
    return plot.with_figure(figure, _alt("mean staleness", grid, staleness_mean), _notes(grid))
