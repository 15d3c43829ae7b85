"""A line per mechanism: the mean over its seeds, with a band from the lowest to the highest."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from dystop.record import RoundRecord
from dystop.report.data.arrays import Floats
from dystop.report.data.groups import Group
from dystop.report.data.series import BINS, Pick, evaluation_note, series
from dystop.report.figures.learning import NO_LOSS, NO_ROUND, NO_SCORE, clock, wire
from dystop.report.figures.rounds import CALM, moving_mean
from dystop.report.figures.style import Plot, canvas, house_style, legend_keys, mark_level
from dystop.units import data_unit, goal, number, time_unit

BAND = "Line: mean over the seeds, where all of them have data; band: lowest to highest seed."
APART = "Seeds of {names} share less than half of this axis: each one is drawn too, as a thin line."
OWN = "the mean test accuracy of the workers' own models"
CALMED = "Every seed was smoothed first, by a moving mean over a tenth of its points."

Points = tuple[Floats, Floats]


@dataclass(frozen=True)
class Curve:
    """Points of one line, over the stretch that all seeds cover."""

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    seeds: tuple[Points, ...]  # x and y of each
    smoothed: bool = False

    def __len__(self) -> int:
        return len(self.x)

    @property
    def apart(self) -> bool:
        """Whether the mean covers less than half of what the longest seed covers."""
        longest = max((at[-1] - at[0] for at, _ in self.seeds), default=0.0)
        return len(self.seeds) > 1 and bool(self.x[-1] - self.x[0] < 0.5 * longest)


def curve(group: Group, x: Pick, y: Pick, *, calm: bool = False) -> Curve:
    """Mean, lowest and highest over the seeds wherever one of them has a point.

    With a single seed the points are its own; nothing is interpolated.
    """
    lines = [series(records, x, y) for records in group.histories]
    points = [(line.x, line.mean) for line in lines if len(line)]
    smoothed = calm and any(len(at) > CALM for at, _ in points)
    if smoothed:
        points = [(at, moving_mean(value, len(at) // 20)) for at, value in points]
    if not points:
        none = np.zeros(0)
        return Curve(none, none, none, none, ())
    grid = _grid([at for at, _ in points])
    rows = np.array([np.interp(grid, at, value) for at, value in points])
    low, high = rows.min(axis=0), rows.max(axis=0)
    return Curve(grid, rows.mean(axis=0), low, high, tuple(points), smoothed)


def _grid(places: Sequence[Floats]) -> Floats:
    """Every place where some seed has a point and all of them go; at most `BINS`, evenly taken."""
    first, last = max(at[0] for at in places), min(at[-1] for at in places)
    every = np.unique(np.concatenate(places))
    inside = every[(every >= first) & (every <= last)]
    if not len(inside):  # seeds that do not overlap: their one common statement is the first start
        inside = np.array([first])
    take = np.unique(np.linspace(0, len(inside) - 1, BINS).round().astype(int))
    out: Floats = inside[take] if len(inside) > BINS else inside
    return out


def epochs(record: RoundRecord) -> float:
    """Local epochs executed since the start."""
    return record.epochs_total


@dataclass(frozen=True)
class Axis:
    """What is on an axis: how it is read, scaled and named."""

    pick: Pick
    scale: float
    title: str


def time_axis(every: Sequence[Group]) -> Axis:
    """Simulated time, in seconds or hours."""
    scale, unit = time_unit(_largest(every, clock))
    return Axis(clock, scale, f"simulated time ({unit})")


def wire_axis(every: Sequence[Group]) -> Axis:
    """Bytes on the wire."""
    scale, unit = data_unit(_largest(every, wire))
    return Axis(wire, scale, f"data on the wire since the start ({unit})")


def epochs_axis(every: Sequence[Group]) -> Axis:
    """Local epochs executed."""
    return Axis(epochs, 1.0, "local epochs executed (passes over the training set)")


def _largest(every: Sequence[Group], pick: Pick) -> float:
    return max((pick(rows[-1]) or 0.0 for g in every for rows in g.histories), default=0.0)


def _lines(plot: Plot, every: Sequence[Group], x: Axis, y: Axis, *, calm: bool = False) -> Plot:
    """One line per group; a plot without any says why."""
    found = [(g, curve(g, x.pick, y.pick, calm=calm)) for g in every]
    found = [(g, line) for g, line in found if len(line)]
    if not found:
        return plot
    figure, axes = canvas(legend_keys([g for g, _ in found]))
    for group, line in found:
        _draw(axes, group, line, x.scale, y.scale)
    axes.set_xlabel(x.title)
    axes.set_ylabel(y.title)
    told = [f"{g.label} ends at {_ending(line, x, y)}" for g, line in found]
    alt = f"Line chart: {y.title} against {x.title}. {'; '.join(told)}."
    return plot.drawn(figure, alt, _notes(found))


def _ending(line: Curve, x: Axis, y: Axis) -> str:
    across, up = float(line.x[-1]) / x.scale, float(line.mean[-1]) / y.scale
    return f"{number(up)} at {number(across)}"


def _draw(axes: Axes, group: Group, line: Curve, across: float, up: float) -> None:
    x, color = line.x / across, group.color
    if len(line.seeds) > 1:
        axes.fill_between(x, line.low / up, line.high / up, color=color, alpha=0.15, linewidth=0)
    if line.apart:
        for at, value in line.seeds:
            axes.plot(at / across, value / up, color=color, linewidth=0.8, alpha=0.7)
    axes.plot(x, line.mean / up, color=color, **group.marks(len(line)))


def _notes(found: Sequence[tuple[Group, Curve]]) -> tuple[str, ...]:
    lines = [line for _, line in found]
    apart = ", ".join(group.label for group, line in found if line.apart)
    return (
        *((BAND,) if any(len(line.seeds) > 1 for line in lines) else ()),
        *((APART.format(names=apart),) if apart else ()),
        *((CALMED,) if any(line.smoothed for line in lines) else ()),
    )


def _accuracy(plot: Plot, every: Sequence[Group], x: Axis, target: float | None) -> Plot:
    drawn = _lines(plot, every, x, Axis(lambda r: r.accuracy, 1.0, "test accuracy"))
    if drawn.figure is None:
        return drawn
    axes = drawn.figure.axes[0]
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    if target is not None:
        mark_level(axes, target, f"target\n{goal(target)}")
    notes = (*drawn.notes, *evaluation_note([rows for g in every for rows in g.histories]))
    return drawn.drawn(drawn.figure, drawn.alt, notes)


@house_style()
def accuracy_time(every: Sequence[Group], target: float | None) -> Plot:
    """Accuracy against simulated seconds."""
    plot = Plot(
        "accuracy-time",
        "Test accuracy over simulated time",
        f"Higher and further left is better: {OWN} by the simulated clock.",
        missing=NO_SCORE,
    )
    return _accuracy(plot, every, time_axis(every), target)


@house_style()
def accuracy_data(every: Sequence[Group], target: float | None) -> Plot:
    """Accuracy against bytes."""
    plot = Plot(
        "accuracy-communication",
        "Test accuracy for the data sent",
        "Further up and left is cheaper communication: the same accuracy by the data that had "
        "crossed the wire, every transfer counted once.",
        missing=NO_SCORE,
    )
    return _accuracy(plot, every, wire_axis(every), target)


@house_style()
def accuracy_epochs(every: Sequence[Group], target: float | None) -> Plot:
    """Accuracy against local epochs executed."""
    plot = Plot(
        "accuracy-epochs",
        "Test accuracy for the training done",
        "Further up and left is cheaper computing: a mechanism that wins over time and not here "
        "wins by training more in the same time.",
        missing=NO_SCORE,
    )
    return _accuracy(plot, every, epochs_axis(every), target)


@house_style()
def loss_time(every: Sequence[Group]) -> Plot:
    """Training loss against simulated seconds."""
    plot = Plot(
        "loss-time",
        "Training loss over simulated time",
        "Lower is better: the mean loss of the local trainings that ended in a round, each on its "
        "worker's own data; a low loss on skewed data need not be a good model.",
        missing=NO_LOSS,
    )
    loss = Axis(lambda r: r.loss, 1.0, "training loss")
    return _lines(plot, every, time_axis(every), loss, calm=True)


@house_style()
def data_time(every: Sequence[Group]) -> Plot:
    """Bytes against simulated seconds."""
    plot = Plot(
        "communication-time",
        "Data sent over simulated time",
        "Lower is cheaper: all bytes that crossed the wire since the start, every transfer counted "
        "once; counted at both ends, as the paper does, it is twice as much.",
        missing=NO_ROUND,
    )
    scale, unit = data_unit(_largest(every, wire))
    drawn = _lines(plot, every, time_axis(every), Axis(wire, scale, f"data on the wire ({unit})"))
    if drawn.figure is not None:
        drawn.figure.axes[0].set_ylim(bottom=0)
    return drawn
