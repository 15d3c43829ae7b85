"""Which inputs make up an output of a moving window, and which windows cover an input."""

from collections.abc import Iterator
from math import prod

import numpy as np

from dystop.trainer.fused.chain import Link
from dystop.trainer.fused.plan import Field

Lines = tuple[tuple[int, int], ...]  # of the table


def taps_of(link: Link, source: Field) -> Lines:
    """Offsets of the weights and of the inputs that make up one output."""
    channels = link.taps // prod(link.kernel)
    inputs = (
        c * source.plane + y * source.row + x for c, y, x in np.ndindex(channels, *link.kernel)
    )
    return tuple(enumerate(inputs))


def windows_of(link: Link, y: int, x: int) -> tuple[int, Lines]:
    """The windows that cover an input position.

    Returns the first one's place among the outputs, and for each the position's number in it and
    how far behind the first it lies.
    """
    found = [
        (v * link.kernel[1] + u, row * link.out[2] + column)
        for v, row in _covering(link, 0, y)
        for u, column in _covering(link, 1, x)
    ]
    base = found[0][1] if found else 0
    return base, tuple((tap, place - base) for tap, place in found)


def _covering(link: Link, axis: int, position: int) -> list[tuple[int, int]]:
    """Along one axis: the position's number in a window, and the window's number."""
    behind = [(tap, position + link.rim[axis] - tap) for tap in range(link.kernel[axis])]
    stride, windows = link.stride[axis], link.out[1 + axis]
    return [
        (tap, start // stride)
        for tap, start in behind
        if start >= 0 and start % stride == 0 and start // stride < windows
    ]


def runs_of(link: Link, joins: bool) -> Iterator[tuple[int, int, int]]:
    """Input positions with equal windows one behind the other: row, column, how many."""
    for y in range(link.shape[1]):
        x = 0
        while x < link.shape[2]:
            base, lines = windows_of(link, y, x)
            run = 1
            while (
                joins
                and x + run < link.shape[2]
                and windows_of(link, y, x + run) == (base + run, lines)
            ):
                run += 1
            yield y, x, run
            x += run
