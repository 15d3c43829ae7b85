"""Line charts of single runs: accuracy, loss and data sent."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from dystop.record import RoundRecord
from dystop.report.data.names import clock_name
from dystop.report.data.scores import Score, evaluated_rounds, score_of
from dystop.report.data.series import (
    Quantity,
    Series,
    clock_s,
    evaluation_note,
    grouping_note,
    series,
    wire_bytes,
)
from dystop.report.figures.style import (
    Plot,
    StyledRun,
    draw_level,
    figure_style,
    legend_handles,
    new_figure,
    set_score_axis,
    style_handle,
)
from dystop.units import data, data_unit, known, number, percent, seconds, time_unit

NO_ROUND = "No round has closed yet, so there is nothing to draw."
NO_EVALUATION = "No model has been evaluated yet, so there is no accuracy to draw."
NO_LOSS = "No local training has ended yet, so there is no loss to draw."


def last_values(drawn: Sequence[StyledRun], show: Callable[[RoundRecord], str]) -> str:
    """Return the last value of every run, for alternative texts."""
    return "; ".join(f"{e.label}: {show(e.run.records[-1])}" for e in drawn if e.run.records)


def draw_line(axes: Axes, styled: StyledRun, points: Series, scale: tuple[float, float]) -> None:
    """Draw a run as a line, with a band where a point stands for several rounds."""
    x, color = points.x / scale[0], styled.color
    axes.plot(x, points.mean / scale[1], color=color, **styled.marker_options(len(points)))
    if points.group > 1:
        low, high = points.low / scale[1], points.high / scale[1]
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)


def _evaluated(drawn: Sequence[StyledRun]) -> list[StyledRun]:
    return [e for e in drawn if evaluated_rounds(e.run.records)]


def _accuracy_alt(drawn: Sequence[StyledRun]) -> str:
    last = [(e.label, evaluated_rounds(e.run.records)[-1]) for e in drawn]
    ends = "; ".join(f"{n} ends at {percent(r.accuracy)} at {seconds(r.clock_s)}" for n, r in last)
    return f"Line chart of test accuracy. {ends}."


def _spread(record: RoundRecord) -> float:
    return known(record.get("accuracy_std")) or 0.0


def _draw_accuracy(axes: Axes, styled: StyledRun, x: Quantity, unit: float) -> None:
    """Draw the mean over the workers' models with its spread, and the global model dashed."""
    rows = evaluated_rounds(styled.run.records)
    mean = series(rows, x, lambda r: r.accuracy)
    low = series(rows, x, lambda r: max(0.0, (r.accuracy or 0.0) - _spread(r)))
    high = series(rows, x, lambda r: min(1.0, (r.accuracy or 0.0) + _spread(r)))
    merged = series(rows, x, lambda r: r.get("accuracy_global"))
    axes.fill_between(
        mean.x / unit, low.mean, high.mean, color=styled.color, alpha=0.15, linewidth=0
    )
    axes.plot(mean.x / unit, mean.mean, color=styled.color, **styled.marker_options(len(mean)))
    lone: dict[str, Any] = {"marker": "_", "markersize": 12} if len(merged) == 1 else {}
    axes.plot(merged.x / unit, merged.mean, color=styled.color, ls="--", lw=1.1, **lone)


def _accuracy_axes(axes: Axes, target: float | None, score: Score) -> None:
    axes.set_xlim(left=0)
    set_score_axis(axes.yaxis, score)
    axes.set_ylabel("test accuracy")
    if target is not None:
        draw_level(axes, target, f"target\n{score.goal(target)}")


def _accuracy_keys(drawn: Sequence[StyledRun]) -> list[Line2D]:
    style = [style_handle("mean of workers' models ± std"), style_handle("global model", "--", 1.1)]
    return [*legend_handles(drawn), *style]


@figure_style()
def accuracy_time(runs: Sequence[StyledRun], target: float | None = None) -> Plot:
    """Draw test accuracy against time."""
    plot = Plot(
        "accuracy-time",
        "Test accuracy over time",
        "Higher and further left is better. Solid line: mean test accuracy of the workers' own "
        "models; band: one standard deviation between them; dashed line: the data-weighted global "
        "model.",
        missing=NO_EVALUATION,
    )
    drawn = _evaluated(runs)
    title = clock_name([e.run for e in drawn])
    return _draw_accuracies(plot, drawn, target, clock_s, time_unit, title)


