"""Line charts of a comparison: the mean over the seeds of a group, with a band over the seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes

from dystop.report.data.groups import Group
from dystop.report.data.scores import score_of
from dystop.report.data.series import (
    MeanCurve,
    Quantity,
    clock_s,
    epochs,
    evaluation_note,
    mean_curve,
    wire_bytes,
)
from dystop.report.figures.learning import NO_EVALUATION, NO_LOSS, NO_ROUND
from dystop.report.figures.style import (
    LineStyle,
    Plot,
    draw_level,
    figure_style,
    group_style,
    legend_handles,
    new_figure,
    set_score_axis,
)
from dystop.units import data_unit, number, time_unit

BAND_NOTE = "Line: mean over the seeds where all of them have data; band: lowest to highest seed."
SEEDS_NOTE = "Seeds of {names} share less than half of this axis, so each is also a thin line."
SMOOTHED_NOTE = "Every seed was smoothed first by a moving mean over a tenth of its points."
OWN_ACCURACY = "the mean test accuracy of the workers' own models"


@dataclass(frozen=True)
class AxisSpec:
    """Quantity, scale and title of an axis."""

    quantity: Quantity
    scale: float
    title: str


def time_axis(groups: Sequence[Group]) -> AxisSpec:
    """Return the axis of simulated time, in seconds or hours."""
    scale, unit = time_unit(_largest(groups, clock_s))
    return AxisSpec(clock_s, scale, f"simulated time ({unit})")


def wire_axis(groups: Sequence[Group]) -> AxisSpec:
    """Return the axis of bytes on the wire."""
    scale, unit = data_unit(_largest(groups, wire_bytes))
    return AxisSpec(wire_bytes, scale, f"data on the wire since the start ({unit})")


def epochs_axis() -> AxisSpec:
    """Return the axis of local epochs."""
    return AxisSpec(epochs, 1.0, "local epochs (passes over the training set)")


def _largest(groups: Sequence[Group], quantity: Quantity) -> float:
    ends = [quantity(rows[-1]) or 0.0 for g in groups for rows in g.histories]
    return max(ends, default=0.0)


def _draw_curves(
    plot: Plot, groups: Sequence[Group], x: AxisSpec, y: AxisSpec, *, smooth: bool = False
) -> Plot:
    """Draw one curve per group; without any, return the plot without a figure."""
    curves = [(g, mean_curve(g, x.quantity, y.quantity, smooth=smooth)) for g in groups]
    curves = [(g, curve) for g, curve in curves if len(curve)]
    if not curves:
        return plot
    styles = [group_style(g, len(groups) > 1) for g, _ in curves]
    figure, axes = new_figure(legend_handles(styles))
    for style, (_, curve) in zip(styles, curves, strict=True):
        _draw_curve(axes, style, curve, (x.scale, y.scale))
    axes.set_xlim(left=0)
    axes.set_xlabel(x.title)
    axes.set_ylabel(y.title)
    ends = [f"{g.label} ends at {_end(curve, x, y)}" for g, curve in curves]
    alt = f"Line chart: {y.title} against {x.title}. {'; '.join(ends)}."
    return plot.with_figure(figure, alt, _notes(curves))


def _end(curve: MeanCurve, x: AxisSpec, y: AxisSpec) -> str:
    last_x, last_y = float(curve.x[-1]) / x.scale, float(curve.mean[-1]) / y.scale
    return f"{number(last_y)} at {number(last_x)}"


def _draw_curve(axes: Axes, style: LineStyle, curve: MeanCurve, scale: tuple[float, float]) -> None:
    x_scale, y_scale = scale
    x, color = curve.x / x_scale, style.color
    if len(curve.seeds) > 1:
        low, high = curve.low / y_scale, curve.high / y_scale
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    if curve.covers_little:
        for seed_x, seed_y in curve.seeds:
            axes.plot(seed_x / x_scale, seed_y / y_scale, color=color, linewidth=0.8, alpha=0.7)
    axes.plot(x, curve.mean / y_scale, color=color, **style.marker_options(len(curve)))


def _notes(curves: Sequence[tuple[Group, MeanCurve]]) -> tuple[str, ...]:
    several_seeds = any(len(curve.seeds) > 1 for _, curve in curves)
    names = ", ".join(group.label for group, curve in curves if curve.covers_little)
    smoothed = any(curve.smoothed for _, curve in curves)
    return (
        *((BAND_NOTE,) if several_seeds else ()),
        *((SEEDS_NOTE.format(names=names),) if names else ()),
        *((SMOOTHED_NOTE,) if smoothed else ()),
    )


def _draw_accuracy(plot: Plot, groups: Sequence[Group], x: AxisSpec, target: float | None) -> Plot:
    accuracy = AxisSpec(lambda r: r.accuracy, 1.0, "test accuracy")
    plot = _draw_curves(plot, groups, x, accuracy)
    if plot.figure is None:
        return plot
    axes = plot.figure.axes[0]
    score = score_of([run for group in groups for run in group.runs])
    set_score_axis(axes.yaxis, score)
    if target is not None:
        draw_level(axes, target, f"target\n{score.goal(target)}")
    notes = (*plot.notes, *evaluation_note([rows for g in groups for rows in g.histories]))
    return plot.with_figure(plot.figure, plot.alt, notes)


@figure_style()
def accuracy_time(groups: Sequence[Group], target: float | None) -> Plot:
    """Draw accuracy against simulated time."""
    plot = Plot(
        "accuracy-time",
        "Test accuracy over simulated time",
        f"Higher and further left is better: {OWN_ACCURACY} against the simulated clock.",
        missing=NO_EVALUATION,
    )
    return _draw_accuracy(plot, groups, time_axis(groups), target)


@figure_style()
def accuracy_data(groups: Sequence[Group], target: float | None) -> Plot:
    """Draw accuracy against the data sent."""
    plot = Plot(
        "accuracy-communication",
        "Test accuracy against data sent",
        "Further up and left means cheaper communication: the same accuracy against the data "
        "that crossed the wire, every transfer counted once.",
        missing=NO_EVALUATION,
    )
    return _draw_accuracy(plot, groups, wire_axis(groups), target)


@figure_style()
def accuracy_epochs(groups: Sequence[Group], target: float | None) -> Plot:
    """Draw accuracy against local epochs."""
    plot = Plot(
        "accuracy-epochs",
        "Test accuracy against local epochs",
        "Further up and left means cheaper computation: a mechanism that wins over time but not "
        "here wins by training more in the same time.",
        missing=NO_EVALUATION,
    )
    return _draw_accuracy(plot, groups, epochs_axis(), target)


@figure_style()
def loss_time(groups: Sequence[Group]) -> Plot:
    """Draw the training loss against simulated time."""
    plot = Plot(
        "loss-time",
        "Training loss over simulated time",
        "Lower is better: the mean loss of the local trainings that ended in a round, each on its "
        "worker's own data. A low loss on skewed data need not mean a good model.",
        missing=NO_LOSS,
    )
    loss = AxisSpec(lambda r: r.loss, 1.0, "training loss")
    return _draw_curves(plot, groups, time_axis(groups), loss, smooth=True)


@figure_style()
def data_time(groups: Sequence[Group]) -> Plot:
    """Draw the data sent against simulated time."""
    plot = Plot(
        "communication-time",
        "Data sent over simulated time",
        "Lower is cheaper: all bytes that crossed the wire since the start, every transfer counted "
        "once. The paper counts both ends, which is twice as much.",
        missing=NO_ROUND,
    )
    scale, unit = data_unit(_largest(groups, wire_bytes))
    sent = AxisSpec(wire_bytes, scale, f"data on the wire ({unit})")
    plot = _draw_curves(plot, groups, time_axis(groups), sent)
    if plot.figure is not None:
        plot.figure.axes[0].set_ylim(bottom=0)
    return plot
