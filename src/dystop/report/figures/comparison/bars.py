"""Bar charts of a comparison: cost of the target, idle time, distribution of staleness."""

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patches import Patch
from matplotlib.ticker import PercentFormatter

from dystop.report.data.comparison.ranking import NOT_REACHED, cost_to_target
from dystop.report.data.groups import (
    Group,
    SeedSpread,
    in_bytes,
    in_seconds,
    over_seeds,
)
from dystop.report.data.scores import score_of
from dystop.report.data.series import staleness_shares
from dystop.report.data.summary import summarise
from dystop.report.data.time_shares import (
    MEANINGS,
    PARTS,
    mean_shares,
    share_texts,
)
from dystop.report.figures.single_runs.learning import NO_EVALUATION, NO_ROUND
from dystop.report.figures.style import (
    INK,
    MUTED,
    PAPER,
    WHITE,
    Plot,
    draw_rectangles,
    figure_style,
    group_style,
)
from dystop.sparse import Floats
from dystop.units import data_unit, number, plural, time_unit

ROW_HEIGHT_IN = 0.34
TIME_COLORS = ("#1f5f8b", "#8cc5e3", "#f0c26e", "#c9ced3")
"""Computing, transferring, waiting for others, waiting for the round: dark work, pale waits."""
TIME_INKS = (WHITE, "#111111", "#111111", "#111111")
WHISKER_NOTE = "Bar: mean over the seeds; whisker: lowest to highest seed; dots: the seeds."
OWN_ROUNDS_NOTE = (
    "Counted in rounds of each mechanism, which differ in length. The seconds between activations "
    "in the table compare across mechanisms."
)


def _draw_bars(
    axes: Axes, groups: Sequence[Group], spreads: Sequence[SeedSpread], scale: float
) -> None:
    """Draw one bar per group, the first on top, with its seeds."""
    for row, (group, spread) in enumerate(zip(groups, spreads, strict=True)):
        if spread.mean is None:
            continue
        values = np.array(spread.values) / scale
        color = group_style(group).color
        axes.barh(row, spread.mean / scale, 0.62, color=color, alpha=0.55)
        if len(values) > 1:
            axes.plot([values.min(), values.max()], [row, row], color=INK, linewidth=1.1)
            axes.plot(values, np.full(len(values), row), "o", color=INK, markersize=3, mew=0)
    _label_rows(axes, groups)
    axes.set_xlim(left=0)


def _label_rows(axes: Axes, groups: Sequence[Group]) -> None:
    """Label one row per group, the first on top."""
    axes.set_yticks(range(len(groups)), [group_style(g).legend_label for g in groups])
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(False, axis="y")


def _axis_end(spreads: Sequence[SeedSpread], scale: float) -> float:
    """Return the right end of the axis: the longest whisker, and space for the text beside it."""
    return 1.38 * max((max(s.values) for s in spreads if s.values), default=scale) / scale


def _annotate(axes: Axes, row: int, x: float, text: str, color: str = INK) -> None:
    axes.annotate(
        text, (x, row), xytext=(5, 0), textcoords="offset points", va="center", ha="left",
        fontsize=8, color=color,
    )  # fmt: skip


