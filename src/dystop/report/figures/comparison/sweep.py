"""Figures of a sweep: accuracy, cost of the target and staleness against the swept key.

Colours tell mechanisms apart. Every value of the other keys has a panel of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from dystop.report.data.comparison.ranking import cost_to_target
from dystop.report.data.comparison.sweep_layout import (
    MECHANISM,
    Panel,
    SweepLayout,
    panels,
    sweep_layout,
)
from dystop.report.data.groups import (
    Group,
    SeedSpread,
    accuracy_at,
    common_time_s,
    over_seeds,
)
from dystop.report.data.scores import score_of
from dystop.report.data.settings import are_numbers, value_of, value_text
from dystop.report.data.summary import RunSummary, summarise
from dystop.report.figures.comparison.heat_map import draw_heat_map, fits_heat_map
from dystop.report.figures.single_runs.learning import NO_EVALUATION, NO_ROUND
from dystop.report.figures.style import (
    LineStyle,
    Plot,
    color_and_marker,
    figure_style,
    label_outer,
    legend_handles,
    panel_figure,
    set_score_axis,
    style_handle,
)
from dystop.units import data_unit, number, seconds, time_unit

MAX_PANELS = 9
_WIDE = 20.0
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""
WHISKER_NOTE = "Line: mean over the seeds; whisker: lowest to highest seed."
PARTIAL_NOTE = "Hollow marker: not every seed reached the target; the mean is over those that did."
TOO_MANY = "More than {most} combinations of the other keys: see the tables and results.csv."

Measure = Callable[[Group], SeedSpread]


@dataclass(frozen=True)
class Sweep:
    """The groups of a sweep, divided into panels, with a line for each mechanism."""

    layout: SweepLayout
    panels: tuple[Panel, ...]
    lines: tuple[LineStyle, ...]  # one per mechanism

    @property
    def groups(self) -> list[Group]:
        """All groups."""
        return [group for panel in self.panels for group in panel.groups]

    @property
    def is_numeric(self) -> bool:
        """Whether all values of the axis are numbers."""
        return are_numbers(self.layout.values)

    def position(self, group: Group) -> float:
        """Return where a group lies on the axis."""
        value = value_of(group.runs[0], self.layout.axis)
        return float(value) if self.is_numeric else float(self.layout.values.index(value))


def sweep_of(groups: Sequence[Group], keys: Sequence[str]) -> Sweep:
    """Arrange the groups of a sweep for its figures."""
    layout = sweep_layout(groups, keys)
    names = {_mechanism(group): group for group in groups}
    lines = [
        LineStyle(name, *color_and_marker(group.color_index), len(names) > 1)
        for name, group in names.items()
    ]
    if not layout.has_mechanisms:
        lines = [LineStyle("", *color_and_marker(0))]
    return Sweep(layout, tuple(panels(groups, layout.panel_keys)), tuple(lines))


def _mechanism(group: Group) -> str:
    return group.mechanism.name + group.mechanism.caveat


def draw_sweep(
    groups: Sequence[Group], keys: Sequence[str], target: float | None, *, is_trained: bool = True
) -> list[Plot]:
    """Draw the figures of a sweep, in reading order; planning only has no accuracy to draw."""
    found = sweep_of(groups, keys)
    pace = [staleness(found), active_workers(found)]
    if not is_trained:
        return pace
    own, when = own_accuracy(groups)
    keys = found.layout.keys
    maps = [draw_heat_map(groups, keys, target, (own, when))] if fits_heat_map(groups, keys) else []
    return [
        accuracy(found), time_to_target(found, target), data_to_target(found, target), *maps, *pace
    ]  # fmt: skip


def _draw(
    plot: Plot,
    found: Sweep,
    measures: Sequence[tuple[Measure, str]],
    title: str,
    scale: float = 1.0,
    handles: Sequence[Artist] = (),
) -> Plot:
    """Draw one or two measures, each in its line style, panel by panel."""
    if len(found.panels) > MAX_PANELS:
        return Plot(plot.key, plot.title, plot.caption, missing=TOO_MANY.format(most=MAX_PANELS))
    first = measures[0][0]
    if not any(first(group).values for group in found.groups):
        return plot
    key = MECHANISM if len(found.lines) > 1 else None
    keys = [*legend_handles(found.lines), *handles]
    figure, every = panel_figure(keys, len(found.panels), key)
    partial = False
    for axes, panel in zip(every, found.panels, strict=True):
        for measure, style in measures:
            partial |= _draw_lines(axes, found, panel, measure, scale, style)
        _set_ticks(axes, found)
        axes.set_title(panel.title)
    label_outer(every, found.layout.axis, title)
    notes = _notes(found, partial=partial)
    drawn = plot if len(found.panels) == 1 else Plot(
        plot.key, plot.title, plot.caption, missing=plot.missing, wide=True
    )  # fmt: skip
    return drawn.with_figure(figure, _alt(title, found, first, scale), notes)


def _draw_lines(
    axes: Axes, found: Sweep, panel: Panel, measure: Measure, scale: float, style: str
) -> bool:
    """Draw a line per mechanism; return whether some point covers only a part of its seeds."""
    partial = False
    for line in found.lines:
        own = [g for g in panel.groups if line.label in ("", _mechanism(g))]
        points = sorted(((found.position(g), measure(g)) for g in own), key=lambda point: point[0])
        points = [(x, spread) for x, spread in points if spread.mean is not None]
        means = [(spread.mean or 0.0) / scale for _, spread in points]
        x = [at for at, _ in points]
        joined = style if found.is_numeric else ("none" if style == "-" else ":")
        axes.plot(x, means, color=line.color, linestyle=joined, marker=line.marker)
        for (at, spread), mean in zip(points, means, strict=True):
            ends = np.array([min(spread.values), max(spread.values)]) / scale
            axes.plot([at, at], ends, color=line.color, linewidth=1.0)
            if not spread.complete:
                partial = True
                axes.plot(at, mean, line.marker, color=line.color, mfc="w")
    return partial


def _set_ticks(axes: Axes, found: Sweep) -> None:
    """Put ticks at the values and nowhere else."""
    values = found.layout.values
    positions = [float(v) for v in values] if found.is_numeric else list(range(len(values)))
    if found.is_numeric and min(positions) > 0 and max(positions) >= _WIDE * min(positions):
        axes.set_xscale("log")
    axes.xaxis.set_major_locator(FixedLocator(positions))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticklabels([value_text(v) for v in values])
    if not found.is_numeric:
        axes.set_xlim(-0.5, len(values) - 0.5)


def _notes(found: Sweep, *, partial: bool = False) -> tuple[str, ...]:
    several = any(len(group.runs) > 1 for group in found.groups)
    return (*((WHISKER_NOTE,) if several else ()), *((PARTIAL_NOTE,) if partial else ()))


def _alt(what: str, found: Sweep, measure: Measure, scale: float) -> str:
    """Return the means of all lines as text."""
    points = []
    for group in found.groups:
        mean = measure(group).mean
        points.append(f"{group.label}: {'none' if mean is None else number(mean / scale)}")
    return f"Line chart: {what} against {found.layout.axis}. {'; '.join(points)}."


def own_accuracy(groups: Sequence[Group]) -> tuple[Measure, str]:
    """Return accuracy of own models at the common time, else at the end; and that time as text."""
    at_s = common_time_s(groups)
    if at_s is None:
        return lambda g: over_seeds(s.accuracy for s in summarise(g.runs)), "at the end of each run"
    return lambda g: accuracy_at(g, at_s), f"after {seconds(at_s)}"


def _at_end(read: Callable[[RunSummary], float | None]) -> Measure:
    """Return the measure that reads a number from the summary of a whole run."""
    return lambda group: over_seeds(map(read, summarise(group.runs)))


@figure_style()
def accuracy(found: Sweep) -> Plot:
    """Draw the accuracy of own models and of the global model."""
    own, when = own_accuracy(found.groups)
    plot = Plot(
        "sweep-accuracy",
        f"Test accuracy {when}, by {found.layout.axis}",
        "Higher is better. Solid line: mean over the workers' own models; dashed line: the global "
        "model at the end of each run.",
        missing=NO_EVALUATION,
    )
    measures = [(own, "-"), (_at_end(lambda s: s.accuracy_global), "--")]
    handles = [style_handle("own models"), style_handle("global model", "--")]
    plot = _draw(plot, found, measures, "test accuracy", handles=handles)
    if plot.figure is not None:
        score = score_of([run for group in found.groups for run in group.runs])
        for axes in plot.figure.axes:
            set_score_axis(axes.yaxis, score)
    return plot


def _to_target(
    found: Sweep,
    target: float | None,
    what: tuple[str, str, str],
    quantity: Callable[[Any], float],
    unit_of: Callable[[float], tuple[float, str]],
) -> Plot:
    """Draw a cost of the target; `what` is the file name, the title and the quantity."""
    key, title, name = what
    score = score_of([run for group in found.groups for run in group.runs])
    aim = "the target" if target is None else score.aim(target)
    plot = Plot(
        key,
        f"{title} {aim}, by {found.layout.axis}",
        f"Lower is better: {name} until the first evaluation at or above the target. Without a "
        "point, no seed reached it.",
        missing="No target was given and none was reached."
        if target is None
        else f"No run reached {aim}.",
    )

    def measure(group: Group) -> SeedSpread:
        return cost_to_target(group, target, quantity)

    spreads = [measure(group) for group in found.groups]
    scale, unit = unit_of(max((max(s.values) for s in spreads if s.values), default=0.0))
    plot = _draw(plot, found, [(measure, "-")], f"{name} to {aim} ({unit})", scale)
    for axes in () if plot.figure is None else plot.figure.axes:
        axes.set_ylim(bottom=0)
    return plot


@figure_style()
def time_to_target(found: Sweep, target: float | None) -> Plot:
    """Draw the simulated time to the target."""
    what = ("sweep-time", "Time to", "simulated time")
    return _to_target(found, target, what, lambda r: float(r.clock_s), time_unit)


@figure_style()
def data_to_target(found: Sweep, target: float | None) -> Plot:
    """Draw the data on the wire to the target."""
    what = ("sweep-data", "Data to", "data on the wire")
    return _to_target(found, target, what, lambda r: float(r.wire_bytes_total), data_unit)


@figure_style()
def staleness(found: Sweep) -> Plot:
    """Draw the mean staleness."""
    plot = Plot(
        "sweep-staleness",
        f"Staleness, by {found.layout.axis}",
        "Rounds since a worker last started training, mean over workers and rounds.",
        missing=NO_ROUND,
    )
    return _pace(plot, found, _at_end(lambda s: s.staleness_mean), "mean staleness (rounds)")


@figure_style()
def active_workers(found: Sweep) -> Plot:
    """Draw the active workers per round."""
    plot = Plot(
        "sweep-active",
        f"Active workers, by {found.layout.axis}",
        "Workers that a round activates, mean over the rounds.",
        missing=NO_ROUND,
    )
    return _pace(plot, found, _at_end(lambda s: s.active_mean), "active workers per round")


def _pace(plot: Plot, found: Sweep, measure: Measure, title: str) -> Plot:
    plot = _draw(plot, found, [(measure, "-")], title)
    for axes in () if plot.figure is None else plot.figure.axes:
        axes.set_ylim(bottom=0)
    return plot
