"""The figure of `dystop bound`: the measured gap under the bounds of Theorem 1."""

from typing import Literal

import numpy as np
from matplotlib.lines import Line2D

from dystop.experiments.bound import BoundReport
from dystop.report.style import INK, RUNS, Plot, canvas, house_style

_LINES: tuple[tuple[str, str, str, Literal["-", "--", ":"]], ...] = (
    ("gap", "measured F(w_t) - F*", INK, "-"),
    ("recursion", "Lemma 1 followed through the run", RUNS[0], "-"),
    ("theorem", "Theorem 1, its statement mended", RUNS[2], "--"),
    ("literal", "Theorem 1 as printed", RUNS[1], ":"),
)
_HEADROOM = 30.0  # times the largest finite bound; the printed one leaves every figure


@house_style()
def bound_figure(found: BoundReport) -> Plot:
    """Measured gap and bounds over rounds, on a logarithmic scale."""
    keys = [Line2D([], [], color=c, linestyle=s, label=label) for _, label, c, s in _LINES]
    figure, axes = canvas(keys)
    rounds = np.arange(found.rounds + 1)
    for name, _, color, style in _LINES:
        axes.plot(rounds, getattr(found, name), color=color, linestyle=style)
    axes.set_yscale("log")
    top = _HEADROOM * max(float(found.theorem.max()), float(found.recursion.max()))
    axes.set_ylim(0.5 * float(found.gap.min()), top)
    axes.set_xlabel("round")
    axes.set_ylabel("distance to the optimum")
    alt = (
        f"After {found.rounds} rounds the measured gap is {found.gap[-1]:.3g}, Lemma 1 allows "
        f"{found.recursion[-1]:.3g}, Theorem 1 {found.theorem[-1]:.3g}."
    )
    words = Plot("bound", "Gap and bounds", "How far the global model is from the optimum.")
    return words.drawn(figure, alt)
