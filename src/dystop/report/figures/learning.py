"""Figures of learning and of what it costs: accuracy, loss and data over time."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from dystop.record import RoundRecord
from dystop.report.data.names import clock_name
from dystop.report.data.series import Pick, Series, evaluation_note, group_note, series
from dystop.report.data.summary import evaluated
from dystop.report.figures.style import (
    Entry,
    Plot,
    canvas,
    house_style,
    legend_keys,
    line_key,
    mark_level,
)
from dystop.units import data, data_unit, goal, known, number, percent, seconds, time_unit

NO_ROUND = "No round has closed yet, so there is nothing to draw."
NO_SCORE = "No model has been evaluated yet, so there is no accuracy to draw."
NO_LOSS = "No local training has ended yet, so there is no loss to draw."


def clock(record: RoundRecord) -> float:
    """Seconds when the round closed."""
    return record.clock_s


def wire(record: RoundRecord) -> float:
    """Bytes on the wire since the start."""
    return record.wire_bytes_total


def ending(drawn: Sequence[Entry], tell: Callable[[RoundRecord], str]) -> str:
    """Last value of every run, for alternative texts."""
    return "; ".join(f"{e.label}: {tell(e.run.records[-1])}" for e in drawn if e.run.records)


def draw_line(axes: Axes, entry: Entry, points: Series, scale: tuple[float, float]) -> None:
    """One run as a line, with a band where a point stands for several rounds."""
    x, color = points.x / scale[0], entry.color
    axes.plot(x, points.mean / scale[1], color=color, **entry.marks(len(points)))
    if points.group > 1:
        low, high = points.low / scale[1], points.high / scale[1]
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def _scored(drawn: Sequence[Entry]) -> list[Entry]:
    return [e for e in drawn if evaluated(e.run.records)]


def _accuracy_alt(drawn: Sequence[Entry]) -> str:
    last = [(e.label, evaluated(e.run.records)[-1]) for e in drawn]
    tail = "; ".join(f"{n} ends at {percent(r.accuracy)} at {seconds(r.clock_s)}" for n, r in last)
    return f"Line chart of test accuracy. {tail}."


def _draw_accuracy(axes: Axes, entry: Entry, x: Pick, unit: float) -> None:
    """Mean over the workers' models with its spread, and the global model dashed."""
    rows = evaluated(entry.run.records)
    mean = series(rows, x, lambda r: r.accuracy)
    low = series(rows, x, lambda r: max(0.0, (r.accuracy or 0.0) - (known(r.accuracy_std) or 0.0)))
    high = series(rows, x, lambda r: min(1.0, (r.accuracy or 0.0) + (known(r.accuracy_std) or 0.0)))
    whole = series(rows, x, lambda r: r.accuracy_global)
    axes.fill_between(
        mean.x / unit, low.mean, high.mean, color=entry.color, alpha=0.15, linewidth=0
    )
    axes.plot(mean.x / unit, mean.mean, color=entry.color, **entry.marks(len(mean)))
    lone: dict[str, Any] = {"marker": "_", "markersize": 12} if len(whole) == 1 else {}
    axes.plot(whole.x / unit, whole.mean, color=entry.color, ls="--", lw=1.1, **lone)


def _accuracy_axes(axes: Axes, target: float | None) -> None:
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_ylabel("test accuracy")
    if target is not None:
        mark_level(axes, target, f"target\n{goal(target)}")


def _accuracy_keys(drawn: Sequence[Entry]) -> list[Line2D]:
    style = [line_key("mean of workers' models ± std"), line_key("global model", "--", 1.1)]
    return [*legend_keys(drawn), *style]