@figure_style()
def target_cost(groups: Sequence[Group], target: float | None) -> Plot:
    """Draw time and data to the target, side by side."""
    name = _aim(groups, target)
    plot = Plot(
        "target-cost",
        f"Cost of reaching {name}",
        "Shorter is better: simulated time on the left, data on the wire on the right, until the "
        "first evaluation at or above the target.",
        missing="No target was given and none was reached." if target is None else NO_EVALUATION,
        wide=True,
    )
    if target is None or not any(g.histories for g in groups):
        return plot
    size = (9.9, 1.0 + ROW_HEIGHT_IN * len(groups))
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(wspace=0.06))
    left, right = figure.subplots(1, 2, sharey=True)
    times = [cost_to_target(g, target, lambda r: r.clock_s) for g in groups]
    sent = [cost_to_target(g, target, lambda r: r.wire_bytes_total) for g in groups]
    scale, unit = time_unit(max((max(s.values) for s in times if s.values), default=0.0))
    _draw_cost(left, groups, times, scale, [in_seconds(s) for s in times])
    left.set_xlabel(f"simulated time to {name} ({unit})")
    scale, unit = data_unit(max((max(s.values) for s in sent if s.values), default=0.0))
    _draw_cost(right, groups, sent, scale, [in_bytes(s) for s in sent])
    right.set_xlabel(f"data on the wire to {name} ({unit})")
    values = [
        f"{g.label}: {in_seconds(t) if t.values else NOT_REACHED}"
        for g, t in zip(groups, times, strict=True)
    ]
    alt = f"Bar chart of the cost of {name}. {'; '.join(values)}."
    return plot.with_figure(figure, alt, _whisker_note(groups))


def _aim(groups: Sequence[Group], target: float | None) -> str:
    score = score_of([run for group in groups for run in group.runs])
    return "the target" if target is None else score.aim(target)


def _draw_cost(
    axes: Axes,
    groups: Sequence[Group],
    spreads: Sequence[SeedSpread],
    scale: float,
    texts: Sequence[str],
) -> None:
    """Draw bars with their values as text; a missing bar says why."""
    _draw_bars(axes, groups, spreads, scale)
    axes.set_xlim(0, _axis_end(spreads, scale))
    for row, (spread, text) in enumerate(zip(spreads, texts, strict=True)):
        if not spread.values:
            _annotate(axes, row, 0.0, "not reached in any seed", MUTED)
            continue
        partial = f"  ({len(spread.values)} of {plural(spread.total, 'seed')})"
        shown = text + ("" if spread.complete else partial)
        _annotate(axes, row, max(spread.values) / scale, shown)


def _whisker_note(groups: Sequence[Group]) -> tuple[str, ...]:
    return (WHISKER_NOTE,) if any(len(g.runs) > 1 for g in groups) else ()


@figure_style()
def time_shares(groups: Sequence[Group], target: float | None) -> Plot:
    """Draw what the workers did with their time: one stacked bar per group, mean over its seeds."""
    until = "the end" if target is None else f"{_aim(groups, target)}, or else until the end"
    plot = Plot(
        "time-shares",
        "Why: what the workers did with their time",
        f"Each bar is the time of all present workers until {until}. Computing: "
        f"{MEANINGS[0]}. Transferring: {MEANINGS[1]}. Waiting for others: {MEANINGS[2]}. Waiting "
        f"for the round: {MEANINGS[3]}.",
        missing=NO_ROUND,
        wide=True,
    )
    drawn = [g for g in groups if g.histories]
    if not drawn:
        return plot
    shares = [mean_shares(g.runs, target) for g in drawn]
    figure = Figure(figsize=(9.9, 1.1 + ROW_HEIGHT_IN * len(drawn)), layout="constrained")
    axes = figure.add_subplot()
    known = [np.zeros(len(PARTS)) if found is None else np.array(found.parts) for found in shares]
    draw_shares(axes, known)
    _label_rows(axes, drawn)
    axes.set_xlabel("share of worker time")
    figure.legend(handles=share_handles(), loc="outside upper left", ncols=len(PARTS))
    values = "; ".join(
        f"{g.label}: "
        + ", ".join(f"{part} {text}" for part, text in zip(PARTS, texts, strict=True))
        for g, texts in zip(drawn, map(share_texts, shares), strict=True)
    )
    return plot.with_figure(figure, f"Stacked bars of worker time. {values}.")


