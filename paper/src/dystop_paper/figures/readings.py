"""Figures of a search over readings: distances by the value of each key, and on both data sets."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from dystop.config.readings import OPEN_READINGS
from dystop.report.figures.style import MUTED, RUNS, Plot, figure_style
from dystop_paper.data.nearness import GROUPS, SIMULATED, ReadingResult
from dystop_paper.reproduce.reading_runs import Group

_COLUMNS = 3


@figure_style()
def distances_by_value(
    distances: Sequence[tuple[ReadingResult, float]], on: Group | None = None
) -> Plot:
    """Draw one small panel per open key: a point per reading, a line at the mean of a value.

    Args:
        distances: Readings, each with its distance.
        on: What these distances are on; None: they are those of the readings.
    """
    plot = Plot(
        "distance-by-reading" + (f"-{on}" if on else ""),
        f"Distance from the paper's numbers{f' on {GROUPS[on]}' if on else ''}, "
        "by the value of each reading",
        "Lower is nearer. A point is a reading, a line the mean of all readings with this value.",
        missing="No reading has finished.",
        wide=True,
    )
    lines = -(-len(OPEN_READINGS) // _COLUMNS)
    figure = Figure(figsize=(9.9, 1.75 * lines), layout="constrained")
    panels = figure.subplots(lines, _COLUMNS, sharey=True, squeeze=False).ravel()
    told = []
    for axes, reading in zip(panels, OPEN_READINGS, strict=False):
        values = sorted({r.reading.values[reading.key] for r, _ in distances}, key=str)
        if all(isinstance(value, int | float) for value in values):
            values.sort()
        means = []
        for at, value in enumerate(values):
            own = [d for r, d in distances if r.reading.values[reading.key] == value]
            spread = np.linspace(-0.18, 0.18, len(own)) if len(own) > 1 else np.zeros(1)
            axes.plot(at + spread, own, "o", color=RUNS[0], markersize=2.6, alpha=0.6)
            means.append(float(np.mean(own)))
            axes.hlines(means[-1], at - 0.3, at + 0.3, color=MUTED, linewidth=1.4)
        axes.set_xticks(range(len(values)), [f"{value}" for value in values])
        axes.set_xlim(-0.6, len(values) - 0.4)
        axes.set_title(reading.label)
        told.append(f"{reading.label}: " + ", ".join(
            f"{value} {mean:.2f}" for value, mean in zip(values, means, strict=True)))  # fmt: skip
    for axes in panels[len(OPEN_READINGS) :]:
        axes.set_visible(False)
    for axes in panels[::_COLUMNS]:
        axes.set_ylabel("distance")
    return plot.with_figure(figure, f"Mean distance by value. {'; '.join(told)}.")


@figure_style()
def distances_on_both(ranked: Sequence[ReadingResult]) -> Plot:
    """Draw a point per reading: its distance on one data set against that on the other."""
    (first, second), names = SIMULATED, [GROUPS[group] for group in SIMULATED]
    plot = Plot(
        "distance-on-both",
        f"Distance on {names[0]} against distance on {names[1]}",
        "Lower left is nearer. A reading that fitted both would lie in the corner.",
        missing="No reading has been run on both data sets.",
    )
    both = [
        (r.reading, a, b)
        for r in ranked
        if (a := r.distance_on(first)) is not None and (b := r.distance_on(second)) is not None
    ]
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    axes = figure.subplots()
    for reading, a, b in both:
        colour = RUNS[1] if reading.is_preset else RUNS[0]
        axes.plot(a, b, "o", color=colour, markersize=4.0, alpha=0.8)
    nearest = {min(both, key=lambda row: row[1])[0].name, min(both, key=lambda row: row[2])[0].name}
    for reading, a, b in both:
        if reading.is_preset or reading.name in nearest:
            axes.annotate(reading.name, (a, b), xytext=(4, 3), textcoords="offset points")
    axes.set_xlabel(f"distance on {names[0]}")
    axes.set_ylabel(f"distance on {names[1]}")
    axes.set_xlim(left=0.0)
    axes.set_ylim(bottom=0.0)
    told = "; ".join(f"{reading.name} {a:.2f} and {b:.2f}" for reading, a, b in both)
    return plot.with_figure(figure, f"Distances on {names[0]} and {names[1]}: {told}.")