@house_style()
def accuracy_time(all_runs: Sequence[Entry], target: float | None = None) -> Plot:
    """Test accuracy against time."""
    plot = Plot(
        "accuracy-time",
        "Test accuracy over time",
        "Higher and further left is better: the solid line is the mean test accuracy of the "
        "workers' own models, the band one standard deviation between them, and the dashed line "
        "the data-weighted global model.",
        missing=NO_SCORE,
    )
    drawn = _scored(all_runs)
    if not drawn:
        return plot
    scale, unit = time_unit(max(evaluated(e.run.records)[-1].clock_s for e in drawn))
    figure, axes = canvas(_accuracy_keys(drawn))
    for entry in drawn:
        _draw_accuracy(axes, entry, clock, scale)
    _accuracy_axes(axes, target)
    axes.set_xlabel(f"{clock_name([e.run for e in drawn])} ({unit})")
    return plot.drawn(figure, _accuracy_alt(drawn), evaluation_note([e.run.records for e in drawn]))


@house_style()
def accuracy_data(all_runs: Sequence[Entry], target: float | None = None) -> Plot:
    """Test accuracy against the data that was sent to reach it."""
    plot = Plot(
        "accuracy-communication",
        "Test accuracy for the data sent",
        "Further up and left is cheaper learning: each point is one evaluation, placed at the data "
        "that had crossed the wire by then.",
        missing=NO_SCORE,
    )
    drawn = _scored(all_runs)
    if not drawn:
        return plot
    scale, unit = data_unit(max(evaluated(e.run.records)[-1].wire_bytes_total for e in drawn))
    figure, axes = canvas(_accuracy_keys(drawn))
    for entry in drawn:
        _draw_accuracy(axes, entry, wire, scale)
    _accuracy_axes(axes, target)
    axes.set_xlabel(f"data on the wire since the start ({unit})")
    return plot.drawn(figure, _accuracy_alt(drawn), evaluation_note([e.run.records for e in drawn]))


@house_style()
def loss_time(all_runs: Sequence[Entry]) -> Plot:
    """Training loss against time."""
    plot = Plot(
        "loss-time",
        "Training loss over time",
        "Lower is better: the mean loss of the local trainings that ended in a round, each on its "
        "worker's own data.",
        missing=NO_LOSS,
    )
    lines = [(e, series(e.run.records, clock, lambda r: r.loss)) for e in all_runs]
    lines = [(e, points) for e, points in lines if len(points)]
    if not lines:
        return plot
    drawn, points = [e for e, _ in lines], [p for _, p in lines]
    scale, unit = time_unit(max(p.x[-1] for p in points))
    figure, axes = canvas(legend_keys(drawn))
    for entry, line in lines:
        draw_line(axes, entry, line, (scale, 1.0))
    axes.set_ylabel("training loss")
    axes.set_xlabel(f"{clock_name([e.run for e in drawn])} ({unit})")
    tail = "; ".join(f"{e.label} ends at {number(float(p.mean[-1]))}" for e, p in lines)
    return plot.drawn(figure, f"Line chart of training loss. {tail}.", group_note(points))


@house_style()
def data_time(all_runs: Sequence[Entry]) -> Plot:
    """Data sent since the start against time."""
    plot = Plot(
        "communication-time",
        "Data sent over time",
        "Lower is cheaper: all bytes that crossed the wire since the start, every transfer counted "
        "once; counted at both ends, as the paper does, it is twice as much.",
        missing=NO_ROUND,
    )
    drawn = [e for e in all_runs if e.run.records]
    if not drawn:
        return plot
    scale, unit = time_unit(max(e.run.records[-1].clock_s for e in drawn))
    bytes_scale, bytes_unit = data_unit(max(e.run.records[-1].wire_bytes_total for e in drawn))
    figure, axes = canvas(legend_keys(drawn))
    for entry in drawn:
        # A running total needs no mean and no band: the last value of a group is exact.
        points = series(entry.run.records, clock, wire)
        total = points.high / bytes_scale
        axes.plot(points.x / scale, total, color=entry.color, **entry.marks(len(points)))
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"data on the wire ({bytes_unit})")
    axes.set_xlabel(f"{clock_name([e.run for e in drawn])} ({unit})")
    alt = ending(drawn, lambda r: f"{data(r.wire_bytes_total)} by {seconds(r.clock_s)}")
    return plot.drawn(figure, f"Line chart of data sent. {alt}.")
