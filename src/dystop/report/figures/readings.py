"""The figure of a search over readings: the distance from the paper by the value of each key."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from dystop.experiments.config.readings import OPEN_READINGS
from dystop.report.data.nearness import ReadingResult
from dystop.report.figures.style import MUTED, RUNS, Plot, figure_style

_COLUMNS = 3


@figure_style()
def distances_by_value(ranked: Sequence[ReadingResult]) -> Plot:
    """Draw one small panel per open key: a point per reading, a line at the mean of a value."""
    plot = Plot(
        "distance-by-reading",
        "Distance from the paper's numbers, by the value of each reading",
        "Lower is nearer. A point is a reading, a line the mean of all readings with this value.",
        missing="No reading has finished.",
        wide=True,
    )
    lines = -(-len(OPEN_READINGS) // _COLUMNS)
    figure = Figure(figsize=(9.9, 1.75 * lines), layout="constrained")
    panels = figure.subplots(lines, _COLUMNS, sharey=True, squeeze=False).ravel()
    told = []
    for axes, reading in zip(panels, OPEN_READINGS, strict=False):
        values = sorted({r.reading.values[reading.key] for r in ranked}, key=str)
        if all(isinstance(value, int | float) for value in values):
            values.sort()
        means = []
        for at, value in enumerate(values):
            own = [r.distance or 0.0 for r in ranked if r.reading.values[reading.key] == value]
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
