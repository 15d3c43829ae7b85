"""Charts of single runs by round: staleness, active and alive workers, round duration."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dystop.record import RoundRecord
from dystop.report.data.names import staleness_bound, worker_count
from dystop.report.data.series import (
    SMOOTHED_FROM,
    Quantity,
    Series,
    grouping_note,
    moving_mean,
    series,
    staleness_shares,
)
from dystop.report.figures.single_runs.learning import NO_ROUND, draw_line, last_values
from dystop.report.figures.style import (
    INK,
    Plot,
    StyledRun,
    draw_level,
    figure_style,
    legend_handles,
    new_figure,
    style_handle,
)
from dystop.sparse import Floats
from dystop.units import number, percent

SMOOTHED_NOTE = "Dots are the points; the line is their moving mean over a tenth of the run."
BOUND_NOTE = "The bound holds for the long-run mean; single workers may exceed it."


def _round(record: RoundRecord) -> float:
    return record.round


def _set_round_axis(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(_integer_ticks())


def _integer_ticks() -> MaxNLocator:
    """Return ticks on round integers."""
    return MaxNLocator(integer=True, steps=[1, 2, 5, 10])


def _draw_by_round(
    plot: Plot, runs: Sequence[StyledRun], y: Quantity, title: str, *, from_zero: bool = True
) -> Plot:
    """Draw one line per run against the round; without any, return the plot without a figure."""
    drawn = [e for e in runs if e.run.records]
    if not drawn:
        return plot
    figure, axes = new_figure(legend_handles(drawn))
    lines = [series(e.run.records, _round, y) for e in drawn]
    for styled, points in zip(drawn, lines, strict=True):
        _draw_smoothed(axes, styled, points)
    _set_round_axis(axes)
    axes.set_ylabel(title)
    if _spans_decades(lines):
        axes.set_yscale("log")
    elif title.endswith("workers"):
        axes.yaxis.set_major_locator(_integer_ticks())
    if from_zero and axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    smoothed = any(len(s) > SMOOTHED_FROM for s in lines)
    notes = (*grouping_note(lines), *((SMOOTHED_NOTE,) if smoothed else ()))
    values = [f"{e.label}: {_range_text(s)}" for e, s in zip(drawn, lines, strict=True)]
    return plot.with_figure(figure, f"Line chart of {title} by round. {'; '.join(values)}.", notes)


def _range_text(points: Series) -> str:
    mean, low, high = points.mean.mean(), points.low.min(), points.high.max()
    return f"mean {number(float(mean))}, {number(float(low))} to {number(float(high))}"


def _draw_smoothed(axes: Axes, styled: StyledRun, points: Series) -> None:
    """Draw a line; with many points, draw dots and their moving mean."""
    if len(points) <= SMOOTHED_FROM:
        draw_line(axes, styled, points, (1.0, 1.0))
        return
    smooth = replace(points, mean=moving_mean(points.mean, len(points) // 20))
    axes.plot(points.x, points.mean, ".", color=styled.color, alpha=0.35, markersize=5, mew=0)
    draw_line(axes, styled, smooth, (1.0, 1.0))


def _spans_decades(lines: Sequence[Series]) -> bool:
    """Return whether a linear axis would flatten the smaller runs against zero."""
    means = [float(np.mean(s.mean)) for s in lines]
    return min(s.low.min() for s in lines) > 0 and max(means) > 30 * min(means)


@figure_style()
def active_workers(runs: Sequence[StyledRun]) -> Plot:
    """Draw the number of workers that each round activates."""
    plot = Plot(
        "active-workers",
        "Active workers per round",
        "The number of workers that mix and start a new local training in a round. A "
        "synchronous mechanism activates all of them.",
        missing=NO_ROUND,
    )
    return _draw_by_round(plot, runs, lambda r: r.active, "active workers")


@figure_style()
def round_duration(runs: Sequence[StyledRun]) -> Plot:
    """Draw the duration of each round."""
    plot = Plot(
        "round-duration",
        "Round duration",
        "Seconds from the opening to the close of each round. Spikes are slow links or "
        "slow workers that a round waited for.",
        missing=NO_ROUND,
    )
    return _draw_by_round(plot, runs, lambda r: r.duration_s, "round duration (s)")


@figure_style()
def alive_workers(runs: Sequence[StyledRun]) -> Plot | None:
    """Draw the number of alive workers; None where all workers were always alive."""
    if all(r.alive == worker_count(e.run) for e in runs for r in e.run.records):
        return None
    plot = Plot(
        "alive-workers",
        "Alive workers",
        "Workers that were alive when a round opened. The line falls when workers leave and rises "
        "when they return (the axis does not start at zero).",
    )
    return _draw_by_round(plot, runs, lambda r: r.alive, "alive workers", from_zero=False)


@figure_style()
def staleness_rounds(runs: Sequence[StyledRun]) -> Plot:
    """Draw the mean and the largest staleness of each round."""
    plot = Plot(
        "staleness-rounds",
        "Staleness by round",
        "Rounds since a worker last started training. Thick line: mean over the workers; "
        "thin line: the stalest worker.",
        missing=NO_ROUND,
    )
    drawn = [e for e in runs if e.run.records]
    if not drawn:
        return plot
    keys = [*legend_handles(drawn), style_handle("mean"), style_handle("largest", width=0.7)]
    figure, axes = new_figure(keys)
    for styled in drawn:
        mean = series(styled.run.records, _round, lambda r: r.staleness_mean)
        largest = series(styled.run.records, _round, lambda r: r.staleness_max)
        markers = styled.marker_options(len(mean))
        axes.plot(mean.x, mean.mean, color=styled.color, zorder=3, **markers)
        axes.plot(largest.x, largest.high, color=styled.color, lw=0.7, alpha=0.8, ms=2.5, **markers)
    bounds = _bounds(drawn)
    for bound, _ in bounds:
        draw_level(axes, bound, f"bound {number(bound)}")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("staleness (rounds)")
    _set_round_axis(axes)
    alt = last_values(
        drawn, lambda r: f"mean {number(r.staleness_mean)}, largest {r.staleness_max}"
    )
    notes = (BOUND_NOTE,) if bounds else ()
    return plot.with_figure(figure, f"Line chart of staleness by round. Last round: {alt}.", notes)


def _bounds(drawn: Sequence[StyledRun]) -> list[tuple[float, str]]:
    """Return the distinct staleness bounds, with the colour of the run, or of text if shared."""
    found: dict[float, list[str]] = {}
    for styled in drawn:
        bound = staleness_bound(styled.run)
        if bound is not None:
            found.setdefault(bound, []).append(styled.color)
    alone = len(found) == 1
    return [(b, INK if alone or len(c) > 1 else c[0]) for b, c in sorted(found.items())]


@figure_style()
def staleness_histogram(runs: Sequence[StyledRun]) -> Plot:
    """Draw the share of each staleness over all workers and rounds."""
    plot = Plot(
        "staleness-histogram",
        "Distribution of staleness",
        "The share of all worker-rounds at each staleness, over the whole run. Weight on the left "
        "means fresh models, a long tail means neglected workers.",
        missing=NO_ROUND,
    )
    pairs = [(e, staleness_shares(e.run.records)) for e in runs]
    pairs = [(e, shares) for e, shares in pairs if len(shares)]
    if not pairs:
        return plot
    drawn = [e for e, _ in pairs]
    figure, axes = new_figure(legend_handles(drawn))
    for styled, shares in pairs:
        _draw_histogram(axes, styled, shares, alone=len(drawn) == 1)
    for bound, color in _bounds(drawn):
        _draw_bound(axes, bound, color)
    _set_histogram_axes(axes, max(len(shares) for _, shares in pairs))
    notes = (BOUND_NOTE,) if _bounds(drawn) else ()
    values = [f"{e.label}: {percent(float(s[0]))} at 0, up to {len(s) - 1}" for e, s in pairs]
    return plot.with_figure(figure, f"Histogram of staleness. {'; '.join(values)}.", notes)


def _draw_histogram(axes: Axes, styled: StyledRun, shares: Floats, alone: bool) -> None:
    """Draw bars for one run, outlines for several."""
    if alone and len(shares) <= 60:
        axes.bar(np.arange(len(shares)), shares, 0.9, color=styled.color, alpha=0.55)
        return
    edges = np.arange(len(shares) + 1) - 0.5
    axes.stairs(shares, edges, fill=True, color=styled.color, alpha=0.12)
    axes.stairs(shares, edges, color=styled.color, linewidth=1.5)


def _draw_bound(axes: Axes, bound: float, color: str) -> None:
    axes.axvline(bound, color=color, linewidth=1.1, linestyle=(0, (4, 3)))
    axes.annotate(
        f"bound {number(bound)}", (bound, 1), xycoords=("data", "axes fraction"), xytext=(4, -2),
        textcoords="offset points", ha="left", va="top", fontsize=8, color=color,
    )  # fmt: skip


def _set_histogram_axes(axes: Axes, longest: int) -> None:
    if longest > 60:
        axes.set_xscale("symlog", linthresh=10)
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.xaxis.set_major_locator(_integer_ticks())
    axes.set_xlim(left=-0.6)
    axes.grid(False, axis="x")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel("staleness (rounds since the worker last started training)")
    axes.set_ylabel("share of worker-rounds")
