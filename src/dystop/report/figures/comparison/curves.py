"""Line charts of a comparison: the mean over the seeds of a group, with a band over the seeds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes

from dystop.report.data.comparison.sweep_layout import Panel
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
from dystop.report.figures.single_runs.learning import NO_EVALUATION, NO_LOSS, NO_ROUND
from dystop.report.figures.style import (
    LineStyle,
    Plot,
    draw_level,
    figure_style,
    group_style,
    label_outer,
    legend_handles,
    panel_figure,
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


def _groups(panels: Sequence[Panel]) -> list[Group]:
    return [group for panel in panels for group in panel.groups]


def in_one(groups: Sequence[Group]) -> list[Panel]:
    """Return one panel with all groups."""
    return [Panel("", tuple(groups))]


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
    plot: Plot, panels: Sequence[Panel], x: AxisSpec, y: AxisSpec, *, smooth: bool = False
) -> Plot:
    """Draw one curve per group, panel by panel; without any, return the plot without a figure."""
    drawn = [
        [(g, mean_curve(g, x.quantity, y.quantity, smooth=smooth)) for g in panel.groups]
        for panel in panels
    ]
    drawn = [[(g, curve) for g, curve in curves if len(curve)] for curves in drawn]
    every = [pair for curves in drawn for pair in curves]
    if not every:
        return plot
    several = len({g.label for g, _ in every}) > 1
    styles = {g.label: group_style(g, several) for g, _ in every}
    figure, places = panel_figure(legend_handles(list(styles.values())), len(panels))
    for axes, panel, curves in zip(places, panels, drawn, strict=True):
        for group, curve in curves:
            _draw_curve(axes, styles[group.label], curve, (x.scale, y.scale))
        axes.set_title(panel.title)
        axes.set_xlim(left=0)
    label_outer(places, x.title, y.title)
    ends = [f"{_full(g, panels)} ends at {_end(curve, x, y)}" for g, curve in every]
    alt = f"Line chart: {y.title} against {x.title}. {'; '.join(ends)}."
    wide = plot if len(panels) == 1 else replace(plot, wide=True)
    return wide.with_figure(figure, alt, _notes(every))


def _full(group: Group, panels: Sequence[Panel]) -> str:
    title = next(panel.title for panel in panels if any(group is g for g in panel.groups))
    return f"{group.label}, {title}" if title else group.label


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


def _draw_accuracy(plot: Plot, panels: Sequence[Panel], x: AxisSpec, target: float | None) -> Plot:
    accuracy = AxisSpec(lambda r: r.accuracy, 1.0, "test accuracy")
    plot = _draw_curves(plot, panels, x, accuracy)
    if plot.figure is None:
        return plot
    groups = _groups(panels)
    score = score_of([run for group in groups for run in group.runs])
    for axes in plot.figure.axes:
        set_score_axis(axes.yaxis, score)
        if target is not None:
            draw_level(axes, target, f"target\n{score.goal(target)}")
    notes = (*plot.notes, *evaluation_note([rows for g in groups for rows in g.histories]))
    return plot.with_figure(plot.figure, plot.alt, notes)


@figure_style()
def accuracy_time(panels: Sequence[Panel], target: float | None) -> Plot:
    """Draw accuracy against simulated time."""
    plot = Plot(
        "accuracy-time",
        "Test accuracy over simulated time",
        f"Higher and further left is better: {OWN_ACCURACY} against the simulated clock.",
        missing=NO_EVALUATION,
    )
    return _draw_accuracy(plot, panels, time_axis(_groups(panels)), target)


@figure_style()
def accuracy_data(panels: Sequence[Panel], target: float | None) -> Plot:
    """Draw accuracy against the data sent."""
    plot = Plot(
        "accuracy-communication",
        "Test accuracy against data sent",
        "Further up and left means cheaper communication: the same accuracy against the data "
        "that crossed the wire, every transfer counted once.",
        missing=NO_EVALUATION,
    )
    return _draw_accuracy(plot, panels, wire_axis(_groups(panels)), target)


@figure_style()
def accuracy_epochs(panels: Sequence[Panel], target: float | None) -> Plot:
    """Draw accuracy against local epochs."""
    plot = Plot(
        "accuracy-epochs",
        "Test accuracy against local epochs",
        "Further up and left means cheaper computation: a mechanism that wins over time but not "
        "here wins by training more in the same time.",
        missing=NO_EVALUATION,
    )
    return _draw_accuracy(plot, panels, epochs_axis(), target)


@figure_style()
def loss_time(panels: Sequence[Panel]) -> Plot:
    """Draw the training loss against simulated time."""
    plot = Plot(
        "loss-time",
        "Training loss over simulated time",
        "Lower is better: the mean loss of the local trainings that ended in a round, each on its "
        "worker's own data. A low loss on skewed data need not mean a good model.",
        missing=NO_LOSS,
    )
    loss = AxisSpec(lambda r: r.loss, 1.0, "training loss")
    return _draw_curves(plot, panels, time_axis(_groups(panels)), loss, smooth=True)


@figure_style()
def data_time(panels: Sequence[Panel]) -> Plot:
    """Draw the data sent against simulated time."""
    plot = Plot(
        "communication-time",
        "Data sent over simulated time",
        "Lower is cheaper: all bytes that crossed the wire since the start, every transfer counted "
        "once. The paper counts both ends, which is twice as much.",
        missing=NO_ROUND,
    )
    groups = _groups(panels)
    scale, unit = data_unit(_largest(groups, wire_bytes))
    sent = AxisSpec(wire_bytes, scale, f"data on the wire ({unit})")
    plot = _draw_curves(plot, panels, time_axis(groups), sent)
    for axes in () if plot.figure is None else plot.figure.axes:
        axes.set_ylim(bottom=0)
    return plot
