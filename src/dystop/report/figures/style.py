"""One look for all figures: colours, sizes, legends. No pyplot, no state that outlives a call."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import ArrayLike

from dystop.experiments.run_folder import RunData
from dystop.report.data.names import labels

INK, MUTED, GRID, PAPER = "#1f2933", "#5f6b76", "#e2e6ea", "#ffffff"
RUNS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#6b4c9a",
    "#7f7f7f", "#8c2d04", "#4d9221", "#01665e", "#e7298a",
)  # fmt: skip
"""Okabe and Ito's colours, which colour-blind readers can tell apart; the orange is darkened and
a violet replaces the yellow, both to be seen on white."""

CLASSES = (
    "#332288", "#88ccee", "#44aa99", "#117733", "#999933",
    "#ddcc77", "#cc6677", "#882255", "#aa4499", "#bbbbbb",
)  # fmt: skip
"""Paul Tol's muted scheme, for up to ten classes."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")

HOUSE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "axes.labelsize": 9.0,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "legend.borderaxespad": 0.1,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.facecolor": "none",
    "figure.facecolor": PAPER,
    "savefig.facecolor": "auto",
    "savefig.bbox": None,
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.0,
    "svg.fonttype": "none",
    "svg.hashsalt": "dystop",
    "pdf.fonttype": 42,
}

WIDTH_IN, HEIGHT_IN = 5.6, 3.2
DPI = 160

Span = tuple[ArrayLike, ArrayLike]

POINTS = 40
"""Points of a line that may all have a marker."""


@contextmanager
def house_style() -> Iterator[None]:
    """The house look inside the block or function, the reader's own settings outside."""
    with matplotlib.rc_context(HOUSE):
        yield


@dataclass(frozen=True)
class Mark:
    """How a run, or a group of runs, is drawn: the same in every figure."""

    label: str
    color: str
    marker: str
    several: bool = False  # whether others are drawn beside it

    @property
    def legend(self) -> str:
        """Label as matplotlib takes it literally: no math, no hidden leading underscore."""
        text = self.label.replace("\n", " ").replace("$", r"\$")
        return f" {text}" if text.startswith("_") else text

    def marks(self, points: int) -> dict[str, Any]:
        """Markers of a line: on every point of a short one, on a dozen of a long one.

        A long line that is alone needs none; beside others they tell equal colours apart.
        """
        if points > POINTS and not self.several:
            return {}
        return {"marker": self.marker, "markevery": 1 if points <= POINTS else points // 12}


@dataclass(frozen=True, kw_only=True)
class Entry(Mark):
    """A run with the way it is drawn."""

    run: RunData


def look(k: int) -> tuple[str, str]:
    """Colour and marker of the k-th line; when the colours begin again the pairing shifts."""
    return RUNS[k % len(RUNS)], MARKERS[(k + k // len(RUNS)) % len(MARKERS)]


def entries(runs: Sequence[RunData]) -> list[Entry]:
    """Give every run its label, colour and marker."""
    return [
        Entry(label, *look(k), len(runs) > 1, run=run)
        for k, (run, label) in enumerate(zip(runs, labels(runs), strict=True))
    ]


@dataclass(frozen=True)
class Plot:
    """A figure with its words. Where there is no figure, `missing` says why."""

    key: str  # file name
    title: str
    caption: str  # one sentence: how to read it
    alt: str = ""
    figure: Figure | None = None
    notes: tuple[str, ...] = ()
    missing: str = ""
    wide: bool = False

    def drawn(self, figure: Figure, alt: str, notes: Sequence[str] = ()) -> "Plot":
        """The same words, now with the figure, what it shows, and what to mind."""
        return replace(self, figure=figure, alt=alt, notes=tuple(notes), missing="")


def legend_keys(drawn: Sequence[Mark]) -> list[Line2D]:
    """One legend line per run or group; none when there is only one."""
    if len(drawn) < 2:
        return []
    return [Line2D([], [], color=e.color, marker=e.marker, label=e.legend) for e in drawn]


def line_key(label: str, style: Literal["-", "--"] = "-", width: float = 1.7) -> Line2D:
    """A legend line that explains a line style, in the colour of the text."""
    return Line2D([], [], color=INK, linestyle=style, linewidth=width, label=label)


def canvas(keys: Sequence[Artist] = (), height_in: float = HEIGHT_IN) -> tuple[Figure, Axes]:
    """A figure with one set of axes, and a legend above it that never covers data."""
    columns = _columns([str(k.get_label()) for k in keys])
    rows = math.ceil(len(keys) / columns)
    figure = Figure(figsize=(WIDTH_IN, height_in + 0.2 * rows), layout="constrained")
    axes = figure.add_subplot()
    if keys:
        figure.legend(handles=list(keys), loc="outside upper left", ncols=columns)
    return figure, axes


def freeze_layout(figure: Figure) -> None:
    """Lay a finished figure out, once for all formats, and keep it so.

    Saving would do it anew for every format, and draw everything twice each time.
    """
    engine = figure.get_layout_engine()
    if engine is None:
        return
    # The canvas stays with the figure: a PNG is drawn on it with texts that are measured already.
    FigureCanvasAgg(figure)
    before = figure.dpi
    figure.dpi = DPI
    try:
        engine.execute(figure)
    finally:
        figure.dpi = before
    figure.set_layout_engine(None)


def _columns(texts: Sequence[str]) -> int:
    """As many legend columns as fit, reckoned with a generous width per letter."""
    widest = max((len(t) for t in texts), default=0) * 0.064 + 0.5
    return max(1, min(len(texts), int(WIDTH_IN / widest)))


def draw_boxes(axes: Axes, x: Span, y: Span, **look: Any) -> None:
    """Rectangles over spans (from, to) of x and of y, as one artist; limits stay as they are."""
    left, right, bottom, top = np.broadcast_arrays(*x, *y)
    corners = np.array([(left, bottom), (right, bottom), (right, top), (left, top)])
    axes.add_collection(PolyCollection(list(corners.transpose(2, 0, 1)), **look), autolim=False)


def mark_level(axes: Axes, level: float, text: str) -> None:
    """A thin line across the axes, a target or a bound, named in the margin clear of the data."""
    axes.axhline(level, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(
        text, (1, level), xycoords=("axes fraction", "data"), xytext=(4, 0),
        textcoords="offset points", ha="left", va="center", fontsize=8, color=MUTED,
    )  # fmt: skip
