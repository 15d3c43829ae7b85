"""The figure of `dystop bound`: the measured gap below the bounds of Theorem 1."""

from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from dystop.report.figures.style import INK, RUNS, Plot, draw_level, figure_style, new_figure
from dystop.units import plural
from dystop_paper.bound import BoundReport

_LINES: tuple[tuple[str, str, str, Literal["-", "--", ":"]], ...] = (
    ("gap", "measured F(w_t) - F*", INK, "-"),
    ("recursion", "Lemma 1 followed through the run", RUNS[0], "-"),
    ("theorem", "Theorem 1, corrected", RUNS[2], "--"),
    ("literal", "Theorem 1 as printed", RUNS[1], ":"),
)
_HEADROOM = 4.0  # times the largest bound; the bound as printed may leave the figure
_NARROW = 100.0  # ratio of the limits below which ticks are 1, 2 and 5, not powers of ten


@figure_style()
def bound_figure(report: BoundReport) -> Plot:
    """Draw the measured gap and the bounds over rounds on a logarithmic scale."""
    keys = [Line2D([], [], color=c, linestyle=s, label=label) for _, label, c, s in _LINES]
    figure, axes = new_figure(keys)
    rounds = np.arange(report.rounds + 1)
    for name, _, color, style in _LINES:
        line = getattr(report, name)
        shown = np.isfinite(line) & (line > 0)  # a gap may round to zero, a bound may overflow
        axes.plot(rounds[shown], line[shown], color=color, linestyle=style)
    _set_scale(axes, report)
    draw_level(axes, report.start, "F(w_0) - F*")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel("loss above the optimum")
    alt = (
        f"After {plural(report.rounds, 'round')} the measured gap is {report.gap[-1]:.3g}, Lemma 1 "
        f"allows {report.recursion[-1]:.3g}, Theorem 1 {report.theorem[-1]:.3g}; it starts at "
        f"{report.start:.3g}."
    )
    plot = Plot("bound", "Gap and bounds", "How far the global model is from the optimum.")
    return plot.with_figure(figure, alt)


def _set_scale(axes: Axes, report: BoundReport) -> None:
    """Set a logarithmic scale that ignores the bound as printed."""
    values = np.concatenate([report.gap, report.recursion, report.theorem, [report.start]])
    values = values[np.isfinite(values) & (values > 0)]
    low, high = 0.5 * float(values.min()), _HEADROOM * float(values.max())
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    if high / low < _NARROW:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
