"""Figures of `dystop bound` and of `dystop gap`.

The first shows the measured gap below the bounds of Theorem 1. The others show a testbed run, its
replay and its simulation over the rounds.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
)

from dystop.experiments.bound import BoundReport
from dystop.experiments.gap import GapReport
from dystop.record import RoundRecord
from dystop.report.figures.style import (
    INK,
    RUNS,
    LineStyle,
    Plot,
    color_and_marker,
    draw_level,
    figure_style,
    legend_handles,
    new_figure,
)
from dystop.units import percent, plural, seconds, time_unit

Points = Sequence[tuple[int, float]]
"""Pairs of round and value."""

_LINES: tuple[tuple[str, str, str, Literal["-", "--", ":"]], ...] = (
    ("gap", "measured F(w_t) - F*", INK, "-"),
    ("recursion", "Lemma 1 followed through the run", RUNS[0], "-"),
    ("theorem", "Theorem 1, corrected", RUNS[2], "--"),
    ("literal", "Theorem 1 as printed", RUNS[1], ":"),
)
_HEADROOM = 4.0  # times the largest bound; the bound as printed may leave the figure
_NARROW = 100.0  # ratio of the limits below which ticks are 1, 2 and 5, not powers of ten


@figure_style()
def bound_figure(report: BoundReport) -> Plot:
    """Draw the measured gap and the bounds over rounds on a logarithmic scale."""
    keys = [Line2D([], [], color=c, linestyle=s, label=label) for _, label, c, s in _LINES]
    figure, axes = new_figure(keys)
    rounds = np.arange(report.rounds + 1)
    for name, _, color, style in _LINES:
        line = getattr(report, name)
        shown = np.isfinite(line) & (line > 0)  # a gap may round to zero, a bound may overflow
        axes.plot(rounds[shown], line[shown], color=color, linestyle=style)
    _set_scale(axes, report)
    draw_level(axes, report.start, "F(w_0) - F*")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel("loss above the optimum")
    alt = (
        f"After {plural(report.rounds, 'round')} the measured gap is {report.gap[-1]:.3g}, Lemma 1 "
        f"allows {report.recursion[-1]:.3g}, Theorem 1 {report.theorem[-1]:.3g}; it starts at "
        f"{report.start:.3g}."
    )
    plot = Plot("bound", "Gap and bounds", "How far the global model is from the optimum.")
    return plot.with_figure(figure, alt)


def _set_scale(axes: Axes, report: BoundReport) -> None:
    """Set a logarithmic scale that ignores the bound as printed."""
    values = np.concatenate([report.gap, report.recursion, report.theorem, [report.start]])
    values = values[np.isfinite(values) & (values > 0)]
    low, high = 0.5 * float(values.min()), _HEADROOM * float(values.max())
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    if high / low < _NARROW:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


@figure_style()
def clock_figure(report: GapReport) -> Plot:
    """Draw the clock over rounds."""
    plot = Plot(
        "gap-clock",
        "Clock over rounds",
        "When each round closed. The replay has the measured seconds of the testbed, the "
        "simulation those of its channel and compute models. Each line adds up its own rounds.",
    )
    lines = [(style, _elapsed(records)) for style, records in _histories(report)]
    scale, unit = time_unit(max(points[-1][1] for _, points in lines))
    figure, axes = new_figure(legend_handles([style for style, _ in lines]))
    for style, points in lines:
        _draw_line(axes, style, [(t, s / scale) for t, s in points])
    axes.set_xlabel("round")
    axes.set_ylabel(f"time ({unit})")
    ends = "; ".join(f"{style.label}: {seconds(points[-1][1])}" for style, points in lines)
    return plot.with_figure(figure, f"Line chart of clocks. {ends}.")


@figure_style()
def accuracy_figure(report: GapReport) -> Plot:
    """Draw the accuracy over rounds."""
    plot = Plot(
        "gap-accuracy",
        "Test accuracy over rounds",
        "Mean test accuracy of the workers' own models at every evaluation.",
        missing="No model was evaluated, so there is no accuracy to draw.",
    )
    lines = [
        (style, [(r.round, r.accuracy) for r in records if r.accuracy is not None])
        for style, records in _histories(report)
    ]
    if not any(points for _, points in lines):
        return plot
    figure, axes = new_figure(legend_handles([style for style, _ in lines]))
    for style, points in lines:
        _draw_line(axes, style, points)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy")
    ends = "; ".join(f"{style.label}: {percent(p[-1][1])}" for style, p in lines if p)
    return plot.with_figure(figure, f"Line chart of test accuracy. {ends}.")


def _histories(report: GapReport) -> list[tuple[LineStyle, Sequence[RoundRecord]]]:
    histories = {
        "testbed": report.run.records[: report.rounds],
        "replay": report.replay.records,
        "simulation": report.simulation.records,
    }
    return [
        (LineStyle(name, *color_and_marker(k), True), records)
        for k, (name, records) in enumerate(histories.items())
    ]


def _elapsed(records: Sequence[RoundRecord]) -> list[tuple[int, float]]:
    """Add up durations: the clock of a replay restarts from the recorded one in every round."""
    points, clock_s = [], 0.0
    for record in records:
        clock_s += record.duration_s
        points.append((record.round, clock_s))
    return points


def _draw_line(axes: Axes, style: LineStyle, points: Points) -> None:
    if points:
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=style.color, **style.marker_options(len(points)))
