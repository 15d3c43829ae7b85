"""The label distribution of the workers: stacked bars, or a heat map for many workers."""

from collections.abc import Sequence
from dataclasses import replace

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from dystop.report.figures.style import (
    CLASSES,
    PAPER,
    Plot,
    StyledRun,
    draw_rectangles,
    figure_style,
)
from dystop.sparse import Floats, Ints, ints

MAX_BARS = 40
MAX_SPLITS = 4


def data_splits(runs: Sequence[StyledRun]) -> list[tuple[str, Ints, list[str]]]:
    """Return the distinct data splits: labels of the runs, label counts, class names."""
    found: dict[str, tuple[list[str], Ints, list[str]]] = {}
    for styled in runs:
        counts = ints(styled.run.fleet.get("label_counts") or [])
        if counts.ndim != 2 or not counts.size:
            continue
        names = styled.run.fleet.get("class_names") or range(counts.shape[1])
        key = str(counts.tolist())
        found.setdefault(key, ([], counts, [str(n) for n in names]))[0].append(styled.legend_label)
    return [(", ".join(who), counts, names) for who, counts, names in found.values()]


@figure_style()
def label_distribution(runs: Sequence[StyledRun]) -> Plot:
    """Draw how the classes are distributed over the workers."""
    plot = Plot(
        "label-distribution",
        "Label distribution of the workers",
        "",
        missing="The label counts of the workers were not recorded.",
    )
    found = data_splits(runs)
    shown = found[:MAX_SPLITS]
    if not shown:
        return replace(
            plot, caption="How the classes of the data are distributed over the workers."
        )
    bars = all(_fits_bars(counts) for _, counts, _ in shown)
    several = len(runs) > 1
    size = (9.9, 3.3 * len(shown)) if several else (5.6, 4.6)
    figure = Figure(figsize=size, layout="constrained")
    for k, (who, counts, names) in enumerate(shown):
        axes = figure.add_subplot(len(shown), 1, k + 1)
        draw = draw_bars if bars else draw_heat_map
        draw(figure, axes, counts, names)
        if len(shown) > 1:
            axes.set_title(who)
    counts = shown[0][1]
    alt = f"Label distribution of {counts.shape[0]} workers over {counts.shape[1]} classes."
    notes = [f"The first {MAX_SPLITS} of {len(found)} data splits are drawn."]
    caption = _BARS if bars else _HEAT
    return replace(plot, caption=caption, wide=several).with_figure(
        figure, alt, notes if len(found) > MAX_SPLITS else ()
    )


_BARS = (
    "Each bar is one worker's training data, coloured by class. Bars of different mixture mean a "
    "non-IID split, bars of different height mean unequal amounts of data."
)
_HEAT = (
    "Each column is a worker and each row a class; brighter means more of the worker's data is "
    "of that class. Workers are sorted by their most frequent class, so that a non-IID split "
    "shows as a staircase."
)


def _fits_bars(counts: Ints) -> bool:
    workers, classes = counts.shape
    return bool(workers <= MAX_BARS and classes <= len(CLASSES))


def draw_bars(figure: Figure, axes: Axes, counts: Ints, names: Sequence[str]) -> None:
    """Draw stacked bars: samples of every class, worker by worker."""
    place, top = np.arange(len(counts)), np.cumsum(counts, axis=1).T
    sides = (place - 0.43, place + 0.43)
    for k, base in enumerate(top - counts.T):
        options = {"facecolor": CLASSES[k], "edgecolor": PAPER, "linewidth": 0.3}
        draw_rectangles(axes, sides, (base, top[k]), **options)
    axes.grid(False, axis="x")
    axes.set_ylim(0, 1.05 * max(top.max(), 1))
    axes.set_xlim(-0.7, max(len(counts) - 0.3, 0.7))
    axes.set_xticks(place[:: max(1, -(-len(counts) // 20))])
    axes.set_xlabel("worker")
    axes.set_ylabel("training samples")
    handles = [Patch(color=CLASSES[k], label=_legend_text(n)) for k, n in enumerate(names)]
    axes.legend(
        handles=handles[::-1], loc="center left", bbox_to_anchor=(1.01, 0.5), handlelength=0.9
    )


def _legend_text(text: str) -> str:
    return text.replace("$", r"\$").removeprefix("_")


def draw_heat_map(figure: Figure, axes: Axes, counts: Ints, names: Sequence[str]) -> None:
    """Draw a heat map: the share of every class in a worker's data."""
    share = sorted_shares(counts)
    cells = axes.imshow(
        share.T, aspect="auto", cmap=matplotlib.colormaps["viridis"], vmin=0, vmax=1,
        interpolation="nearest", origin="lower",
    )  # fmt: skip
    axes.grid(False)
    if len(names) <= 20:
        axes.set_yticks(range(len(names)), [_legend_text(n) for n in names])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.set_xlabel("worker, sorted by most frequent class")
    axes.set_ylabel("class")
    bar = figure.colorbar(cells, ax=axes, format=lambda v, _: f"{100 * v:.0f} %", pad=0.02)
    bar.set_label("share of the worker's data")
    bar.outline.set_visible(False)


def sorted_shares(counts: Ints) -> Floats:
    """Return rows as shares, sorted by most frequent class and then by its share."""
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    order = np.lexsort((-share.max(axis=1), share.argmax(axis=1)))
    out: Floats = share[order]
    return out
