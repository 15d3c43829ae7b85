"""A sweep over two keys as a heat map with one cell per combination."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dystop.report.data.comparison.ranking import cost_to_target
from dystop.report.data.comparison.sweep_layout import MECHANISM
from dystop.report.data.groups import Group, SeedSpread
from dystop.report.data.scores import Score, score_of
from dystop.report.data.settings import value_of, value_text, values_of
from dystop.report.figures.single_runs.learning import NO_EVALUATION
from dystop.report.figures.style import MUTED, WHITE, Plot, figure_style
from dystop.units import NOTHING, number, time_unit

MIN_VALUES = 3
"""Values of each key from which a heat map says more than lines."""

Measure = Callable[[Group], SeedSpread]
HeatMapAxis = tuple[str, list[str]]
"""A key and its values as text."""


def fits_heat_map(groups: Sequence[Group], keys: Sequence[str]) -> bool:
    """Return whether a sweep of one mechanism has two keys with enough values of each."""
    if MECHANISM in keys:
        return False  # lines by mechanism say more
    runs = [group.runs[0] for group in groups]
    return len(keys) == 2 and all(len(values_of(runs, key)) >= MIN_VALUES for key in keys)


@figure_style()
def draw_heat_map(
    groups: Sequence[Group], keys: Sequence[str], target: float | None, own: tuple[Measure, str]
) -> Plot:
    """Draw accuracy and time to the target over both keys.

    Args:
        groups: The groups of the sweep.
        keys: The two keys, the key of the rows first.
        target: Accuracy whose time is drawn.
        own: Accuracy of the workers' own models, and at which time.
    """
    measure, when = own
    plot = Plot(
        "sweep-map",
        f"Accuracy and time to target over {keys[0]} and {keys[1]}",
        "Each cell is one combination, mean over the seeds; brighter is better. Left: accuracy "
        "of the workers' own models. Right: time to the target; a dash means that not every seed "
        "reached it.",
        missing=NO_EVALUATION,
        wide=True,
    )

    def time(group: Group) -> SeedSpread:
        return cost_to_target(group, target, lambda r: r.clock_s)

    accuracy = _table(groups, keys, measure)
    if not np.isfinite(accuracy).any():
        return plot
    rows = len(accuracy)
    figure = Figure(figsize=(9.9, 1.4 + 0.42 * rows), layout="constrained")
    left, right = figure.subplots(1, 2)
    runs = [group.runs[0] for group in groups]
    axis_values = [(key, [value_text(v) for v in values_of(runs, key)]) for key in keys]
    score = score_of(runs)
    _draw_cells(left, accuracy, score.text, axis_values)
    left.set_title(f"accuracy of own models {when}")
    times = _table(groups, keys, time)
    scale, unit = time_unit(float(np.nanmax(times)) if np.isfinite(times).any() else 0.0)
    _draw_cells(right, -times, lambda v: number(-v / scale), axis_values)
    aim = "the target" if target is None else score.aim(target)
    right.set_title(f"simulated time to {aim} ({unit})")
    return plot.with_figure(figure, _alt(accuracy, axis_values, score))


def _table(groups: Sequence[Group], keys: Sequence[str], measure: Measure) -> Any:
    """Return means by the values of both keys; NaN where a seed has no value."""
    runs = [group.runs[0] for group in groups]
    rows, columns = (values_of(runs, key) for key in keys)
    out = np.full((len(rows), len(columns)), np.nan)
    for group in groups:
        spread = measure(group)
        row, column = (value_of(group.runs[0], key) for key in keys)
        if spread.complete and spread.mean is not None:
            out[rows.index(row), columns.index(column)] = spread.mean
    return out


def _draw_cells(
    axes: Axes, values: Any, show: Callable[[float], str], axis_values: Sequence[HeatMapAxis]
) -> None:
    known = values[np.isfinite(values)]
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    axes.imshow(values, cmap=colormaps["viridis"], vmin=low, vmax=high, aspect="auto")
    axes.grid(False)
    (down, rows), (across, columns) = axis_values
    axes.set_yticks(range(len(rows)), rows)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_ylabel(down)
    axes.set_xlabel(across)
    middle = (low + high) / 2
    for (row, column), value in np.ndenumerate(values):
        known_here = bool(np.isfinite(value))
        text = show(float(value)) if known_here else NOTHING
        color = MUTED if not known_here else "black" if value > middle else WHITE
        axes.annotate(text, (column, row), ha="center", va="center", fontsize=8, color=color)


def _alt(accuracy: Any, axis_values: Sequence[HeatMapAxis], score: Score) -> str:
    (down, rows), (across, columns) = axis_values
    values = [
        f"{down} {rows[row]}, {across} {columns[column]}: {score.text(float(value))}"
        for (row, column), value in np.ndenumerate(accuracy)
        if np.isfinite(value)
    ]
    return f"Heat map of accuracy. {'; '.join(values)}."
