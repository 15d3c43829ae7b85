"""Figures with the round on the horizontal axis: staleness, activity, duration, alive workers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dystop.record import RoundRecord
from dystop.report.data.arrays import Floats
from dystop.report.data.names import staleness_bound, workers
from dystop.report.data.series import Pick, Series, group_note, series
from dystop.report.figures.learning import NO_ROUND, draw_line, ending
from dystop.report.figures.style import (
    INK,
    Entry,
    Plot,
    canvas,
    house_style,
    legend_keys,
    line_key,
    mark_level,
)
from dystop.units import number, percent

CALM = 60
"""Points beyond which a round-by-round line is smoothed."""

CALM_NOTE = "Dots are the points; the line is their moving mean over a tenth of the run."
BOUND_NOTE = "The bound holds for the long-run mean; single workers may exceed it."


def _round(record: RoundRecord) -> float:
    return record.round


def _whole_rounds(axes: Axes) -> None:
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(_whole())


def _whole() -> MaxNLocator:
    """Ticks on whole numbers a reader counts in."""
    return MaxNLocator(integer=True, steps=[1, 2, 5, 10])


def _lines(
    plot: Plot, all_runs: Sequence[Entry], y: Pick, title: str, *, from_zero: bool = True
) -> Plot:
    """One line per run over the rounds; shared by the simple figures."""
    drawn = [e for e in all_runs if e.run.records]
    if not drawn:
        return plot
    figure, axes = canvas(legend_keys(drawn))
    lines = [series(e.run.records, _round, y) for e in drawn]
    for entry, points in zip(drawn, lines, strict=True):
        _draw_calm(axes, entry, points)
    _whole_rounds(axes)
    axes.set_ylabel(title)
    if _spans_decades(lines):
        axes.set_yscale("log")
    elif title.endswith("workers"):
        axes.yaxis.set_major_locator(_whole())
    if from_zero and axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    smoothed = any(len(s) > CALM for s in lines)
    notes = (*group_note(lines), *((CALM_NOTE,) if smoothed else ()))
    told = [f"{e.label}: {_span(s)}" for e, s in zip(drawn, lines, strict=True)]
    return plot.drawn(figure, f"Line chart of {title} by round. {'; '.join(told)}.", notes)


def _span(points: Series) -> str:
    mean, low, high = points.mean.mean(), points.low.min(), points.high.max()
    return f"mean {number(float(mean))}, {number(float(low))} to {number(float(high))}"


def _draw_calm(axes: Axes, entry: Entry, points: Series) -> None:
    """A line; where it would be a thicket, dots and their moving mean."""
    if len(points) <= CALM:
        draw_line(axes, entry, points, (1.0, 1.0))
        return
    smooth = replace(points, mean=moving_mean(points.mean, len(points) // 20))
    axes.plot(points.x, points.mean, ".", color=entry.color, alpha=0.35, markersize=5, mew=0)
    draw_line(axes, entry, smooth, (1.0, 1.0))


def moving_mean(values: Floats, reach: int) -> Floats:
    """Mean over each value and up to `reach` neighbours on either side, fewer at the ends.

    >>> moving_mean(np.array([0.0, 3.0, 6.0]), 1).tolist()
    [1.5, 3.0, 4.5]
    """
    total = np.concatenate([[0.0], np.cumsum(values)])
    place = np.arange(len(values))
    low, high = np.maximum(place - reach, 0), np.minimum(place + reach + 1, len(values))
    out: Floats = (total[high] - total[low]) / (high - low)
    return out


def _spans_decades(lines: Sequence[Series]) -> bool:
    """Whether a linear axis would flatten the smaller runs against zero."""
    means = [float(np.mean(s.mean)) for s in lines]
    return min(s.low.min() for s in lines) > 0 and max(means) > 30 * min(means)


@house_style()
def active_workers(all_runs: Sequence[Entry]) -> Plot:
    """Workers that every round activates."""
    plot = Plot(
        "active-workers",
        "Active workers per round",
        "The number of workers that a round lets mix and start a new local training; a "
        "synchronous mechanism activates all of them.",
        missing=NO_ROUND,
    )
    return _lines(plot, all_runs, lambda r: r.active, "active workers")


@house_style()
def round_duration(all_runs: Sequence[Entry]) -> Plot:
    """Simulated seconds that every round takes."""
    plot = Plot(
        "round-duration",
        "Duration of a round",
        "Seconds from the opening to the close of each round; spikes are slow links or "
        "slow workers that a round waited for.",
        missing=NO_ROUND,
    )
    return _lines(plot, all_runs, lambda r: r.duration_s, "round duration (s)")


@house_style()
def alive_workers(all_runs: Sequence[Entry]) -> Plot | None:
    """Workers that are up, drawn only where some ever were not."""
    if all(r.alive == workers(e.run) for e in all_runs for r in e.run.records):
        return None
    plot = Plot(
        "alive-workers",
        "Alive workers",
        "Workers that were up when a round opened; the line falls where workers leave and rises "
        "where they return (the axis does not start at zero).",
    )
    return _lines(plot, all_runs, lambda r: r.alive, "alive workers", from_zero=False)


@house_style()
def staleness_rounds(all_runs: Sequence[Entry]) -> Plot:
    """Mean and largest staleness of every round."""
    plot = Plot(
        "staleness-rounds",
        "Staleness by round",
        "Rounds since a worker last started training: the thick line is the mean over the workers, "
        "the thin line the most stale worker.",
        missing=NO_ROUND,
    )
    drawn = [e for e in all_runs if e.run.records]
    if not drawn:
        return plot
    keys = [*legend_keys(drawn), line_key("mean"), line_key("largest", width=0.7)]
    figure, axes = canvas(keys)
    for entry in drawn:
        mean = series(entry.run.records, _round, lambda r: r.staleness_mean)
        most = series(entry.run.records, _round, lambda r: r.staleness_max)
        marks = entry.marks(len(mean))
        axes.plot(mean.x, mean.mean, color=entry.color, zorder=3, **marks)
        axes.plot(most.x, most.high, color=entry.color, lw=0.7, alpha=0.8, ms=2.5, **marks)
    bounds = _bounds(drawn)
    for bound, _ in bounds:
        mark_level(axes, bound, f"bound {number(bound)}")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("staleness (rounds)")
    _whole_rounds(axes)
    alt = ending(drawn, lambda r: f"mean {number(r.staleness_mean)}, largest {r.staleness_max}")
    notes = (BOUND_NOTE,) if bounds else ()
    return plot.drawn(figure, f"Line chart of staleness by round. Last round: {alt}.", notes)


def _bounds(drawn: Sequence[Entry]) -> list[tuple[float, str]]:
    """The distinct staleness bounds, each with the colour of its run, or the ink when shared."""
    found: dict[float, list[str]] = {}
    for entry in drawn:
        bound = staleness_bound(entry.run)
        if bound is not None:
            found.setdefault(bound, []).append(entry.color)
    alone = len(found) == 1
    return [(b, INK if alone or len(c) > 1 else c[0]) for b, c in sorted(found.items())]


def staleness_shares(records: Sequence[RoundRecord]) -> Floats:
    """Share of all (worker, round) pairs at staleness 0, 1, 2, ...; empty if none was counted."""
    total = np.zeros(max((len(r.staleness_histogram) for r in records), default=0))
    for record in records:
        total[: len(record.staleness_histogram)] += record.staleness_histogram
    out: Floats = np.trim_zeros(total, "b")
    return out / out.sum() if out.sum() else np.zeros(0)


@house_style()
def staleness_histogram(all_runs: Sequence[Entry]) -> Plot:
    """How often each staleness occurred, over all workers and rounds."""
    plot = Plot(
        "staleness-histogram",
        "How stale workers were",
        "The share of all worker-rounds at each staleness, over the whole run: weight on the left "
        "means fresh models, a long tail means forgotten workers.",
        missing=NO_ROUND,
    )
    pairs = [(e, staleness_shares(e.run.records)) for e in all_runs]
    pairs = [(e, shares) for e, shares in pairs if len(shares)]
    if not pairs:
        return plot
    drawn = [e for e, _ in pairs]
    figure, axes = canvas(legend_keys(drawn))
    for entry, shares in pairs:
        _stairs(axes, entry, shares, alone=len(drawn) == 1)
    for bound, color in _bounds(drawn):
        _mark_bound(axes, bound, color)
    _histogram_axes(axes, max(len(shares) for _, shares in pairs))
    notes = (BOUND_NOTE,) if _bounds(drawn) else ()
    told = [f"{e.label}: {percent(float(s[0]))} at 0, up to {len(s) - 1}" for e, s in pairs]
    return plot.drawn(figure, f"Histogram of staleness. {'; '.join(told)}.", notes)


def _stairs(axes: Axes, entry: Entry, shares: Floats, alone: bool) -> None:
    """Bars for one run, outlines for several."""
    if alone and len(shares) <= 60:
        axes.bar(np.arange(len(shares)), shares, 0.9, color=entry.color, alpha=0.55)
        return
    edges = np.arange(len(shares) + 1) - 0.5
    axes.stairs(shares, edges, fill=True, color=entry.color, alpha=0.12)
    axes.stairs(shares, edges, color=entry.color, linewidth=1.5)


def _mark_bound(axes: Axes, bound: float, color: str) -> None:
    axes.axvline(bound, color=color, linewidth=1.1, linestyle=(0, (4, 3)))
    axes.annotate(
        f"bound {number(bound)}", (bound, 1), xycoords=("data", "axes fraction"), xytext=(4, -2),
        textcoords="offset points", ha="left", va="top", fontsize=8, color=color,
    )  # fmt: skip


def _histogram_axes(axes: Axes, longest: int) -> None:
    if longest > 60:
        axes.set_xscale("symlog", linthresh=10)
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.xaxis.set_major_locator(_whole())
    axes.set_xlim(left=-0.6)
    axes.grid(False, axis="x")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel("staleness (rounds since the worker last started training)")
    axes.set_ylabel("share of worker-rounds")
