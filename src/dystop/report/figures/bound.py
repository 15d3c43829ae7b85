"""The figure of `dystop bound`: the measured gap under the bounds of Theorem 1."""

from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from dystop.experiments.bound import BoundReport
from dystop.report.figures.style import INK, RUNS, Plot, canvas, house_style, mark_level
from dystop.units import plural

_LINES: tuple[tuple[str, str, str, Literal["-", "--", ":"]], ...] = (
    ("gap", "measured F(w_t) - F*", INK, "-"),
    ("recursion", "Lemma 1 followed through the run", RUNS[0], "-"),
    ("theorem", "Theorem 1, its statement mended", RUNS[2], "--"),
    ("literal", "Theorem 1 as printed", RUNS[1], ":"),
)
_HEADROOM = 4.0  # times the largest bound that is worth drawing; the printed one leaves the figure
_NARROW = 100.0  # of largest to smallest: numbers are then told by 1, 2 and 5, not by powers of ten


@house_style()
def bound_figure(found: BoundReport) -> Plot:
    """Measured gap and bounds over rounds, on a logarithmic scale."""
    keys = [Line2D([], [], color=c, linestyle=s, label=label) for _, label, c, s in _LINES]
    figure, axes = canvas(keys)
    rounds = np.arange(found.rounds + 1)
    for name, _, color, style in _LINES:
        line = getattr(found, name)
        shown = np.isfinite(line) & (line > 0)  # a gap may round to nothing, a bound overflow
        axes.plot(rounds[shown], line[shown], color=color, linestyle=style)
    _scale(axes, found)
    mark_level(axes, found.start, "F(w_0) - F*")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("round")
    axes.set_ylabel("loss above the optimum")
    alt = (
        f"After {plural(found.rounds, 'round')} the measured gap is {found.gap[-1]:.3g}, Lemma 1 "
        f"allows {found.recursion[-1]:.3g}, Theorem 1 {found.theorem[-1]:.3g}; it began at "
        f"{found.start:.3g}."
    )
    words = Plot("bound", "Gap and bounds", "How far the global model is from the optimum.")
    return words.drawn(figure, alt)


def _scale(axes: Axes, found: BoundReport) -> None:
    """A logarithmic scale that the bound as printed does not stretch."""
    drawn = np.concatenate([found.gap, found.recursion, found.theorem, [found.start]])
    drawn = drawn[np.isfinite(drawn) & (drawn > 0)]
    low, high = 0.5 * float(drawn.min()), _HEADROOM * float(drawn.max())
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    if high / low < _NARROW:
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())
