"""Where everything lies that a chain of layers works on.

Activations lie as [channel, row, column, sample]: the samples of a mini-batch fill whole registers,
so no kernel has an edge to look after. A convolution's padding is a rim of zeros around its input
that is never written. All floats of a training are in one array, the arena: the model, a few
constants, working space, then activations and gradients, whose places are counted in samples'
worth because the last mini-batch of an epoch may be shorter.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np

from dystop.sparse import Ints
from dystop.training.backends.cpu.blocks import TALL, WIDE
from dystop.training.backends.cpu.chain import LINEAR, MAX_POOL, MEAN_POOL, Link, Pair, Volume
from dystop.training.backends.cpu.vectors import LANES

Number = TypeVar("Number", int, Ints)


@dataclass(frozen=True)
class Field:
    """A place for numbers [channel, row, column] of every sample, perhaps inside a rim."""

    place: int
    row: int  # to the next row
    plane: int  # to the next channel

    def at(self, y: int, x: int) -> int:
        """Place of a position in the first channel."""
        return self.place + y * self.row + x


@dataclass(frozen=True)
class Spots:
    """Places of one link."""

    source: Field  # its input with the rim
    target: Field  # its output, inside the next link's rim
    which: int  # choices of a max-pooling
    gradient: int  # of its output, without a rim


@dataclass(frozen=True)
class Plan:
    """A chain laid out for mini-batches of at most `batch` samples."""

    links: tuple[Link, ...]
    width: int  # floats of the model
    batch: int

    @property
    def classes(self) -> int:
        """Scores that come out."""
        return self.links[-1].out[0]

    @property
    def has_rims(self) -> bool:
        """Whether there are zeros to keep."""
        return any(link.rim != (0, 0) for link in self.links)

    @cached_property
    def constants(self) -> tuple[float, ...]:
        """Behind the model: zero, the rate, room for a sum, and the links' factors of a mean."""
        return (0.0, 0.0, 0.0, *(1.0 / prod(link.kernel) for link in self.links))

    @property
    def zero(self) -> int:
        """Place of a zero."""
        return self.width

    @property
    def rate(self) -> int:
        """Place of the step size."""
        return self.width + 1

    @property
    def sum(self) -> int:
        """Place for a sum."""
        return self.width + 2

    def mean(self, k: int) -> int:
        """Place of the factor that makes a sum over a link's window a mean."""
        return self.width + 3 + k

    @property
    def spare(self) -> int:
        """First float of the working space: a few rows of gradients of weights."""
        return self.width + len(self.constants)

    @property
    def rows(self) -> int:
        """First float of the samples one by one, as they are before they lie side by side."""
        return self.spare + max(TALL, WIDE) * max(padded(link.taps) for link in self.links)

    @property
    def row(self) -> int:
        """Floats of one of them."""
        return padded(prod(self.links[0].shape))

    @property
    def turned(self) -> int:
        """First float of a linear layer's input, likewise one by one."""
        return self.rows + self.row * self.batch

    @property
    def turned_row(self) -> int:
        """Floats of one of them."""
        linear = [padded(link.taps) for link in self.links[1:] if link.kind == LINEAR]
        return max(linear, default=0)

    @property
    def base(self) -> int:
        """First float of the activations."""
        return self.turned + self.turned_row * self.batch

    @property
    def size(self) -> int:
        """Floats in all; a square may be read beyond the last activation."""
        return self.base + (self.units + LANES) * self.batch

    @property
    def units(self) -> int:
        """Activations and gradients of one sample."""
        return self._layout[1]

    @property
    def spots(self) -> tuple[Spots, ...]:
        """Places of every link, in samples' worth."""
        return self._layout[0]

    @cached_property
    def _layout(self) -> tuple[tuple[Spots, ...], int]:
        """Hand out places one behind the other; gradients take turns in two of them."""
        links, number = self.links, len(self.links)
        sizes = [link.shape[0] * _strides(link.shape, link.rim)[1] for link in links]
        sizes += [prod(links[-1].out)]
        sizes += [prod(link.out) if link.kind == MAX_POOL else 0 for link in links]
        for turn in (0, 1):
            own = [k for k in range(turn, number, 2) if not self._reuses(k)]
            sizes.append(max((prod(links[k].out) for k in own), default=0))
        starts = np.cumsum([0, *sizes]).tolist()
        return tuple(self._spots(k, starts) for k in range(number)), starts[-1]

    def _reuses(self, k: int) -> bool:
        """Whether a gradient may overwrite the output: nobody needs that on the way back."""
        after = (link.kind for link in self.links[k + 1 : k + 2])
        return not self.links[k].rectifies and any(kind in (MAX_POOL, MEAN_POOL) for kind in after)

    def _spots(self, k: int, starts: list[int]) -> Spots:
        link, number = self.links[k], len(self.links)
        rim = self.links[k + 1].rim if k + 1 < number else (0, 0)
        row, plane = _strides(link.out, rim)
        return Spots(
            source=Field(starts[k], *_strides(link.shape, link.rim)),
            target=Field(starts[k + 1] + rim[0] * row + rim[1], row, plane),
            which=starts[number + 1 + k],
            gradient=starts[k + 1] if self._reuses(k) else starts[2 * number + 1 + k % 2],
        )


def padded(count: Number) -> Number:
    """A number of floats (or an array of such), filled up to whole registers."""
    return -(-count // LANES) * LANES


def _strides(shape: Volume, rim: Pair) -> tuple[int, int]:
    """Positions from one row to the next, and from one channel to the next."""
    row = shape[2] + 2 * rim[1]
    return row, row * (shape[1] + 2 * rim[0])


# MERGED: Which inputs make up an output of a moving window, and which windows cover an input.


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
