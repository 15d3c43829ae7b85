"""Maps of the workers with the links of one round, in metres."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

from dystop.folders.run_folder import RunData
from dystop.record import RoundRecord
from dystop.report.data.names import worker_count
from dystop.report.figures.style import GRID, INK, MUTED, PAPER, RUNS, Plot, StyledRun, figure_style
from dystop.sparse import Bools, Floats, Ints, ints
from dystop.units import number, plural

ACTIVE, LINK = RUNS[1], RUNS[0]
MAX_NUMBERED = 30  # workers whose markers hold their numbers
MAX_BENT_ARROWS = 200
MAX_LINKS = 2500
MAX_MAPS = 12


@dataclass(frozen=True)
class MapData:
    """Positions, active workers and links of one round."""

    positions: Floats  # [nodes, 2], metres; a server comes after the workers
    workers: int
    active: Ints
    dst: Ints
    src: Ints
    round: int | None
    area_m: tuple[float, float]
    range_m: float | None


def typical_round(records: Sequence[RoundRecord]) -> RoundRecord | None:
    """Return the round in which the median link was made, among rounds whose links were recorded.

    Where rounds of one worker alternate with rounds of many, most links belong to the large ones,
    and a small one would show next to nothing.
    """
    kept = [r for r in records if r.get("link_pairs") is not None]
    ranked = sorted(kept, key=lambda r: (len(r.get("link_pairs") or ()), r.round))
    links = np.cumsum([len(r.get("link_pairs") or ()) for r in ranked])
    if not ranked:
        return None
    return ranked[int(np.searchsorted(links, links[-1] / 2))]


def map_data(run: RunData, record: RoundRecord | None) -> MapData | None:
    """Collect what a map shows of one round; None where no position is known."""
    moved = record.get("positions") if record else None
    positions = np.asarray(moved or run.fleet.get("positions") or [], float).reshape(-1, 2)
    nodes = len(positions)
    if not nodes:
        return None
    pairs = ints(record.get("link_pairs") or [] if record else []).reshape(-1, 2)
    pairs = pairs[(pairs < nodes).all(axis=1)]
    area = run.fleet.get("area_m") or positions.max(axis=0).tolist()
    range_m = run.fleet.get("range_m")
    active = ints(record.get("active_ids") or [] if record else [])
    count = min(worker_count(run) or nodes, nodes)
    return MapData(
        positions, count, active[active < count], pairs[:, 0], pairs[:, 1],
        record.round if record else None, (float(area[0]), float(area[1])),
        float(range_m) if range_m else None,
    )  # fmt: skip


@figure_style()
def link_map(runs: Sequence[StyledRun], record: RoundRecord | None = None) -> Plot:
    """Draw the workers with the links of one round, one panel per run.

    Args:
        runs: The runs; the first `MAX_MAPS` with positions are drawn.
        record: The round to show; by default the typical round of each run.
    """
    plot = Plot(
        "map",
        "Who pulls from whom",
        "A map of the workers in a typical round. Each arrow is one model transfer from sender "
        "to receiver, orange workers were active, and the circle is the radio range of one worker.",
        missing="No positions were recorded, so there is no map to draw.",
    )
    chosen = [(e, map_data(e.run, record or typical_round(e.run.records))) for e in runs]
    panels = [(e, data) for e, data in chosen if data is not None][:MAX_MAPS]
    if not panels:
        return plot
    figure, axes = _grid(len(panels))
    for panel, (styled, data) in zip(axes, panels, strict=True):
        draw_map(panel, data, _panel_title(styled, data, len(panels) > 1))
    server = any(len(s.positions) > s.workers for _, s in panels)
    figure.legend(handles=_handles(server), loc="outside upper left", ncols=5)
    maps = [data for _, data in panels]
    plot = replace(plot, wide=len(panels) > 1)
    return plot.with_figure(figure, _alt(panels), _notes(maps, len(chosen)))


def _panel_title(styled: StyledRun, data: MapData, several: bool) -> str:
    when = f"round {data.round:,}" if data.round is not None else "no round recorded"
    what = f"{when}: {len(data.active):,} active, {plural(len(data.dst), 'link')}"
    return f"{styled.legend_label}\n{what}" if several else what


def _grid(panels: int) -> tuple[Figure, list[Axes]]:
    columns = min(3, panels)
    rows = math.ceil(panels / columns)
    size = (5.6, 5.6) if panels == 1 else (3.3 * columns, 3.7 * rows + 0.2)
    figure = Figure(figsize=size, layout="constrained")
    return figure, [figure.add_subplot(rows, columns, k + 1) for k in range(panels)]


def draw_map(axes: Axes, data: MapData, title: str) -> None:
    """Draw one map."""
    axes.set_title(title)
    axes.grid(False)
    axes.set_aspect("equal")
    width, height = data.area_m
    axes.add_patch(Rectangle((0, 0), width, height, fill=False, edgecolor=GRID, linewidth=1.2))
    _draw_range(axes, data)
    _draw_links(axes, data)
    _draw_workers(axes, data)
    pad = 0.04 * max(width, height, 1.0)
    low, high = data.positions.min(axis=0), data.positions.max(axis=0)
    axes.set_xlim(min(0.0, low[0]) - pad, max(width, high[0]) + pad)
    axes.set_ylim(min(0.0, low[1]) - pad, max(height, high[1]) + pad)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("x (m)")
    axes.set_ylabel("y (m)")


def _marker_size(data: MapData) -> float:
    """Return the marker area in square points: large enough for a number if workers are few."""
    if data.workers <= MAX_NUMBERED:
        return 130.0
    return float(np.clip(4500 / data.workers, 7.0, 60.0))


def _draw_workers(axes: Axes, data: MapData) -> None:
    active = _active_mask(data)
    size, positions = _marker_size(data), data.positions[: data.workers]
    edge = 0.9 if data.workers <= 300 else 0.5
    x, y = positions.T
    axes.scatter(
        x[~active], y[~active], size, facecolor=PAPER, edgecolor=MUTED, linewidth=edge, zorder=3
    )
    axes.scatter(x[active], y[active], max(size, 16), color=ACTIVE, linewidth=0, zorder=4)
    x, y = data.positions[data.workers :].T
    axes.scatter(x, y, size + 60, marker="s", facecolor=INK, edgecolor=PAPER, zorder=5)
    if data.workers <= MAX_NUMBERED:
        _draw_numbers(axes, positions, active)


def _draw_numbers(axes: Axes, positions: Floats, active: Bools) -> None:
    """Write the numbers of the workers into their markers."""
    for i, (x, y) in enumerate(positions):
        axes.text(
            x, y, str(i), fontsize=6.5, color=PAPER if active[i] else INK, zorder=6, ha="center",
            va="center_baseline",
        )  # fmt: skip


def _active_mask(data: MapData) -> Bools:
    active = np.zeros(data.workers, bool)
    active[data.active] = True
    return active


def _draw_links(axes: Axes, data: MapData) -> None:
    """Draw arrows from sender to receiver; of too many links, every k-th."""
    step = max(1, -(-len(data.dst) // MAX_LINKS))
    tail, head = data.positions[data.src[::step]], data.positions[data.dst[::step]]
    if len(tail) > MAX_BENT_ARROWS:
        _draw_straight_arrows(axes, tail, head)
        return
    gap_pt = math.sqrt(_marker_size(data)) / 2 + 1  # keeps the markers visible
    for start, end in zip(tail.tolist(), head.tolist(), strict=True):
        # Slightly bent, so that a pair that exchanges in both directions shows two arrows.
        axes.add_patch(
            FancyArrowPatch(
                start, end, arrowstyle="-|>", mutation_scale=8, connectionstyle="arc3,rad=0.1",
                shrinkA=gap_pt, shrinkB=gap_pt, color=LINK, linewidth=0.9, alpha=0.8, zorder=2,
            )
        )  # fmt: skip


def _draw_straight_arrows(axes: Axes, tail: Floats, head: Floats) -> None:
    """Draw many arrows, thin and pale."""
    axes.quiver(
        *tail.T, *(head - tail).T, angles="xy", scale_units="xy", scale=1, color=LINK,
        alpha=0.35 if len(tail) < 1000 else 0.2, width=0.0018, headwidth=6, headlength=7,
        headaxislength=6, minlength=0, minshaft=1, zorder=2,
    )  # fmt: skip


def _draw_range(axes: Axes, data: MapData) -> None:
    """Draw the radio range of the active worker nearest to the centre of the area."""
    if data.range_m is None:
        return
    candidates = data.active if len(data.active) else np.arange(data.workers)
    distance = np.linalg.norm(data.positions[candidates] - np.asarray(data.area_m) / 2, axis=1)
    x, y = data.positions[candidates[int(np.argmin(distance))]].tolist()
    axes.add_patch(Circle((x, y), data.range_m, color=ACTIVE, alpha=0.06, linewidth=0))
    outline: dict[str, Any] = {"edgecolor": ACTIVE, "linewidth": 0.9, "linestyle": (0, (4, 3))}
    axes.add_patch(Circle((x, y), data.range_m, fill=False, **outline))


def _handles(server: bool) -> list[Line2D]:
    dot: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 6}
    handles = [
        Line2D([], [], color=ACTIVE, label="active", **dot),
        Line2D([], [], markerfacecolor=PAPER, markeredgecolor=MUTED, label="not active", **dot),
        Line2D([], [], color=LINK, label="link", marker=">", markevery=[1], linewidth=1.2),
        Line2D([], [], color=ACTIVE, label="radio range", linestyle=(0, (4, 3)), linewidth=0.9),
    ]
    if server:
        handles.append(Line2D([], [], color=INK, label="server", **{**dot, "marker": "s"}))
    return handles


def _alt(panels: Sequence[tuple[StyledRun, MapData]]) -> str:
    values = [
        f"{e.label}: {plural(s.workers, 'worker')}, {len(s.active):,} active, "
        f"{plural(len(s.dst), 'link')}"
        for e, s in panels
    ]
    return f"Map of workers and links. {'; '.join(values)}."


def _notes(maps: Sequence[MapData], runs: int) -> list[str]:
    notes = ["The round shown is as large as the one in which the median link was made."]
    if not any(len(s.dst) for s in maps):
        notes = ["No links were recorded, so only the workers are drawn."]
    ranges = {s.range_m for s in maps if s.range_m is not None}
    notes += [f"Radio range {number(r)} m." for r in sorted(ranges)]
    if any(len(s.dst) > MAX_LINKS for s in maps):
        notes.append(f"At most {MAX_LINKS:,} links are drawn, evenly chosen.")
    if runs > len(maps):
        notes.append(f"{len(maps)} of {runs} runs are drawn.")
    return notes
