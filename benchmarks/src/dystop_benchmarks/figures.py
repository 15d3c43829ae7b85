"""Figures of `dystop bench`: cost of a round by fleet size, cost of an image by model size."""

from collections.abc import Sequence
from typing import Protocol

from matplotlib.axes import Axes

from dystop.report.figures.style import (
    LineStyle,
    Plot,
    color_and_marker,
    figure_style,
    legend_handles,
    new_figure,
)


class CostCurve(Protocol):
    """A measured line of a figure."""

    @property
    def name(self) -> str:
        """Name of what was measured."""

    @property
    def x(self) -> tuple[float, ...]:
        """Sizes at which it was measured."""

    @property
    def y(self) -> tuple[float, ...]:
        """Cost at each size."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A label for each point, or none."""


@figure_style()
def cost_workers(curves: Sequence[CostCurve]) -> Plot:
    """Draw seconds per round against the number of workers."""
    plot = Plot(
        "cost-workers",
        "Cost of a round against the number of workers",
        "Lower is faster. On these axes a straight line at 45 degrees is linear growth.",
    )
    return _draw_costs(plot, curves, "workers", "seconds per round")


@figure_style()
def cost_models(curves: Sequence[CostCurve]) -> Plot:
    """Draw microseconds per trained image against the size of the model."""
    plot = Plot(
        "cost-model",
        "Cost of a trained image against the size of the model",
        "Lower is faster. One model with one large batch is the lower limit of the device.",
    )
    return _draw_costs(plot, curves, "parameters of the model", "µs per trained image")


def _draw_costs(plot: Plot, curves: Sequence[CostCurve], x: str, y: str) -> Plot:
    styles = [
        LineStyle(curve.name, *color_and_marker(k), len(curves) > 1)
        for k, curve in enumerate(curves)
    ]
    figure, axes = new_figure(legend_handles(styles))
    labelled = any(curve.notes for curve in curves)
    for curve, style in zip(curves, styles, strict=True):
        axes.loglog(curve.x, curve.y, color=style.color, **style.marker_options(len(curve.x)))
        if labelled:  # there is nothing between two models
            axes.lines[-1].set(linestyle="none", markersize=6)
    if labelled:
        _label_points(axes, curves)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    ends = "; ".join(f"{c.name}: {c.y[-1]:.3g} at {c.x[-1]:,.0f}" for c in curves)
    return plot.with_figure(figure, f"Line chart of {y} against {x}. {ends}.")


def _label_points(axes: Axes, curves: Sequence[CostCurve]) -> None:
    """Write the name of each model above its highest point."""
    for k, note in enumerate(curves[0].notes):
        top = max(curve.y[k] for curve in curves)
        at = (curves[0].x[k], top)
        axes.annotate(note, at, xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8)
    axes.margins(x=0.1, y=0.15)
