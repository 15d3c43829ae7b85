"""Figures of `dystop gap`: a testbed run, its replay and its simulation over the rounds."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from dystop.record import RoundRecord
from dystop.report.figures.style import (
    LineStyle,
    Plot,
    color_and_marker,
    figure_style,
    legend_handles,
    new_figure,
)
from dystop.studies.gap import GapReport
from dystop.units import percent, seconds, time_unit

Points = Sequence[tuple[int, float]]
"""Pairs of round and value."""


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
