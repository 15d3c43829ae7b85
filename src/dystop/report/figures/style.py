"""Colours, line styles, sizes and legends of all figures. No pyplot, no global state."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import PercentFormatter
from numpy.typing import ArrayLike

from dystop.folders.run_folder import RunData
from dystop.report.data.groups import Group
from dystop.report.data.names import run_labels
from dystop.report.data.scores import Score, score_of

INK, MUTED, GRID, PAPER = "#1f2933", "#5f6b76", "#e2e6ea", "#ffffff"
WHITE = "#fffffe"
"""White on a dark field, also in dark mode: pages replace the white of the paper."""
RUNS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3b93c9", "#6b4c9a",
    "#7f7f7f", "#8c2d04", "#4d9221", "#01665e", "#e7298a",
)  # fmt: skip
"""Okabe and Ito's colours, which colour-blind readers can tell apart. The orange is darkened and
a violet replaces the yellow, so that both are visible on white."""

CLASSES = (
    "#332288", "#88ccee", "#44aa99", "#117733", "#999933",
    "#ddcc77", "#cc6677", "#882255", "#aa4499", "#bbbbbb",
)  # fmt: skip
"""Paul Tol's muted scheme, for up to ten classes."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")

RC_PARAMS: dict[Any, Any] = {
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
WIDE_IN, PANEL_IN, PANEL_COLUMNS = 9.9, 2.6, 3
"""Width of a figure with panels, height of one of three panels in a row, and panels in a row."""
DPI = 160
MARKED_POINTS = 40
"""Points of a line that may all have a marker."""

Span = tuple[ArrayLike, ArrayLike]


@contextmanager
def figure_style() -> Iterator[None]:
    """Apply the style of the reports inside the block or function, and restore it afterwards."""
    with matplotlib.rc_context(RC_PARAMS):
        yield


@dataclass(frozen=True)
class LineStyle:
    """Label, colour and marker of a run or a group: the same in every figure."""

    label: str
    color: str
    marker: str
    several: bool = False  # whether other lines are drawn beside it

    @property
    def legend_label(self) -> str:
        """Label that matplotlib takes literally: no math, no leading underscore that hides it."""
        text = self.label.replace("\n", " ").replace("$", r"\$")
        return f" {text}" if text.startswith("_") else text

    def marker_options(self, points: int) -> dict[str, Any]:
        """Return the markers of a line: on every point of a short one, on a dozen of a long one.

        A single long line needs none. Several lines need them to tell equal colours apart.
        """
        if points > MARKED_POINTS and not self.several:
            return {}
        every = 1 if points <= MARKED_POINTS else points // 12
        return {"marker": self.marker, "markevery": every}


@dataclass(frozen=True, kw_only=True)
class StyledRun(LineStyle):
    """A run with its line style."""

    run: RunData


def color_and_marker(index: int) -> tuple[str, str]:
    """Return colour and marker of a line; where colours repeat, the markers differ."""
    return RUNS[index % len(RUNS)], MARKERS[(index + index // len(RUNS)) % len(MARKERS)]


def css_color(index: int) -> str:
    """Return the style-sheet variable with the colour of a line.

    >>> css_color(0), css_color(13)
    ('var(--run0)', 'var(--run1)')
    """
    return f"var(--run{index % len(RUNS)})"


def styled_runs(runs: Sequence[RunData]) -> list[StyledRun]:
    """Give every run its label, colour and marker."""
    return [
        StyledRun(label, *color_and_marker(k), len(runs) > 1, run=run)
        for k, (run, label) in enumerate(zip(runs, run_labels(runs), strict=True))
    ]


def group_style(group: Group, several: bool = False) -> LineStyle:
    """Return label, colour and marker of a group."""
    return LineStyle(group.label, *color_and_marker(group.color_index), several)


@dataclass(frozen=True)
class Plot:
    """A figure with its title, caption and notes. Without a figure, `missing` says why."""

    key: str  # file name
    title: str
    caption: str  # how to read it
    alt: str = ""
    figure: Figure | None = None
    notes: tuple[str, ...] = ()
    missing: str = ""
    wide: bool = False

    def with_figure(self, figure: Figure, alt: str, notes: Sequence[str] = ()) -> "Plot":
        """Return the plot with its figure, the alternative text and the notes."""
        return replace(self, figure=figure, alt=alt, notes=tuple(notes), missing="")


def with_score_of(plots: Sequence[Plot], runs: Sequence[RunData]) -> list[Plot]:
    """Return the plots with the name of the runs' score, where it is not the accuracy."""
    score = score_of(runs)
    return list(plots) if score.is_share else [_with_score(plot, score) for plot in plots]


def _with_score(plot: Plot, score: Score) -> Plot:
    texts = () if plot.figure is None else plot.figure.findobj(Text)
    for text in texts:
        assert isinstance(text, Text)
        text.set_text(score.named(text.get_text()))
    return replace(
        plot,
        title=score.named(plot.title),
        caption=score.named(plot.caption),
        alt=score.named(plot.alt),
        notes=tuple(score.named(note) for note in plot.notes),
        missing=score.named(plot.missing),
    )


def set_score_axis(axis: Axis, score: Score) -> None:
    """Give an axis of scores its ticks: percentages for an accuracy, else plain numbers."""
    if score.is_share:
        axis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))


def legend_handles(styles: Sequence[LineStyle]) -> list[Line2D]:
    """Return one legend line per run or group; none where there is only one."""
    if len(styles) < 2:
        return []
    return [Line2D([], [], color=s.color, marker=s.marker, label=s.legend_label) for s in styles]


def style_handle(label: str, style: Literal["-", "--"] = "-", width: float = 1.7) -> Line2D:
    """Return a legend line that explains a line style, in the colour of the text."""
    return Line2D([], [], color=INK, linestyle=style, linewidth=width, label=label)


def new_figure(handles: Sequence[Artist] = (), height_in: float = HEIGHT_IN) -> tuple[Figure, Axes]:
    """Return a figure with one set of axes, and its legend above them."""
    columns = legend_columns([str(k.get_label()) for k in handles])
    rows = math.ceil(len(handles) / columns)
    figure = Figure(figsize=(WIDTH_IN, height_in + 0.2 * rows), layout="constrained")
    axes = figure.add_subplot()
    if handles:
        figure.legend(handles=list(handles), loc="outside upper left", ncols=columns)
    return figure, axes


def panel_figure(
    handles: Sequence[Artist], panels: int, title: str | None = None
) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes for each panel, all of the same scale, and a legend above them."""
    across = min(panels, PANEL_COLUMNS)
    rows, width = math.ceil(panels / across), WIDTH_IN if panels == 1 else WIDE_IN
    columns = legend_columns([str(k.get_label()) for k in handles], width)
    legend = 0.2 * math.ceil(len(handles) / columns) + 0.2 * bool(title and handles)
    height = rows * (HEIGHT_IN if across < PANEL_COLUMNS else PANEL_IN)
    figure = Figure(figsize=(width, height + legend), layout="constrained")
    axes = figure.subplots(rows, across, sharex=True, sharey=True, squeeze=False).ravel()
    for spare in axes[panels:]:
        spare.remove()
    if handles:
        figure.legend(
            handles=list(handles), loc="outside upper left", ncols=columns, title=title,
            alignment="left",
        )  # fmt: skip
    return figure, list(axes[:panels])


def label_outer(panels: Sequence[Axes], x: str, y: str) -> None:
    """Name the axes once at the left and at the bottom of the panels."""
    across = min(len(panels), PANEL_COLUMNS)
    for k, axes in enumerate(panels):
        if k % across == 0:
            axes.set_ylabel(y)
        if k + across >= len(panels):
            axes.set_xlabel(x)
            axes.tick_params(labelbottom=True)


def freeze_layout(figure: Figure) -> None:
    """Lay a finished figure out once for all file formats.

    Otherwise every save would lay it out again, and the bytes of a file would depend on the
    formats that were saved before.
    """
    engine = figure.get_layout_engine()
    if engine is None:
        return
    FigureCanvasAgg(figure)  # becomes the canvas of the figure: it measures the texts
    before = figure.dpi
    figure.dpi = DPI
    try:
        engine.execute(figure)
    finally:
        figure.dpi = before
    figure.set_layout_engine(None)


def legend_columns(texts: Sequence[str], width_in: float = WIDTH_IN) -> int:
    """Return how many legend columns fit, with a generous width per letter."""
    widest = max((len(t) for t in texts), default=0) * 0.064 + 0.5
    return max(1, min(len(texts), int(width_in / widest)))


def draw_rectangles(axes: Axes, x: Span, y: Span, **options: Any) -> None:
    """Draw rectangles over spans (from, to) of x and y as one artist; the limits stay."""
    left, right, bottom, top = np.broadcast_arrays(*x, *y)
    corners = np.array([(left, bottom), (right, bottom), (right, top), (left, top)])
    axes.add_collection(PolyCollection(list(corners.transpose(2, 0, 1)), **options), autolim=False)


def draw_level(axes: Axes, level: float, text: str) -> None:
    """Draw a thin dashed line at a level, such as a target, with its name in the right margin."""
    axes.axhline(level, color=MUTED, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    axes.annotate(
        text, (1, level), xycoords=("axes fraction", "data"), xytext=(4, 0),
        textcoords="offset points", ha="left", va="center", fontsize=8, color=MUTED,
    )  # fmt: skip
