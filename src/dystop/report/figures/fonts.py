"""Fonts inside PDF files: TrueType, reduced to the letters that a figure uses."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

SHAPING = ("GSUB", "GPOS", "GDEF", "kern", "MATH")
"""Tables that tell a typesetter how letters join and kern; a PDF places each letter itself."""


@contextmanager
def lean_fonts() -> Iterator[None]:
    """Let matplotlib reduce fonts without their shaping tables inside the block.

    Nothing reads those tables in a PDF, yet reducing them takes longer than drawing the figure,
    and they keep letters in the file that no text uses. Matplotlib has no setting for it.
    """
    subset: Any = import_module("fontTools.subset")
    whole = subset.load_font

    def lean(*args: Any, **options: Any) -> Any:
        font = whole(*args, **options)
        for tag in SHAPING:
            if tag in font:
                del font[tag]
        return font

    subset.load_font = lean
    try:
        yield
    finally:
        subset.load_font = whole
