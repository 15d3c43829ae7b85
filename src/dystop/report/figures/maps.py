"""Where the workers are and who talks to whom: the links of one round, drawn in metres."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Rectangle

from dystop.experiments.run_folder import RunData
from dystop.record import RoundRecord
from dystop.report.data.arrays import Bools, Floats, Ints, ints
from dystop.report.data.names import workers
from dystop.report.figures.arrows import Arrows
from dystop.report.figures.style import GRID, INK, MUTED, PAPER, RUNS, Entry, Plot, house_style
from dystop.units import number, plural

ACTIVE, LINK = RUNS[1], RUNS[0]
NAMED = 30  # workers with a number in their marker
MOST_CURVES = 200
MOST_LINKS = 2500
MOST_MAPS = 12


@dataclass(frozen=True)
class Scene:
    """What one map shows."""

    at: Floats  # [nodes, 2], metres
    workers: int
    active: Ints
    dst: Ints
    src: Ints
    round: int | None
    area_m: tuple[float, float]
    range_m: float | None


def typical_round(records: Sequence[RoundRecord]) -> RoundRecord | None:
    """The round to show: the median number of links among rounds whose links were kept."""
    kept = [r for r in records if r.link_pairs is not None]
    talking = [r for r in kept if r.link_pairs] or kept
    ranked = sorted(talking, key=lambda r: (len(r.link_pairs or ()), r.round))
    return ranked[len(ranked) // 2] if ranked else None


def scene_of(run: RunData, record: RoundRecord | None) -> Scene | None:
    """Positions, links and active workers of one round; None where no position is known."""
    moved = record.positions if record else None
    at = np.asarray(moved or run.fleet.get("positions") or [], float).reshape(-1, 2)
    if not len(at):
        return None
    pairs = ints(record.link_pairs or [] if record else []).reshape(-1, 2)
    pairs = pairs[(pairs < len(at)).all(axis=1)]
    area = run.fleet.get("area_m") or at.max(axis=0).tolist()
    reach = run.fleet.get("range_m")
    active = ints(record.active_ids or [] if record else [])
    count = min(workers(run) or len(at), len(at))
    return Scene(
        at, count, active[active < count], pairs[:, 0], pairs[:, 1],
        record.round if record else None, (float(area[0]), float(area[1])),
        float(reach) if reach else None,
    )  # fmt: skip


@house_style()
def link_map(all_runs: Sequence[Entry], record: RoundRecord | None = None) -> Plot:
    """Map of the workers with the links of one round, one panel per run.

    Args:
        all_runs: the runs; the first twelve are drawn.
        record: the round to show; by default a typical one of each run.
    """
    plot = Plot(
        "map",
        "Who pulls from whom",
        "A map of the workers in a typical round: each arrow is one model on its way from sender "
        "to receiver, orange workers were active, and the circle is the radio range of one worker.",
        missing="No positions were recorded, so there is no map to draw.",
    )
    chosen = [(e, scene_of(e.run, record or typical_round(e.run.records))) for e in all_runs]
    panels = [(e, scene) for e, scene in chosen if scene is not None][:MOST_MAPS]
    if not panels:
        return plot
    figure, axes = _grid(len(panels))
    for place, (entry, scene) in zip(axes, panels, strict=True):
        draw_scene(place, scene, _panel_title(entry, scene, len(panels) > 1))
    server = any(len(s.at) > s.workers for _, s in panels)
    figure.legend(handles=_keys(server), loc="outside upper left", ncols=5)
    scenes = [scene for _, scene in panels]
    words = replace(plot, wide=len(panels) > 1)
    return words.drawn(figure, _alt(panels), _notes(scenes, len(chosen)))


def _panel_title(entry: Entry, scene: Scene, several: bool) -> str:
    when = f"round {scene.round:,}" if scene.round is not None else "no round recorded"
    what = f"{when}: {len(scene.active):,} active, {plural(len(scene.dst), 'link')}"
    return f"{entry.legend}\n{what}" if several else what


def _grid(panels: int) -> tuple[Figure, list[Axes]]:
    columns = min(3, panels)
    rows = math.ceil(panels / columns)
    size = (5.6, 5.6) if panels == 1 else (3.3 * columns, 3.7 * rows + 0.2)
    figure = Figure(figsize=size, layout="constrained")
    return figure, [figure.add_subplot(rows, columns, k + 1) for k in range(panels)]


def draw_scene(axes: Axes, scene: Scene, title: str) -> None:
    """One map."""
    axes.set_title(title)
    axes.grid(False)
    axes.set_aspect("equal")
    width, height = scene.area_m
    axes.add_patch(Rectangle((0, 0), width, height, fill=False, edgecolor=GRID, linewidth=1.2))
    _draw_range(axes, scene)
    _draw_links(axes, scene)
    _draw_workers(axes, scene)
    pad = 0.04 * max(width, height, 1.0)
    low, high = scene.at.min(axis=0), scene.at.max(axis=0)
    axes.set_xlim(min(0.0, low[0]) - pad, max(width, high[0]) + pad)
    axes.set_ylim(min(0.0, low[1]) - pad, max(height, high[1]) + pad)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("x (m)")
    axes.set_ylabel("y (m)")


def _dot_size(scene: Scene) -> float:
    """Marker area in square points: holds a number for few workers, stays apart for many."""
    if scene.workers <= NAMED:
        return 130.0
    return float(np.clip(4500 / scene.workers, 7.0, 60.0))


def _draw_workers(axes: Axes, scene: Scene) -> None:
    on = _is_active(scene)
    size, here = _dot_size(scene), scene.at[: scene.workers]
    edge = 0.9 if scene.workers <= 300 else 0.5
    x, y = here.T
    axes.scatter(x[~on], y[~on], size, facecolor=PAPER, edgecolor=MUTED, linewidth=edge, zorder=3)
    axes.scatter(x[on], y[on], max(size, 16), color=ACTIVE, linewidth=0, zorder=4)
    x, y = scene.at[scene.workers :].T
    axes.scatter(x, y, size + 60, marker="s", facecolor=INK, edgecolor=PAPER, zorder=5)
    if scene.workers <= NAMED:
        _draw_names(axes, here, on)


def _draw_names(axes: Axes, here: Floats, on: Bools) -> None:
    """Worker numbers inside their markers, where there is room for them."""
    for i, (x, y) in enumerate(here):
        axes.text(
            x, y, str(i), fontsize=6.5, color=PAPER if on[i] else INK, zorder=6, ha="center",
            va="center_baseline",
        )  # fmt: skip


def _is_active(scene: Scene) -> Bools:
    on = np.zeros(scene.workers, bool)
    on[scene.active] = True
    return on


def _draw_links(axes: Axes, scene: Scene) -> None:
    """Arrows from sender to receiver; evenly thinned where there are too many to see."""
    step = max(1, -(-len(scene.dst) // MOST_LINKS))
    tail, head = scene.at[scene.src[::step]], scene.at[scene.dst[::step]]
    if len(tail) > MOST_CURVES:
        _draw_straight(axes, tail, head)
        return
    gap = math.sqrt(_dot_size(scene)) / 2 + 1
    # Slightly bent, so that a pair that exchanges both ways shows two arrows.
    arrows = Arrows(tail, head, gap, LINK, alpha=0.8, zorder=2)
    axes.add_collection(arrows, autolim=False)


def _draw_straight(axes: Axes, tail: Floats, head: Floats) -> None:
    """Many arrows at once, thin and pale."""
    axes.quiver(
        *tail.T, *(head - tail).T, angles="xy", scale_units="xy", scale=1, color=LINK,
        alpha=0.35 if len(tail) < 1000 else 0.2, width=0.0018, headwidth=6, headlength=7,
        headaxislength=6, minlength=0, minshaft=1, zorder=2,
    )  # fmt: skip


def _draw_range(axes: Axes, scene: Scene) -> None:
    """Radio range of the active worker nearest to the middle of the area."""
    if scene.range_m is None:
        return
    pool = scene.active if len(scene.active) else np.arange(scene.workers)
    gap = np.linalg.norm(scene.at[pool] - np.asarray(scene.area_m) / 2, axis=1)
    x, y = scene.at[pool[int(np.argmin(gap))]].tolist()
    axes.add_patch(Circle((x, y), scene.range_m, color=ACTIVE, alpha=0.06, linewidth=0))
    rim: dict[str, Any] = {"edgecolor": ACTIVE, "linewidth": 0.9, "linestyle": (0, (4, 3))}
    axes.add_patch(Circle((x, y), scene.range_m, fill=False, **rim))


def _keys(server: bool) -> list[Line2D]:
    dot: dict[str, Any] = {"linestyle": "none", "marker": "o", "markersize": 6}
    keys = [
        Line2D([], [], color=ACTIVE, label="active", **dot),
        Line2D([], [], markerfacecolor=PAPER, markeredgecolor=MUTED, label="not active", **dot),
        Line2D([], [], color=LINK, label="link", marker=">", markevery=[1], linewidth=1.2),
        Line2D([], [], color=ACTIVE, label="radio range", linestyle=(0, (4, 3)), linewidth=0.9),
    ]
    if server:
        keys.append(Line2D([], [], color=INK, label="server", **{**dot, "marker": "s"}))
    return keys


def _alt(panels: Sequence[tuple[Entry, Scene]]) -> str:
    told = [
        f"{e.label}: {plural(s.workers, 'worker')}, {len(s.active):,} active, "
        f"{plural(len(s.dst), 'link')}"
        for e, s in panels
    ]
    return f"Map of workers and links. {'; '.join(told)}."


def _notes(scenes: Sequence[Scene], runs: int) -> list[str]:
    notes = ["The round shown has the median number of links of all rounds that kept theirs."]
    if not any(len(s.dst) for s in scenes):
        notes = ["No round kept its links, so only the workers are drawn."]
    ranges = {s.range_m for s in scenes if s.range_m is not None}
    notes += [f"Radio range {number(r)} m." for r in sorted(ranges)]
    if any(len(s.dst) > MOST_LINKS for s in scenes):
        notes.append(f"Links are thinned evenly to at most {MOST_LINKS:,}.")
    if runs > len(scenes):
        notes.append(f"{len(scenes)} of {runs} runs are drawn.")
    return notes
