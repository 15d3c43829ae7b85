"""A figure as SVG inside the page: it scales, follows dark mode and can be searched."""

import io
import re
import warnings
from contextlib import nullcontext

from markupsafe import Markup, escape
from matplotlib.figure import Figure

from dystop.report.figures.fonts import lean_fonts
from dystop.report.figures.style import (
    DPI,
    GRID,
    INK,
    MUTED,
    PAPER,
    RUNS,
    freeze_layout,
    house_style,
)

VARIABLES = {
    INK: "ink", MUTED: "muted", GRID: "grid", PAPER: "card",
    **{color: f"run{k}" for k, color in enumerate(RUNS)},
}  # fmt: skip
"""Colours of the figures that the page's style sheet may replace."""

_COLOR = re.compile("|".join(VARIABLES))
_HEAD = re.compile(r"\A.*?<svg[^>]*?viewBox=\"([^\"]*)\"[^>]*>", re.DOTALL)
_DROP = re.compile(r"<metadata>.*?</metadata>|<style type=\"text/css\">.*?</style>", re.DOTALL)
_REFERENCE = re.compile(r"(\bid=\"|url\(#|href=\"#)")
_SPACE = re.compile(r"\n\s*")


def save(figure: Figure, kind: str) -> bytes:
    """The figure as the bytes of a PNG, PDF or SVG file; the same figure gives the same bytes."""
    dated = {"png": {}, "pdf": {"CreationDate": None, "ModDate": None}, "svg": {"Date": None}}
    fonts = lean_fonts() if kind == "pdf" else nullcontext()
    out = io.BytesIO()
    with house_style(), fonts, warnings.catch_warnings():
        # A run may be named in a script the figure font lacks; the page itself shows it right.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        freeze_layout(figure)
        figure.savefig(out, format=kind, dpi=DPI, metadata=dated[kind])
    return out.getvalue()


def inline_svg(figure: Figure, key: str, alt: str) -> Markup:
    """The figure as an `<svg>` element whose ids are its own and whose colours are variables.

    Matplotlib escapes the text it draws, so a run's name cannot become markup here.
    """
    text = save(figure, "svg").decode()
    head = _HEAD.match(text)
    if head is None:
        raise ValueError("matplotlib wrote an SVG without a viewBox")
    body = _DROP.sub("", text[head.end() :])
    body = _REFERENCE.sub(lambda m: f"{m[1]}{key}-", body)
    body = _COLOR.sub(lambda m: f"var(--{VARIABLES[m[0]]})", _SPACE.sub("\n", body))
    floor = round(62 * float(figure.get_figwidth()))
    return Markup(
        f'<svg role="img" aria-label="{escape(alt)}" viewBox="{head[1]}" '
        f'style="min-width:{floor}px">{body}'
    )
