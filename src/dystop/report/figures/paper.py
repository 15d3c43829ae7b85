"""Figures for a paper (`dystop plot`): curves, bars and time shares, in panels if asked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from dystop.errors import ConfigError
from dystop.folders.run_folder import RunData
from dystop.report.data.comparison.ranking import cost_to_target
from dystop.report.data.comparison.study_results import choose_target
from dystop.report.data.groups import Group, SeedSpread, over_seeds
from dystop.report.data.names import clock_name
from dystop.report.data.plot_request import (
    PlotLine,
    PlotPanel,
    PlotRequest,
    groups_of,
    plot_panels,
)
from dystop.report.data.scores import Score, score_of
from dystop.report.data.series import MeanCurve, Quantity, clock_s, epochs, mean_curve, wire_bytes
from dystop.report.data.summary import summarise
from dystop.report.data.time_shares import mean_shares
from dystop.report.figures.comparison.bars import TIME_COLORS, share_handles
from dystop.report.figures.paper_style import LINES, MARKERS, PaperStyle
from dystop.sparse import Floats
from dystop.units import data_unit, plural, time_unit

_ROW_IN = 0.24  # height of a bar
_MARKED = 8  # markers of a line


@dataclass(frozen=True)
class PaperFigure:
    """A figure, and what a caption must say about it."""

    figure: Figure
    caption: str


@dataclass(frozen=True)
class _Axis:
    quantity: Quantity
    scale: float
    title: str
    smooth: bool = False


def draw_paper(runs: Sequence[RunData], request: PlotRequest, style: PaperStyle) -> PaperFigure:
    """Draw a figure for a paper; `style.applied()` must be in force.

    Raises:
        ConfigError: If a choice does not fit the runs, or they have nothing to draw.
    """
    panels = plot_panels(runs, request)
    groups, score = groups_of(panels), score_of(runs)
    draw = {
        "time-to-target": _draw_time_to_target,
        "staleness": _draw_staleness,
        "time-shares": _draw_time_shares,
    }.get(request.figure, _draw_curves)
    figure = draw(panels, request, style, score)
    _set_limits(figure, style)
    return PaperFigure(figure, _caption(groups, request))


def _caption(groups: Sequence[Group], request: PlotRequest) -> str:
    """Return what a caption must state: seeds, spread, timing law."""
    seeds = sorted({len(group.runs) for group in groups})
    law = clock_name([run for group in groups for run in group.runs])
    laws = " and ".join(dict.fromkeys(group.law for group in groups))
    each = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    mean = "one seed" if seeds == [1] else f"mean over {each} seeds"
    spread = {
        "range": "band or whisker: lowest to highest seed",
        "std": "band or whisker: one standard deviation between seeds",
        "none": "",
    }[request.band if seeds != [1] else "none"]
    timing = law if law == "measured time" else f"{law}, timing law {laws}"
    return "; ".join(part for part in (mean, spread, timing) if part)


def _set_limits(figure: Figure, style: PaperStyle) -> None:
    for axes in figure.axes:
        if style.xlim is not None:
            axes.set_xlim(*style.xlim)
        if style.ylim is not None:
            axes.set_ylim(*style.ylim)


# Curves -----------------------------------------------------------------------------------------


def _axes_of(groups: Sequence[Group], figure: str, score: Score) -> tuple[_Axis, _Axis]:
    """Return what a figure has on its axes."""
    clock = clock_name([run for group in groups for run in group.runs])
    seconds, unit = time_unit(_largest(groups, clock_s))
    bytes_, size = data_unit(_largest(groups, wire_bytes))
    across = {
        "time": _Axis(clock_s, seconds, f"{clock.capitalize()} ({unit})"),
        "traffic": _Axis(wire_bytes, bytes_, f"Traffic ({size})"),
        "epochs": _Axis(epochs, 1.0, "Local epochs"),
    }
    up = {
        "accuracy": _Axis(lambda r: r.accuracy, 1.0, f"Test {score.name}"
                          + (" (%)" if score.is_share else "")),
        "loss": _Axis(lambda r: r.loss, 1.0, "Training loss", smooth=True),
    }  # fmt: skip
    what, over = figure.split("-")
    return across[over], up[what]


def _largest(groups: Sequence[Group], quantity: Quantity) -> float:
    return max((quantity(rows[-1]) or 0.0 for g in groups for rows in g.histories), default=0.0)


def _draw_curves(
    panels: Sequence[PlotPanel], request: PlotRequest, style: PaperStyle, score: Score
) -> Figure:
    """Draw one line per group, with the seeds as a band."""
    groups = groups_of(panels)
    x, y = _axes_of(groups, request.figure, score)
    drawn = [
        [(line, mean_curve(line.group, x.quantity, y.quantity, smooth=y.smooth))
         for line in panel.lines]
        for panel in panels
    ]  # fmt: skip
    if not any(len(curve) for curves in drawn for _, curve in curves):
        raise ConfigError(f"command line: --figure {request.figure}: these runs have no such data")
    figure, places = style.figure(len(panels))
    for axes, panel, curves in zip(places, panels, drawn, strict=True):
        for line, curve in curves:
            if len(curve):
                _draw_curve(axes, line, curve, (x.scale, y.scale), request, style)
        axes.set_title(panel.title)
        axes.set_xlim(left=0)
        if request.figure.startswith("accuracy"):
            _set_score_axis(axes, score, request.target)
    style.label_outer(places, x.title, y.title)
    style.add_legend(figure, places[0], _line_handles(panels, style))
    return figure


def _draw_curve(
    axes: Axes,
    line: PlotLine,
    curve: MeanCurve,
    scale: tuple[float, float],
    request: PlotRequest,
    style: PaperStyle,
) -> None:
    x, color = curve.x / scale[0], _color(line, style)
    if len(curve.seeds) > 1 and request.band != "none":
        low, high = _band(curve, request.band)
        axes.fill_between(x, low / scale[1], high / scale[1], color=color, alpha=0.15, linewidth=0)
    every = max(1, len(x) // _MARKED)
    axes.plot(
        x, curve.mean / scale[1], color=color, linestyle=LINES[line.style % len(LINES)],
        marker=MARKERS[line.style % len(MARKERS)], markevery=(line.style % every, every),
    )  # fmt: skip


def _band(curve: MeanCurve, band: str) -> tuple[Floats, Floats]:
    if band == "range":
        return curve.low, curve.high
    rows = np.array([np.interp(curve.x, at, value) for at, value in curve.seeds])
    std = rows.std(axis=0, ddof=1)
    return curve.mean - std, curve.mean + std


def _set_score_axis(axes: Axes, score: Score, target: float | None) -> None:
    if score.is_share:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    if target is not None:
        axes.axhline(target, color="#444444", linewidth=0.6, linestyle=(0, (4, 3)), zorder=1)


def _color(line: PlotLine, style: PaperStyle) -> str:
    colors = style.colors
    return colors[line.color % len(colors)]


def _line_handles(panels: Sequence[PlotPanel], style: PaperStyle) -> list[Artist]:
    """Return one legend entry per label."""
    lines = {line.label: line for panel in panels for line in panel.lines}
    return [
        Line2D(
            [], [], color=_color(line, style), linestyle=LINES[line.style % len(LINES)],
            marker=MARKERS[line.style % len(MARKERS)], label=_plain(label),
        )
        for label, line in lines.items()
    ]  # fmt: skip


def _plain(text: str) -> str:
    """Return a label that matplotlib shows; one with a leading underscore would be hidden."""
    return f" {text}" if text.startswith("_") else text


# Bars -------------------------------------------------------------------------------------------


def _draw_time_to_target(
    panels: Sequence[PlotPanel], request: PlotRequest, style: PaperStyle, score: Score
) -> Figure:
    """Draw the time to the target."""
    groups = groups_of(panels)
    target = choose_target(groups, request.target, score).accuracy
    if target is None:
        raise ConfigError("command line: --figure time-to-target: no target; give one: --target X")
    spreads = [cost_to_target(group, target, lambda r: r.clock_s) for group in groups]
    scale, unit = time_unit(max((max(s.values) for s in spreads if s.values), default=0.0))
    clock = clock_name([run for group in groups for run in group.runs]).capitalize()
    return _draw_bars(
        panels, request, style,
        lambda group: cost_to_target(group, target, lambda r: r.clock_s),
        f"{clock} to {score.aim(target)} ({unit})", scale,
    )  # fmt: skip


def _draw_staleness(
    panels: Sequence[PlotPanel], request: PlotRequest, style: PaperStyle, score: Score
) -> Figure:
    """Draw the mean staleness."""
    return _draw_bars(
        panels, request, style,
        lambda group: over_seeds(s.staleness_mean for s in summarise(group.runs)),
        "Mean staleness (rounds)",
    )  # fmt: skip


def _draw_bars(
    panels: Sequence[PlotPanel],
    request: PlotRequest,
    style: PaperStyle,
    measure: Callable[[Group], SeedSpread],
    title: str,
    scale: float = 1.0,
) -> Figure:
    """Draw one bar per group, the first on top, with a whisker over the seeds."""
    figure, places, labels = _bar_places(panels, style)
    for axes, panel in zip(places, panels, strict=True):
        for line in panel.lines:
            row, spread = labels.index(line.label), measure(line.group)
            if spread.mean is None:
                axes.annotate(" not reached", (0, row), va="center", ha="left")
                continue
            axes.barh(row, spread.mean / scale, 0.62, color=_color(line, style), alpha=0.85)
            low, high = _whisker(spread, request.band)
            if not spread.complete:
                count = f" {len(spread.values)} of {plural(spread.total, 'seed')}"
                axes.annotate(count, (max(spread.mean, high) / scale, row), va="center", ha="left")
            if high > low:
                axes.plot([low / scale, high / scale], [row, row], color="black", linewidth=0.8)
        axes.set_xlim(left=0)
    style.label_outer(places, title, "")
    return figure


def _whisker(spread: SeedSpread, band: str) -> tuple[float, float]:
    mean = spread.mean or 0.0
    if band == "none":
        return mean, mean
    if band == "std":
        return mean - (spread.std or 0.0), mean + (spread.std or 0.0)
    return min(spread.values), max(spread.values)


def _bar_places(
    panels: Sequence[PlotPanel], style: PaperStyle
) -> tuple[Figure, list[Axes], list[str]]:
    """Return axes whose rows are the labels of all panels, in their order."""
    labels = list(dict.fromkeys(line.label for panel in panels for line in panel.lines))
    figure, places = style.figure(len(panels), row_in=0.55 + _ROW_IN * len(labels))
    for axes, panel in zip(places, panels, strict=True):
        axes.set_title(panel.title)
        axes.set_yticks(range(len(labels)), [_plain(label) for label in labels])
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
    return figure, places, labels


def _draw_time_shares(
    panels: Sequence[PlotPanel], request: PlotRequest, style: PaperStyle, score: Score
) -> Figure:
    """Draw what the workers did with their time until the target, or else until the end."""
    target = choose_target(groups_of(panels), request.target, score).accuracy
    figure, places, labels = _bar_places(panels, style)
    for axes, panel in zip(places, panels, strict=True):
        for line in panel.lines:
            shares = mean_shares(line.group.runs, target)
            if shares is not None:
                _draw_parts(axes, labels.index(line.label), shares.parts)
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}"))
    style.label_outer(places, "Share of worker time (%)", "")
    style.add_legend(figure, places[0], share_handles())
    return figure


def _draw_parts(axes: Axes, row: int, parts: Sequence[float]) -> None:
    left = 0.0
    for share, color in zip(parts, TIME_COLORS, strict=True):
        axes.barh(row, share, 0.62, left=left, color=color, edgecolor="white", linewidth=0.3)
        left += share
