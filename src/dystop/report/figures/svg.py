"""Figures as files, and as inline SVG that scales, follows dark mode and can be searched."""

import io
import re
import warnings

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from dystop.report.figures.style import (
    DPI,
    GRID,
    INK,
    MUTED,
    PAPER,
    RUNS,
    figure_style,
    freeze_layout,
)

VARIABLES = {
    INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "card",
    **{color: f"run{k}" for k, color in enumerate(RUNS)},
}  # fmt: skip
"""Colours that the style sheet of the page may replace, with the names of their variables."""

_COLOR = re.compile("|".join(VARIABLES))
_HEAD = re.compile(r"\A.*?<svg[^>]*?viewBox=\"([^\"]*)\"[^>]*>", re.DOTALL)
_DROP = re.compile(r"<metadata>.*?</metadata>|<style type=\"text/css\">.*?</style>", re.DOTALL)
_REFERENCE = re.compile(r"(\bid=\"|url\(#|href=\"#)")
_SPACE = re.compile(r"\n\s*")


def save(figure: Figure, kind: str) -> bytes:
    """Return a figure as a PNG, PDF or SVG file; equal figures give equal bytes."""
    metadata: dict[str, dict[str, None]] = {
        "png": {},
        "pdf": {"CreationDate": None, "ModDate": None},
        "svg": {"Date": None},
    }
    out = io.BytesIO()
    with figure_style(), warnings.catch_warnings():
        # A run's name may use a script that the figure font lacks; the page shows it all the same.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        freeze_layout(figure)
        figure.savefig(out, format=kind, dpi=DPI, metadata=metadata[kind])
    return out.getvalue()


def inline_svg(figure: Figure, key: str, alt: str) -> Markup:
    """Return a figure as an `<svg>` element with unique ids and variables for colours.

    Matplotlib escapes the text that it draws, so a run's name cannot become markup.
    """
    text = save(figure, "svg").decode()
    head = _HEAD.match(text)
    if head is None:
        raise ValueError("matplotlib wrote an SVG without a viewBox")
    body = _DROP.sub("", text[head.end() :])
    body = _REFERENCE.sub(lambda m: f"{m[1]}{key}-", body)
    body = _COLOR.sub(lambda m: f"var(--{VARIABLES[m[0]]})", _SPACE.sub("\n", body))
    min_width = round(62 * float(figure.get_figwidth()))
    return Markup(
        f'<svg role="img" aria-label="{escape(alt)}" viewBox="{head[1]}" '
        f'style="min-width:{min_width}px">{body}'
    )
