"""Keeping Python's search for garbage from taking as long as the drawing."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def spare_the_old() -> Iterator[None]:
    """Look for garbage among new objects only, inside the block or function.

    Figures are made of so many small objects that Python would search the whole memory for garbage
    several times, with all that torch has brought along.
    """
    if gc.get_freeze_count():  # the caller does the same
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
