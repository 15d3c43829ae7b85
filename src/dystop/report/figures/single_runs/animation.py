"""A moving picture of a run as one SVG file: workers on the map, models on their way, accuracy.

The picture moves by SMIL, which browsers and code hosts play without a script. All its animations
have the same length, so that they stay together when they repeat.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.sax.saxutils import escape, quoteattr

import numpy as np
from matplotlib.ticker import MaxNLocator

from dystop.errors import RunFolderError
from dystop.folders.run_folder import RunData
from dystop.record import RoundRecord
from dystop.recorders.topology import Topology
from dystop.report.data.names import mechanism_of, worker_count
from dystop.report.data.scores import evaluated_rounds
from dystop.report.figures.style import GRID, INK, MUTED, PAPER, RUNS
from dystop.sparse import Floats, Ints, ints
from dystop.units import number, percent, plural, seconds

STALENESS_COLORS = ("#f3eef9", "#ddd2ee", "#c2b0e0", "#a389cf", "#8160ba", "#613ba2", "#401b80")
"""From just trained to six rounds ago or more."""
ACTIVE, LINK = RUNS[1], RUNS[0]
MAX_LINKS = 3_000  # of the whole picture; each is an element of the file
_MAP, _CHART = (20.0, 40.0, 340.0), (440.0, 60.0, 330.0, 270.0)  # left, top, size or width, height
_MARGIN = 14.0  # of the map, so that workers at the border lie inside
_WIDTH, _HEIGHT = 800.0, 410.0
_FADE = 0.02  # share of the picture in which a link fades away


@dataclass(frozen=True)
class Film:
    """The rounds that are shown, and how they lie on the clock of the picture."""

    run: RunData
    records: Sequence[RoundRecord]
    length_s: float  # of the picture

    @property
    def span_s(self) -> float:
        """Simulated seconds that the picture shows."""
        return self.records[-1].clock_s

    def moment(self, clock_s: float) -> float:
        """Return the place of a simulated time in the picture, from 0 to 1."""
        return min(1.0, clock_s / self.span_s) if self.span_s > 0 else 0.0


def animation(run: RunData, *, rounds: int = 60, length_s: float = 16.0) -> str:
    """Return the first rounds of a run as an animated SVG.

    Args:
        run: A run whose links were recorded (`output.topology=full`).
        rounds: Number of rounds to show.
        length_s: Seconds of the picture until it repeats.

    Raises:
        RunFolderError: The run has no rounds, or its links or positions were not recorded.
    """
    records = [r for r in run.records if r.group(Topology) is not None]
    if not records or not run.fleet.get("positions"):
        raise RunFolderError(
            f"{run.path}: the links of its rounds were not recorded, so there is nothing to "
            "animate; run it with output.topology=full"
        )
    film = Film(run, records[:rounds], length_s)
    return "\n".join(_picture(film))


def _picture(film: Film) -> Iterator[str]:
    shown = plural(len(film.records), "round")
    title = f"{mechanism_of(film.run).title}: {shown} in {seconds(film.span_s)}"
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" '
        f'role="img" aria-label={quoteattr(_description(film))} '
        'font-family="system-ui, sans-serif" font-size="12">'
    )
    yield f'<rect width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" rx="8" fill="{PAPER}"/>'
    yield _text(_MAP[0], 26, title, INK, size=14)
    yield from _map(film)
    yield from _legend()
    yield from _chart(film)
    yield "</svg>"


def _description(film: Film) -> str:
    tested = evaluated_rounds(film.records)
    score = f" Accuracy at the end: {percent(tested[-1].accuracy)}." if tested else ""
    return (
        f"Animated map of {plural(len(_positions(film)), 'worker')}: links light up as models "
        f"move, darker workers are staler.{score}"
    )


def _positions(film: Film) -> Floats:
    """Return the places of the workers in the picture; servers are left out."""
    at = np.asarray(film.run.fleet["positions"], float).reshape(-1, 2)
    at = at[: worker_count(film.run) or len(at)]
    area = np.asarray(film.run.fleet.get("area_m") or at.max(axis=0), float)
    left, top, size = _MAP
    scale = (size - 2 * _MARGIN) / max(*area.tolist(), 1e-9)
    places: Floats = np.array([left, top]) + _MARGIN + at * scale
    return places


def _map(film: Film) -> Iterator[str]:
    left, top, size = _MAP
    yield (
        f'<rect x="{left}" y="{top}" width="{size}" height="{size}" fill="none" stroke="{GRID}" '
        'stroke-width="1.5"/>'
    )
    places = _positions(film)
    yield from _links(film, places)
    radius = float(np.clip(40 / np.sqrt(len(places)), 3.0, 10.0))
    staleness = staleness_by_round(film.records, len(places))
    for worker, (x, y) in enumerate(places):
        active = [worker in (r.get("active_ids") or ()) for r in film.records]
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" stroke-width="2">'
        shades = [STALENESS_COLORS[min(s, 6)] for s in staleness[:, worker].tolist()]
        yield _steps(film, "fill", shades)
        yield _steps(film, "stroke", [ACTIVE if a else MUTED for a in active])
        yield "</circle>"


def staleness_by_round(records: Sequence[RoundRecord], workers: int) -> Ints:
    """Return the staleness of every worker when each round opened: [rounds, workers].

    >>> active = [{"active_ids": [t % 2]} for t in range(3)]
    >>> rows = [RoundRecord(t, *[0.0] * 17, added=added) for t, added in enumerate(active)]
    >>> staleness_by_round(rows, 2).tolist()
    [[0, 0], [0, 1], [1, 0]]
    """
    now, found = np.zeros(workers, int), []
    for record in records:
        found.append(now.copy())
        now += 1
        active = ints(record.get("active_ids") or [])
        now[active[active < workers]] = 0
    return np.array(found)


def _steps(film: Film, attribute: str, values: Sequence[str]) -> str:
    """Animate an attribute that keeps its value during a round."""
    starts = [0.0, *(film.moment(r.clock_s) for r in film.records[:-1])]
    kept = [0, *(k for k in range(1, len(values)) if values[k] != values[k - 1])]
    times = ";".join(f"{starts[k]:.4f}" for k in kept)
    return (
        f'<animate attributeName="{attribute}" dur="{film.length_s:g}s" repeatCount="indefinite" '
        f'calcMode="discrete" keyTimes="{times}" values="{";".join(values[k] for k in kept)}"/>'
    )


def _links(film: Film, places: Floats) -> Iterator[str]:
    """Draw the transfers of a round as lines that light up while it lasts, with moving dots."""
    begin, left = 0.0, MAX_LINKS
    for record in film.records:
        end = film.moment(record.clock_s)
        pairs = ints(record.get("link_pairs") or []).reshape(-1, 2)
        pairs = pairs[(pairs < len(places)).all(axis=1)][:left]
        left -= len(pairs)
        if len(pairs):
            yield from _lit_links(film, places[pairs[:, 1]], places[pairs[:, 0]], (begin, end))
        begin = end


def _lit_links(film: Film, src: Floats, dst: Floats, when: tuple[float, float]) -> Iterator[str]:
    begin, end = when
    out = min(1.0, end + _FADE)
    loop = f'dur="{film.length_s:g}s" repeatCount="indefinite"'
    times = ";".join(f"{t:.4f}" for t in (0.0, begin, begin, end, out, 1.0))
    paths = [
        f"M{x1:.0f} {y1:.0f}L{x2:.0f} {y2:.0f}"
        for (x1, y1), (x2, y2) in zip(src.tolist(), dst.tolist(), strict=True)
    ]
    yield (
        f'<g opacity="0" stroke="{LINK}" fill="{LINK}">'
        f'<animate attributeName="opacity" {loop} keyTimes="{times}" values="0;0;.8;.8;0;0"/>'
        f'<path d="{"".join(paths)}"/>'
    )
    move = f'{loop} keyTimes="0;{begin:.4f};{end:.4f};1" keyPoints="0;0;1;1" calcMode="linear"'
    for path in paths:
        yield f'<circle r="3" stroke="none"><animateMotion {move} path="{path}"/></circle>'
    yield "</g>"


def _legend() -> Iterator[str]:
    y = _MAP[1] + _MAP[2] + 20
    for k, color in enumerate(STALENESS_COLORS):
        yield _dot(_MAP[0] + 8 + 16 * k, y - 4, color, MUTED)
    yield _text(_MAP[0] + 124, y, "fresh to stale", MUTED)
    yield _dot(_MAP[0] + 226, y - 4, PAPER, ACTIVE)
    yield _text(_MAP[0] + 238, y, "active", MUTED)
    yield f'<path d="M{_MAP[0] + 288:.0f} {y - 4:.0f}h22" stroke="{LINK}"/>'
    yield _text(_MAP[0] + 316, y, "model", MUTED)


def _dot(x: float, y: float, fill: str, stroke: str) -> str:
    return f'<circle cx="{x:.0f}" cy="{y:.0f}" r="6" fill="{fill}" stroke="{stroke}"/>'


def _chart(film: Film) -> Iterator[str]:
    """Draw accuracy against time, uncovered from left to right."""
    left, top, width, height = _CHART
    tested = evaluated_rounds(film.records)
    highest = max((r.accuracy or 0.0 for r in tested), default=1.0)
    levels = [float(v) for v in MaxNLocator(5).tick_values(0.0, highest) if v <= 1.0]
    limit = max(levels)
    for level in levels:
        y = top + height * (1 - level / limit)
        yield f'<line x1="{left}" x2="{left + width}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>'
        yield _text(left - 6, y + 4, percent(level, 0), MUTED, anchor="end")
    for share in (0.0, 0.5, 1.0):
        x = left + share * width
        yield _text(x, top + height + 18, number(share * film.span_s), MUTED, anchor="middle")
    yield _text(left + width, top + height + 36, "simulated time (s)", MUTED, anchor="end")
    yield _text(left, top - 12, "mean accuracy of the workers' models", INK)
    points = [
        (left + width * film.moment(r.clock_s), top + height * (1 - (r.accuracy or 0.0) / limit))
        for r in tested
    ]
    loop = f'dur="{film.length_s:g}s" repeatCount="indefinite"'
    yield (
        f'<clipPath id="seen"><rect x="{left - 5}" y="{top - 10}" width="0" height="{height + 20}">'
        f'<animate attributeName="width" {loop} values="5;{width + 10:.0f}"/></rect></clipPath>'
    )
    yield f'<g clip-path="url(#seen)" stroke="{LINK}" stroke-width="2">'
    for (x1, y1), (x2, y2) in pairwise(points):
        yield f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
    for x, y in points:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{LINK}" stroke="none"/>'
    yield "</g>"
    yield (
        f'<line y1="{top}" y2="{top + height}" x1="{left}" x2="{left}" stroke="{ACTIVE}">'
        f'<animate attributeName="x1" {loop} values="{left};{left + width}"/>'
        f'<animate attributeName="x2" {loop} values="{left};{left + width}"/></line>'
    )


def _text(
    x: float, y: float, text: str, color: str, *, size: int = 12, anchor: str = "start"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" font-size="{size}" '
        f'text-anchor="{anchor}">{escape(text)}</text>'
    )
