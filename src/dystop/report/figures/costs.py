"""Figures of `dystop bench`: a round's cost as the fleet grows, an image's as the model grows."""

from collections.abc import Sequence
from typing import Protocol

from matplotlib.axes import Axes

from dystop.report.figures.style import Mark, Plot, canvas, house_style, legend_keys, look


class Curve(Protocol):
    """One line of a figure."""

    @property
    def name(self) -> str:
        """What is measured."""

    @property
    def x(self) -> tuple[float, ...]:
        """Where it was measured."""

    @property
    def y(self) -> tuple[float, ...]:
        """What it cost."""

    @property
    def notes(self) -> tuple[str, ...]:
        """A word for each point, or none."""


@house_style()
def cost_workers(curves: Sequence[Curve]) -> Plot:
    """Seconds of a round against the number of workers."""
    plot = Plot(
        "cost-workers",
        "Cost of a round against the number of workers",
        "Lower is faster; on these axes a straight line at 45 degrees is linear growth.",
    )
    return _drawn(plot, curves, "workers", "seconds per round")


@house_style()
def cost_models(curves: Sequence[Curve]) -> Plot:
    """Microseconds of a trained image against the size of the model."""
    plot = Plot(
        "cost-model",
        "Cost of a trained image against the size of the model",
        "Lower is faster; one model at one large batch is the least that the device can do.",
    )
    return _drawn(plot, curves, "parameters of the model", "µs per trained image")


def _drawn(plot: Plot, curves: Sequence[Curve], x: str, y: str) -> Plot:
    marks = [Mark(curve.name, *look(k), len(curves) > 1) for k, curve in enumerate(curves)]
    figure, axes = canvas(legend_keys(marks))
    named = any(curve.notes for curve in curves)
    for curve, mark in zip(curves, marks, strict=True):
        axes.loglog(curve.x, curve.y, color=mark.color, **mark.marks(len(curve.x)))
        if named:  # between two models there is nothing
            axes.lines[-1].set(linestyle="none", markersize=6)
    if named:
        _name_points(axes, curves)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    ends = "; ".join(f"{c.name}: {c.y[-1]:.3g} at {c.x[-1]:,.0f}" for c in curves)
    return plot.drawn(figure, f"Line chart of {y} against {x}. {ends}.")


def _name_points(axes: Axes, curves: Sequence[Curve]) -> None:
    """Write each model's name above the highest of its points."""
    for k, note in enumerate(curves[0].notes):
        top = max(curve.y[k] for curve in curves)
        at = (curves[0].x[k], top)
        axes.annotate(note, at, xytext=(0, 6), textcoords="offset points", ha="center", fontsize=8)
    axes.margins(x=0.1, y=0.15)
