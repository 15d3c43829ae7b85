"""Figures of a comparison that are no lines over time: cost of the target, staleness, idleness."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from dystop.report.data.arrays import Floats
from dystop.report.data.groups import Group, Spread, over_seeds
from dystop.report.data.ranking import in_bytes, in_percent, in_seconds, to_target
from dystop.report.data.summary import summarise
from dystop.report.figures.learning import NO_ROUND, NO_SCORE
from dystop.report.figures.rounds import staleness_shares
from dystop.report.figures.style import INK, MUTED, PAPER, Plot, canvas, draw_boxes, house_style
from dystop.units import data_unit, goal, number, plural, time_unit

ROW_IN = 0.34
WHISKER = "Bar: mean over the seeds; whisker: lowest to highest seed; dots: the seeds."
OWN_ROUNDS = (
    "Counted in rounds of each mechanism, which differ in length; the seconds between turns in the "
    "table compare across mechanisms."
)


def _bars(axes: Axes, every: Sequence[Group], spreads: Sequence[Spread], scale: float) -> None:
    """One bar per group, the first on top, with the seeds it is made of."""
    for row, (group, spread) in enumerate(zip(every, spreads, strict=True)):
        if spread.mean is None:
            continue
        values = np.array(spread.values) / scale
        axes.barh(row, spread.mean / scale, 0.62, color=group.color, alpha=0.55)
        if len(values) > 1:
            axes.plot([values.min(), values.max()], [row, row], color=INK, linewidth=1.1)
            axes.plot(values, np.full(len(values), row), "o", color=INK, markersize=3, mew=0)
    _mechanism_rows(axes, every)
    axes.set_xlim(left=0)


def _mechanism_rows(axes: Axes, every: Sequence[Group]) -> None:
    """A named row per group, the first on top."""
    axes.set_yticks(range(len(every)), [group.legend for group in every])
    axes.set_ylim(len(every) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(False, axis="y")


def _room(spreads: Sequence[Spread], scale: float) -> float:
    """Right end of the axis: the longest whisker, and space for the words beside it."""
    return 1.38 * max((max(s.values) for s in spreads if s.values), default=scale) / scale


def _say(axes: Axes, row: int, at: float, text: str, *, quiet: bool = False) -> None:
    axes.annotate(
        text, (at, row), xytext=(5, 0), textcoords="offset points", va="center", ha="left",
        fontsize=8, color=MUTED if quiet else INK,
    )  # fmt: skip


def _missed(axes: Axes, spreads: Sequence[Spread], scale: float, texts: Sequence[str]) -> None:
    """Values in words; a bar that is not there says why."""
    for row, (spread, text) in enumerate(zip(spreads, texts, strict=True)):
        if not spread.values:
            _say(axes, row, 0.0, "not reached in any seed", quiet=True)
            continue
        some = f"  ({len(spread.values)} of {plural(spread.total, 'seed')})"
        _say(axes, row, max(spread.values) / scale, text + ("" if spread.complete else some))


@house_style()
def target_cost(every: Sequence[Group], target: float | None) -> Plot:
    """Time and bytes to the target, side by side."""
    aim = "the target" if target is None else goal(target)
    plot = Plot(
        "target-cost",
        f"What it takes to reach {aim}",
        "Shorter is better: simulated time on the left, data on the wire on the right, until the "
        "first evaluation at or above the target.",
        missing="No target was given and none was reached." if target is None else NO_SCORE,
        wide=True,
    )
    if target is None or not any(g.histories for g in every):
        return plot
    size = (9.9, 1.0 + ROW_IN * len(every))
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.06))
    left, right = figure.subplots(1, 2, sharey=True)
    times = [to_target(g, target, lambda r: r.clock_s) for g in every]
    sent = [to_target(g, target, lambda r: r.wire_bytes_total) for g in every]
    scale, unit = time_unit(max((max(s.values) for s in times if s.values), default=0.0))
    _panel(left, every, times, scale, [in_seconds(s) for s in times])
    left.set_xlabel(f"simulated time to {aim} ({unit})")
    scale, unit = data_unit(max((max(s.values) for s in sent if s.values), default=0.0))
    _panel(right, every, sent, scale, [in_bytes(s) for s in sent])
    right.set_xlabel(f"data on the wire to {aim} ({unit})")
    told = [
        f"{g.label}: {in_seconds(t) if t.values else 'not reached'}"
        for g, t in zip(every, times, strict=True)
    ]
    return plot.drawn(figure, f"Bar chart of the cost of {aim}. {'; '.join(told)}.", _note(every))


def _panel(
    axes: Axes, every: Sequence[Group], spreads: Sequence[Spread], scale: float, texts: list[str]
) -> None:
    _bars(axes, every, spreads, scale)
    axes.set_xlim(0, _room(spreads, scale))
    _missed(axes, spreads, scale, texts)


def _note(every: Sequence[Group]) -> tuple[str, ...]:
    return (WHISKER,) if any(len(g.runs) > 1 for g in every) else ()


@house_style()
def idle_share(every: Sequence[Group]) -> Plot:
    """Share of worker time that was neither training nor exchanging."""
    plot = Plot(
        "idle-share",
        "Idle time",
        "The share of all worker time that was spent neither training nor exchanging models: "
        "synchronous mechanisms wait for their slowest worker.",
        missing=NO_ROUND,
    )
    if not any(g.histories for g in every):
        return plot
    spreads = [over_seeds(s.idle_share for s in summarise(g.runs)) for g in every]
    figure, axes = canvas(height_in=max(1.8, 0.9 + ROW_IN * len(every)))
    _bars(axes, every, spreads, 1.0)
    for row, spread in enumerate(spreads):
        if spread.values:
            _say(axes, row, max(spread.values), in_percent(spread))
    axes.set_xlim(0, min(1.4, max(0.1, _room(spreads, 1.0))))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel("idle share of worker time")
    told = [f"{g.label}: {in_percent(s)}" for g, s in zip(every, spreads, strict=True)]
    return plot.drawn(figure, f"Bar chart of idle time. {'; '.join(told)}.", _note(every))


@house_style()
def staleness(every: Sequence[Group]) -> Plot:
    """How staleness is distributed: one bar per mechanism, all seeds together."""
    plot = Plot(
        "staleness-distribution",
        "How stale workers were",
        "Each bar is all worker-rounds of a mechanism, split by staleness, the rounds since a "
        "worker last started training: the more of it is light, the fresher the workers.",
        missing=NO_ROUND,
        wide=True,
    )
    drawn = [g for g in every if g.histories]
    if not drawn:
        return plot
    shares = [staleness_shares([r for rows in g.histories for r in rows]) for g in drawn]
    bins = _bins(max(len(share) for share in shares))
    figure = Figure(figsize=(9.9, 1.1 + ROW_IN * len(drawn)), layout="constrained")
    axes = figure.add_subplot()
    _stacked(axes, shares, bins)
    told = [_stale_words(group) for group in drawn]
    _mechanism_rows(axes, drawn)
    for row, words in enumerate(told):
        _say(axes, row, 1.0, words)
    figure.legend(handles=_bin_keys(bins), loc="outside upper left", ncols=len(bins))
    alt = "; ".join(f"{g.label}: {words}" for g, words in zip(drawn, told, strict=True))
    return plot.drawn(figure, f"Stacked bars of staleness. {alt}.", (OWN_ROUNDS,))


def _bins(longest: int) -> list[tuple[int, int]]:
    """First and last staleness of each part of a bar, up to what occurred.

    >>> _bins(5)
    [(0, 0), (1, 1), (2, 2), (3, 4)]
    """
    starts = [start for start in (0, 1, 2, 3, 5, 10, 20, 50, 100) if start < max(longest, 1)]
    ends = [*(start - 1 for start in starts[1:]), max(longest - 1, 0)]
    return list(zip(starts, ends, strict=True))


def _shade(k: int) -> str:
    return to_hex(colormaps["viridis_r"](0.1 + 0.1 * k))


def _stacked(axes: Axes, shares: Sequence[Floats], bins: Sequence[tuple[int, int]]) -> None:
    row, base = np.arange(len(shares)), np.zeros(len(shares))
    for k, (first, last) in enumerate(bins):
        end = base + np.array([share[first : last + 1].sum() for share in shares])
        look = {"facecolor": _shade(k), "edgecolor": PAPER, "linewidth": 0.5}
        draw_boxes(axes, (base, end), (row - 0.31, row + 0.31), **look)
        base = end
    axes.set_xlim(0, 1.22)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel("share of worker-rounds")


def _bin_keys(bins: Sequence[tuple[int, int]]) -> list[Patch]:
    names = [f"{a}" if a == b else f"{a} to {b}" for a, b in bins]
    return [Patch(color=_shade(k), label=name) for k, name in enumerate(names)]


def _stale_words(group: Group) -> str:
    sums = summarise(group.runs)
    mean = over_seeds(s.staleness_mean for s in sums)
    most = max((s.staleness_max for s in sums if s.staleness_max is not None), default=None)
    return f"mean {number(mean.mean)}, max {number(most)}"
