"""Many bent arrows as one artist: as two hundred patches they would take half a second."""

from typing import Any

import numpy as np
from matplotlib.backend_bases import RendererBase
from matplotlib.collections import PathCollection
from matplotlib.path import Path
from matplotlib.transforms import IdentityTransform

from dystop.report.data.arrays import Floats

BEND = 0.1
WIDTH_PT, HEAD_LENGTH_PT, HEAD_WIDTH_PT = 0.9, 3.2, 1.6
_HALVINGS = 20
_SHAFT = np.array([Path.MOVETO, Path.CURVE3, Path.CURVE3], Path.code_type)
_HEAD = np.array([Path.MOVETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], Path.code_type)


class Arrows(PathCollection):
    """Arrows between points in data coordinates, with heads and gaps of a fixed size on paper."""

    def __init__(self, tail: Floats, head: Floats, gap_pt: float, color: str, **look: Any) -> None:
        """Leave a gap of `gap_pt` at either end; what each arrow points at stays visible."""
        round_ends: dict[str, Any] = {"capstyle": "round", "joinstyle": "round"}
        super().__init__(
            [], facecolor=["none", color], edgecolor=color, linewidth=WIDTH_PT,
            transform=IdentityTransform(), **round_ends, **look,
        )  # fmt: skip
        self._ends, self._gap_pt = (tail, head), gap_pt

    def draw(self, renderer: RendererBase) -> None:
        """Draw shaft and head of one arrow after the other."""
        axes: Any = self.axes
        pixels: Any = renderer.points_to_pixels(1.0)
        start, end = (axes.transData.transform(ends) for ends in self._ends)
        shaft = shortened(bent(start, end), pixels * self._gap_pt)
        size = (pixels * HEAD_LENGTH_PT, pixels * HEAD_WIDTH_PT)
        shaft, head = pointed(shaft, size, pixels * WIDTH_PT)
        pairs = zip(shaft, head, strict=True)
        paths = [(Path(line, _SHAFT), Path(tip, _HEAD)) for line, tip in pairs]
        self.set_paths([path for pair in paths for path in pair])
        super().draw(renderer)


def bent(start: Floats, end: Floats) -> Floats:
    """Control points [n, 3, 2] of curves that pass the straight way on the right."""
    way = end - start
    middle = (start + end) / 2 + BEND * np.stack([way[:, 1], -way[:, 0]], axis=1)
    return np.stack([start, middle, end], axis=1)


def shortened(curve: Floats, gap: float) -> Floats:
    """The curves without what is closer than `gap` to their ends; too short ones stay whole."""
    curve = _after(curve, gap)
    out: Floats = _after(curve[:, ::-1], gap)[:, ::-1]
    return out


def _after(curve: Floats, gap: float) -> Floats:
    """Each curve from where it leaves the circle around its start, found by halving."""
    start, control, end = curve.transpose(1, 0, 2)
    low, high = np.zeros(len(curve)), np.ones(len(curve))
    for _ in range(_HALVINGS):
        t = (low + high) / 2
        inside = np.hypot(*(_at(curve, t) - start).T) < gap
        low, high = np.where(inside, t, low), np.where(inside, high, t)
    cut = np.where(np.hypot(*(end - start).T) > gap, low, 0.0)
    rest = control + cut[:, None] * (end - control)
    return np.stack([_at(curve, cut), rest, end], axis=1)


def _at(curve: Floats, t: Floats) -> Floats:
    """Point of each quadratic Bezier curve at its own parameter."""
    s = t[:, None]
    out: Floats = (1 - s) ** 2 * curve[:, 0] + 2 * s * (1 - s) * curve[:, 1] + s**2 * curve[:, 2]
    return out


def pointed(shaft: Floats, size: tuple[float, float], width: float) -> tuple[Floats, Floats]:
    """Shafts drawn back by what a line of this width would overshoot, and their heads [n, 4, 2]."""
    length, half = size
    back = shaft[:, 1] - shaft[:, 2]
    back = back / np.maximum(np.hypot(*back.T), 1e-9)[:, None]
    tip = shaft[:, 2] + back * (0.5 * width * np.hypot(length, half) / half)
    across = half * np.stack([back[:, 1], -back[:, 0]], axis=1)
    heel = tip + length * back
    return (
        np.stack([shaft[:, 0], shaft[:, 1], tip], axis=1),
        np.stack([heel + across, tip, heel - across, tip], axis=1),
    )
