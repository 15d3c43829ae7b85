"""The looks of a figure for a paper: sizes, fonts, colours, line styles, legend and file formats.

The defaults suit a two-column paper: 8 pt, fonts embedded as TrueType (type 42), colours that
colour-blind readers can tell apart, and a line style for each line.
"""

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import matplotlib
import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pgf import LatexManager
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from dystop.errors import ConfigError, nearest
from dystop.report.figures.style import RUNS, freeze_layout

COLUMN_IN, PAGE_IN = 3.5, 7.16
"""Width of a column and of a page of two columns (IEEE)."""
CM_PER_INCH = 2.54
FORMATS = ("pdf", "svg", "pgf", "png")
LEGENDS = ("top", "right", "inside", "none")
LINES: tuple[Any, ...] = (
    "-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 2.5)), (0, (8, 2)), (0, (3, 1, 1, 1)),
)  # fmt: skip
MARKERS = "osD^vPX*"
_RATIO = 0.66  # height of a panel by its width
_TALLEST_IN = 2.6  # a panel by default
_PNG_DPI = 300

_RC: dict[Any, Any] = {
    "font.family": "serif",
    "font.serif": ["STIXGeneral", "DejaVu Serif"],
    "mathtext.fontset": "stix",
    "axes.titlelocation": "center",
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.4,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.0,
    "xtick.direction": "in",
    "ytick.direction": "in",
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.2,
    "legend.borderaxespad": 0.2,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "dystop",
    "pgf.rcfonts": False,
    "savefig.bbox": None,
    "figure.autolayout": False,
}


