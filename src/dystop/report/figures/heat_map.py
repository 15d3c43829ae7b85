"""A sweep over two keys as a map: a cell per combination."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dystop.report.data.groups import Group, Spread
from dystop.report.data.names import shown, value_of, values_of
from dystop.report.data.ranking import to_target
from dystop.report.figures.learning import NO_SCORE
from dystop.report.figures.style import MUTED, Plot, house_style
from dystop.units import NOTHING, goal, number, time_unit

FEWEST = 3
"""Values of each key from which a map says more than lines."""

Measure = Callable[[Group], Spread]
Side = tuple[str, list[str]]
"""A key and its values in words."""


def is_map(every: Sequence[Group], over: Sequence[str]) -> bool:
    """Whether the sweep is one of two keys, with enough values of each."""
    runs = [group.runs[0] for group in every]
    return len(over) == 2 and all(len(values_of(runs, key)) >= FEWEST for key in over)


@house_style()
def heat(
    every: Sequence[Group], over: Sequence[str], target: float | None, own: tuple[Measure, str]
) -> Plot:
    """Accuracy, and time to the target, over both keys.

    Args:
        every: The groups of the sweep.
        over: The two keys, the rows' first.
        target: Accuracy whose time is told.
        own: Accuracy of the workers' own models, and when it is taken.
    """
    measure, when = own
    plot = Plot(
        "sweep-map",
        f"Accuracy and time to target over {over[0]} and {over[1]}",
        "Each cell is one combination, mean over the seeds; brighter is better: a higher accuracy "
        "of the workers' own models on the left, less time to the target on the right. "
        "A dash: not reached with every seed.",
        missing=NO_SCORE,
        wide=True,
    )

    def time(group: Group) -> Spread:
        return to_target(group, target, lambda r: r.clock_s)

    accuracy = _table(every, over, measure)
    if not np.isfinite(accuracy).any():
        return plot
    rows = len(accuracy)
    figure = Figure(figsize=(9.9, 1.4 + 0.42 * rows), layout="constrained")
    left, right = figure.subplots(1, 2)
    runs = [group.runs[0] for group in every]
    sides = [(key, [shown(v) for v in values_of(runs, key)]) for key in over]
    _cells(left, accuracy, lambda v: f"{100 * v:.1f} %", sides)
    left.set_title(f"accuracy of own models {when}")
    times = _table(every, over, time)
    scale, unit = time_unit(float(np.nanmax(times)) if np.isfinite(times).any() else 0.0)
    _cells(right, -times, lambda v: number(-v / scale), sides)
    aim = "the target" if target is None else goal(target)
    right.set_title(f"simulated time to {aim} ({unit})")
    return plot.drawn(figure, _alt(accuracy, sides))


def _table(every: Sequence[Group], over: Sequence[str], measure: Measure) -> Any:
    """Means by the values of both keys; nothing where a seed has none."""
    runs = [group.runs[0] for group in every]
    rows, columns = (values_of(runs, key) for key in over)
    out = np.full((len(rows), len(columns)), np.nan)
    for group in every:
        spread = measure(group)
        row, column = (value_of(group.runs[0], key) for key in over)
        if spread.complete and spread.mean is not None:
            out[rows.index(row), columns.index(column)] = spread.mean
    return out


def _cells(axes: Axes, values: Any, show: Callable[[float], str], sides: Sequence[Side]) -> None:
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    axes.imshow(values, cmap=colormaps["viridis"], vmin=low, vmax=high, aspect="auto")
    axes.grid(False)
    (down, rows), (across, columns) = sides
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_ylabel(down)
    axes.set_xlabel(across)
    middle = (low + high) / 2
    for (row, column), value in np.ndenumerate(values):
        known_here = bool(np.isfinite(value))
        text = show(float(value)) if known_here else NOTHING
        color = MUTED if not known_here else "black" if value > middle else "white"
        axes.annotate(text, (column, row), ha="center", va="center", fontsize=8, color=color)


def _alt(accuracy: Any, sides: Sequence[Side]) -> str:
    (down, rows), (across, columns) = sides
    told = [
        f"{down} {rows[row]}, {across} {columns[column]}: {100 * value:.1f} %"
        for (row, column), value in np.ndenumerate(accuracy)
        if np.isfinite(value)
    ]
    return f"Map of the accuracy. {'; '.join(told)}."