def draw_shares(axes: Axes, shares: Sequence[Floats]) -> None:
    """Draw stacked bars of time shares, with the larger ones in numbers."""
    row, base = np.arange(len(shares)), np.zeros(len(shares))
    for k, color in enumerate(TIME_COLORS):
        width = np.array([share[k] for share in shares])
        options = {"facecolor": color, "edgecolor": PAPER, "linewidth": 0.5}
        draw_rectangles(axes, (base, base + width), (row - 0.31, row + 0.31), **options)
        for at in np.flatnonzero(width >= 0.06):
            axes.annotate(
                f"{100 * width[at]:.0f} %", (base[at] + width[at] / 2, at), ha="center",
                va="center", fontsize=8, color=TIME_INKS[k],
            )  # fmt: skip
        base = base + width
    axes.set_xlim(0, 1)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def share_handles() -> list[Patch]:
    """Return the legend of the parts of worker time."""
    return [Patch(color=color, label=part) for color, part in zip(TIME_COLORS, PARTS, strict=True)]


@figure_style()
def staleness(groups: Sequence[Group]) -> Plot:
    """Draw the distribution of staleness: one stacked bar per group, all seeds together."""
    plot = Plot(
        "staleness-distribution",
        "Distribution of staleness",
        "Each bar shows all worker-rounds of a mechanism, split by staleness: the rounds since a "
        "worker last started training. The larger the light part, the fresher the workers.",
        missing=NO_ROUND,
        wide=True,
    )
    drawn = [g for g in groups if g.histories]
    if not drawn:
        return plot
    shares = [staleness_shares([r for rows in g.histories for r in rows]) for g in drawn]
    bins = _staleness_bins(max(len(share) for share in shares))
    figure = Figure(figsize=(9.9, 1.1 + ROW_HEIGHT_IN * len(drawn)), layout="constrained")
    axes = figure.add_subplot()
    _draw_stacked(axes, shares, bins)
    _label_rows(axes, drawn)
    texts = [_staleness_text(group) for group in drawn]
    for row, text in enumerate(texts):
        _annotate(axes, row, 1.0, text)
    figure.legend(handles=_bin_handles(bins), loc="outside upper left", ncols=len(bins))
    values = "; ".join(f"{g.label}: {text}" for g, text in zip(drawn, texts, strict=True))
    return plot.with_figure(figure, f"Stacked bars of staleness. {values}.", (OWN_ROUNDS_NOTE,))


def _staleness_bins(longest: int) -> list[tuple[int, int]]:
    """Return the first and last staleness of each part of a bar, up to what occurred.

    >>> _staleness_bins(5)
    [(0, 0), (1, 1), (2, 2), (3, 4)]
    """
    starts = [start for start in (0, 1, 2, 3, 5, 10, 20, 50, 100) if start < max(longest, 1)]
    ends = [*(start - 1 for start in starts[1:]), max(longest - 1, 0)]
    return list(zip(starts, ends, strict=True))


def _bin_color(k: int) -> str:
    return to_hex(colormaps["viridis_r"](0.1 + 0.1 * k))


def _draw_stacked(axes: Axes, shares: Sequence[Floats], bins: Sequence[tuple[int, int]]) -> None:
    row, base = np.arange(len(shares)), np.zeros(len(shares))
    for k, (first, last) in enumerate(bins):
        end = base + np.array([share[first : last + 1].sum() for share in shares])
        options = {"facecolor": _bin_color(k), "edgecolor": PAPER, "linewidth": 0.5}
        draw_rectangles(axes, (base, end), (row - 0.31, row + 0.31), **options)
        base = end
    axes.set_xlim(0, 1.22)
    axes.set_xticks(np.linspace(0, 1, 6))
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    axes.set_xlabel("share of worker-rounds")


def _bin_handles(bins: Sequence[tuple[int, int]]) -> list[Patch]:
    names = [f"{a}" if a == b else f"{a} to {b}" for a, b in bins]
    return [Patch(color=_bin_color(k), label=name) for k, name in enumerate(names)]


def _staleness_text(group: Group) -> str:
    summaries = summarise(group.runs)
    mean = over_seeds(s.staleness_mean for s in summaries)
    largest = [s.staleness_max for s in summaries if s.staleness_max is not None]
    return f"mean {number(mean.mean)}, max {number(max(largest, default=None))}"