@figure_style()
def accuracy_data(runs: Sequence[StyledRun], target: float | None = None) -> Plot:
    """Draw test accuracy against the data sent."""
    plot = Plot(
        "accuracy-communication",
        "Test accuracy against data sent",
        "Further up and left means cheaper communication: each point is one evaluation, placed at "
        "the data that had crossed the wire by then.",
        missing=NO_EVALUATION,
    )
    drawn, title = _evaluated(runs), "data on the wire since the start"
    return _draw_accuracies(plot, drawn, target, wire_bytes, data_unit, title)


def _draw_accuracies(
    plot: Plot,
    drawn: Sequence[StyledRun],
    target: float | None,
    x: Quantity,
    unit_of: Callable[[float], tuple[float, str]],
    title: str,
) -> Plot:
    """Draw the accuracies of evaluated runs over a quantity, in the unit that suits its end."""
    if not drawn:
        return plot
    scale, unit = unit_of(max(x(evaluated_rounds(e.run.records)[-1]) or 0.0 for e in drawn))
    figure, axes = new_figure(_accuracy_keys(drawn))
    for styled in drawn:
        _draw_accuracy(axes, styled, x, scale)
    _accuracy_axes(axes, target, score_of([e.run for e in drawn]))
    axes.set_xlabel(f"{title} ({unit})")
    notes = evaluation_note([e.run.records for e in drawn])
    return plot.with_figure(figure, _accuracy_alt(drawn), notes)


@figure_style()
def loss_time(runs: Sequence[StyledRun]) -> Plot:
    """Draw training loss against time."""
    plot = Plot(
        "loss-time",
        "Training loss over time",
        "Lower is better: the mean loss of the local trainings that ended in a round, each on its "
        "worker's own data.",
        missing=NO_LOSS,
    )
    lines = [(e, series(e.run.records, clock_s, lambda r: r.loss)) for e in runs]
    lines = [(e, points) for e, points in lines if len(points)]
    if not lines:
        return plot
    drawn, points = [e for e, _ in lines], [p for _, p in lines]
    scale, unit = time_unit(max(p.x[-1] for p in points))
    figure, axes = new_figure(legend_handles(drawn))
    for styled, line in lines:
        draw_line(axes, styled, line, (scale, 1.0))
    axes.set_ylabel("training loss")
    axes.set_xlabel(f"{clock_name([e.run for e in drawn])} ({unit})")
    ends = "; ".join(f"{e.label} ends at {number(float(p.mean[-1]))}" for e, p in lines)
    return plot.with_figure(figure, f"Line chart of training loss. {ends}.", grouping_note(points))


@figure_style()
def data_time(runs: Sequence[StyledRun]) -> Plot:
    """Draw the data sent since the start against time."""
    plot = Plot(
        "communication-time",
        "Data sent over time",
        "Lower is cheaper: all bytes that crossed the wire since the start, every transfer counted "
        "once. The paper counts both ends, which is twice as much.",
        missing=NO_ROUND,
    )
    drawn = [e for e in runs if e.run.records]
    if not drawn:
        return plot
    scale, unit = time_unit(max(e.run.records[-1].clock_s for e in drawn))
    bytes_scale, bytes_unit = data_unit(max(e.run.records[-1].wire_bytes_total for e in drawn))
    figure, axes = new_figure(legend_handles(drawn))
    for styled in drawn:
        # A running total needs no mean: the last value of a group is exact.
        points = series(styled.run.records, clock_s, wire_bytes)
        total = points.high / bytes_scale
        axes.plot(points.x / scale, total, color=styled.color, **styled.marker_options(len(points)))
    axes.set_ylim(bottom=0)
    axes.set_ylabel(f"data on the wire ({bytes_unit})")
    axes.set_xlabel(f"{clock_name([e.run for e in drawn])} ({unit})")
    alt = last_values(drawn, lambda r: f"{data(r.wire_bytes_total)} by {seconds(r.clock_s)}")
    return plot.with_figure(figure, f"Line chart of data sent. {alt}.")