@dataclass(frozen=True, kw_only=True)
class PaperStyle:
    """Size, fonts and legend of a figure."""

    width_in: float = COLUMN_IN
    height_in: float | None = None  # None: from the width
    columns: int | None = None  # of panels; None: as many as fit
    font_pt: float | None = None  # None: that of the style, or 8
    style: str = ""  # a style file, or the name of a style of matplotlib
    legend: str = "top"
    xlim: tuple[float, float] | None = None
    ylim: tuple[float, float] | None = None

    DEFAULT_PT: ClassVar[float] = 8.0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Apply the style inside the block; a style file wins over the defaults."""
        with matplotlib.rc_context(_RC | _sizes(self.font_pt or self.DEFAULT_PT)):
            if self.style:
                _use(self.style)
                if self.font_pt is not None:
                    matplotlib.rcParams.update(_sizes(self.font_pt))
            yield

    @property
    def colors(self) -> list[str]:
        """The colours of lines: those of the style if one is given."""
        if not self.style:
            return list(RUNS)
        return [
            to_hex(c) for c in matplotlib.rcParams["axes.prop_cycle"].by_key().get("color", RUNS)
        ]

    def across(self, panels: int) -> int:
        """Return how many panels stand side by side."""
        fits = 1 if self.width_in < 1.3 * COLUMN_IN else 3
        return min(panels, self.columns or fits)

    def figure(self, panels: int, *, row_in: float | None = None) -> tuple[Figure, list[Axes]]:
        """Return a figure of exactly this width, with axes for every panel."""
        across = self.across(panels)
        rows = math.ceil(panels / across)
        own_in = row_in or min(_RATIO * self.width_in / across, _TALLEST_IN)
        height_in = self.height_in or own_in * rows
        figure = Figure(figsize=(self.width_in, height_in), layout="constrained")
        axes = figure.subplots(rows, across, sharex=True, sharey=True, squeeze=False).ravel()
        for spare in axes[panels:]:
            spare.remove()
        return figure, list(axes[:panels])

    def label_outer(self, panels: Sequence[Axes], x: str, y: str) -> None:
        """Name the axes once at the left and at the bottom of the panels."""
        across = self.across(len(panels))
        for k, axes in enumerate(panels):
            if k % across == 0:
                axes.set_ylabel(y)
            if k + across >= len(panels):
                axes.set_xlabel(x)
                axes.tick_params(labelbottom=True)

    def add_legend(self, figure: Figure, axes: Axes, handles: Sequence[Artist]) -> None:
        """Put the legend where it was asked for; a legend above needs room of its own."""
        if self.legend == "none" or len(handles) < 2:
            return
        if self.legend == "top":
            columns = self._legend_columns([str(h.get_label()) for h in handles])
            if self.height_in is None:
                rows = math.ceil(len(handles) / columns)
                size_in = 1.5 * rows * matplotlib.rcParams["font.size"] / 72
                figure.set_figheight(figure.get_figheight() + size_in)
            figure.legend(handles=list(handles), loc="outside upper center", ncols=columns)
        elif self.legend == "right":
            figure.legend(handles=list(handles), loc="outside right center")
        else:
            place: Any = "best" if self.legend == "inside" else self.legend
            axes.legend(handles=list(handles), loc=place)

    def _legend_columns(self, texts: Sequence[str]) -> int:
        em_in = matplotlib.rcParams["legend.fontsize"] / 72
        widest = max(len(text) for text in texts) * 0.5 * em_in + 4.4 * em_in
        return max(1, min(len(texts), int(self.width_in / widest)))


def _sizes(font_pt: float) -> dict[Any, Any]:
    small = font_pt - 1 if font_pt >= 8 else font_pt
    return {
        "font.size": font_pt, "axes.labelsize": font_pt, "axes.titlesize": font_pt,
        "xtick.labelsize": small, "ytick.labelsize": small, "legend.fontsize": small,
    }  # fmt: skip


def _use(style: str) -> None:
    """Apply a style file, or a style of matplotlib by its name."""
    known = [name for name in matplotlib.style.available if not name.startswith("_")]
    if style not in known and not Path(style).is_file():
        raise ConfigError(
            f"command line: --style {style}: neither a file nor a style of matplotlib"
            f"{nearest(style, known)}; there are {', '.join(known)}"
        )
    if style in known:
        matplotlib.style.use(style)
        return
    try:
        settings = matplotlib.rc_params_from_file(
            style, fail_on_error=True, use_default_template=False
        )
    except (ValueError, KeyError, OSError) as error:
        raise ConfigError(f"command line: --style {style}: no style file: {error}") from error
    matplotlib.rcParams.update(settings)


def save_paper(figure: Figure, kind: str) -> bytes:
    """Return a figure as a file of exactly its size; equal figures give equal bytes."""
    metadata: dict[str, dict[str, None]] = {
        "pdf": {"CreationDate": None, "ModDate": None}, "svg": {"Date": None}, "png": {}
    }  # fmt: skip
    freeze_layout(figure)
    if kind == "pgf":
        out = io.StringIO()
        with _measured_without_latex():
            figure.savefig(out, format="pgf", backend="pgf")
        return out.getvalue().encode()
    binary = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(binary, format=kind, dpi=_PNG_DPI, metadata=metadata[kind])
    return binary.getvalue()


class _OwnFonts:
    """Measures texts with matplotlib's fonts, in the place of a LaTeX process."""

    def __init__(self) -> None:
        canvas: Any = FigureCanvasAgg(Figure(dpi=72))  # a point is a pixel
        self._renderer = canvas.get_renderer()

    def get_width_height_descent(self, text: str, prop: FontProperties) -> Any:
        plain = text.replace("\\mathdefault", "").replace("\\%", "%")
        return self._renderer.get_text_width_height_descent(plain, prop, ismath="$" in plain)


@contextmanager
def _measured_without_latex() -> Iterator[None]:
    """Let matplotlib write PGF where no LaTeX is installed.

    It asks LaTeX only for the sizes of texts, with which it places legends. LaTeX sets the texts
    itself when the paper is compiled.
    """
    manager: Any = LatexManager
    before = manager.__dict__["_get_cached_or_new"]
    own = _OwnFonts()
    manager._get_cached_or_new = classmethod(lambda cls: own)
    try:
        yield
    finally:
        manager._get_cached_or_new = before
