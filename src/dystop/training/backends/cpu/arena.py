"""Where the numbers of a training lie: one flat array of float32, the arena.

The arena holds, in this order: the model, a few constants, a workspace for gradients of weights,
the momentum of the weights if there is one, the samples of a mini-batch, and then the activations
of every layer and their gradients.

Activations lie as [channel, row, column, sample]. The samples of a mini-batch fill whole vector
registers, so no kernel has to treat an edge. The padding of a convolution is a border of zeros
around its input that nobody writes. Offsets of activations count floats of one sample, because
the last mini-batch of an epoch may be smaller; `program` multiplies them by the batch size.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeVar

import numpy as np

from dystop.sparse import Ints
from dystop.training.backends.cpu.blocks import CORRELATE_ROWS, MULTIPLY_ROWS
from dystop.training.backends.cpu.vectors import LANES
from dystop.training.backends.layers import Kind, Layer, Pair, Volume

Number = TypeVar("Number", int, Ints)


@dataclass(frozen=True)
class Region:
    """The activations [channel, row, column] of one sample, perhaps inside a border of zeros."""

    offset: int
    row: int  # stride from one row to the next
    plane: int  # stride from one channel to the next

    def at(self, y: int, x: int) -> int:
        """Return the offset of a position in the first channel."""
        return self.offset + y * self.row + x


@dataclass(frozen=True)
class LayerRegions:
    """Where the activations and gradients of one layer lie."""

    source: Region  # its input, with the padding
    target: Region  # its output, inside the padding of the next layer
    argmax: int  # offset of the positions that a max-pooling has chosen
    gradient: int  # offset of the gradient of its output, without padding


@dataclass(frozen=True)
class ArenaLayout:
    """The arena of a chain of layers, for mini-batches of at most `batch` samples."""

    layers: tuple[Layer, ...]
    width: int  # floats of the model
    batch: int
    momentum: tuple[float, ...] = ()  # numbers of `blocks.update_with_momentum`; none: plain SGD

    @property
    def classes(self) -> int:
        """Number of class scores."""
        return self.layers[-1].outputs[0]

    @property
    def has_padding(self) -> bool:
        """Whether some input has a border of zeros."""
        return any(layer.padding != (0, 0) for layer in self.layers)

    @cached_property
    def constants(self) -> tuple[float, ...]:
        """Constants: zero, learning rate, a scratch float, factors of means, those of momentum."""
        means = (1.0 / prod(layer.kernel) for layer in self.layers)
        return (0.0, 0.0, 0.0, *means, *self.momentum)

    @property
    def zero(self) -> int:
        """Offset of a float that is 0."""
        return self.width

    @property
    def rate(self) -> int:
        """Offset of the learning rate."""
        return self.width + 1

    @property
    def scratch(self) -> int:
        """Offset of a float that holds a sum for a short time."""
        return self.width + 2

    def mean_factor(self, k: int) -> int:
        """Return the offset of the factor that turns a sum over a window of layer k into a mean."""
        return self.width + 3 + k

    @property
    def momentum_numbers(self) -> int:
        """Offset of the numbers of momentum."""
        return self.workspace - len(self.momentum)

    @property
    def workspace(self) -> int:
        """Offset of the workspace: gradients of a few rows of weights."""
        return self.width + len(self.constants)

    @property
    def velocity(self) -> int:
        """Offset of the momentum of every weight."""
        rows = max(CORRELATE_ROWS, MULTIPLY_ROWS)
        return self.workspace + rows * max(padded(layer.taps) for layer in self.layers)

    @property
    def samples(self) -> int:
        """Offset of the samples of a mini-batch, one after another."""
        return self.velocity + (self.width if self.momentum else 0)

    @property
    def sample_stride(self) -> int:
        """Floats from one sample to the next."""
        return padded(prod(self.layers[0].inputs))

    @property
    def transposed(self) -> int:
        """Offset of the transposed input of a linear layer, one sample after another."""
        return self.samples + self.sample_stride * self.batch

    @property
    def transposed_stride(self) -> int:
        """Floats from one sample of the transposed input to the next."""
        linear = [padded(layer.taps) for layer in self.layers[1:] if layer.kind is Kind.LINEAR]
        return max(linear, default=0)

    @property
    def activations(self) -> int:
        """Offset of the activations and their gradients."""
        return self.transposed + self.transposed_stride * self.batch

    @property
    def size(self) -> int:
        """Floats of the arena. A transposition may read one square beyond the activations."""
        return self.activations + (self.sample_floats + LANES) * self.batch

    @property
    def sample_floats(self) -> int:
        """Activations and gradients of one sample."""
        return self._regions_and_size[1]

    @property
    def regions(self) -> tuple[LayerRegions, ...]:
        """The regions of every layer, in floats of one sample."""
        return self._regions_and_size[0]

    @cached_property
    def _regions_and_size(self) -> tuple[tuple[LayerRegions, ...], int]:
        """Place all regions one after another. Two regions hold the gradients, in turns."""
        layers, count = self.layers, len(self.layers)
        sizes = [layer.inputs[0] * _strides(layer.inputs, layer.padding)[1] for layer in layers]
        sizes += [prod(layers[-1].outputs)]
        sizes += [prod(layer.outputs) if layer.kind is Kind.MAX_POOL else 0 for layer in layers]
        for parity in (0, 1):
            own = [k for k in range(parity, count, 2) if not self._overwrites(k)]
            sizes.append(max((prod(layers[k].outputs) for k in own), default=0))
        starts = np.cumsum([0, *sizes]).tolist()
        return tuple(self._regions(k, starts) for k in range(count)), starts[-1]

    def _overwrites(self, k: int) -> bool:
        """Return whether the gradient of layer k may overwrite its output.

        The backward pass does not need the output of a layer without ReLU before a pooling.
        """
        following = self.layers[k + 1 : k + 2]
        return not self.layers[k].relu and any(not layer.has_weights for layer in following)

    def _regions(self, k: int, starts: list[int]) -> LayerRegions:
        layer, count = self.layers[k], len(self.layers)
        padding = self.layers[k + 1].padding if k + 1 < count else (0, 0)
        row, plane = _strides(layer.outputs, padding)
        return LayerRegions(
            source=Region(starts[k], *_strides(layer.inputs, layer.padding)),
            target=Region(starts[k + 1] + padding[0] * row + padding[1], row, plane),
            argmax=starts[count + 1 + k],
            gradient=starts[k + 1] if self._overwrites(k) else starts[2 * count + 1 + k % 2],
        )


def padded(count: Number) -> Number:
    """Round a number of floats (or an array of such numbers) up to whole vector registers."""
    return -(-count // LANES) * LANES


def _strides(shape: Volume, padding: Pair) -> tuple[int, int]:
    """Return the strides from one row to the next and from one channel to the next."""
    row = shape[2] + 2 * padding[1]
    return row, row * (shape[1] + 2 * padding[0])


Terms = tuple[tuple[int, int], ...]
"""The terms of a sum: offsets of the left and of the right factor."""


def taps_of(layer: Layer, source: Region) -> Terms:
    """Return the offsets of the weights and of the inputs that one output is computed from."""
    channels = layer.taps // prod(layer.kernel)
    inputs = (
        c * source.plane + y * source.row + x for c, y, x in np.ndindex(channels, *layer.kernel)
    )
    return tuple(enumerate(inputs))


def windows_of(layer: Layer, y: int, x: int) -> tuple[int, Terms]:
    """Return the windows that cover an input position.

    The first window comes as the offset of its output. Each window is a pair: the number of the
    position inside the window, and the distance of its output from that of the first window.
    """
    found = [
        (v * layer.kernel[1] + u, row * layer.outputs[2] + column)
        for v, row in _covering(layer, 0, y)
        for u, column in _covering(layer, 1, x)
    ]
    base = found[0][1] if found else 0
    return base, tuple((tap, offset - base) for tap, offset in found)


def _covering(layer: Layer, axis: int, position: int) -> list[tuple[int, int]]:
    """Return, along one axis, the position's number in each window and the window's number."""
    starts = [(tap, position + layer.padding[axis] - tap) for tap in range(layer.kernel[axis])]
    stride, windows = layer.stride[axis], layer.outputs[1 + axis]
    return [
        (tap, start // stride)
        for tap, start in starts
        if start >= 0 and start % stride == 0 and start // stride < windows
    ]


def runs_of(layer: Layer, joins: bool) -> Iterator[tuple[int, int, int]]:
    """Yield runs of input positions with equal windows: row, first column, length.

    Without `joins`, every position is a run of its own.
    """
    for y in range(layer.inputs[1]):
        x = 0
        while x < layer.inputs[2]:
            base, terms = windows_of(layer, y, x)
            run = 1
            while (
                joins
                and x + run < layer.inputs[2]
                and windows_of(layer, y, x + run) == (base + run, terms)
            ):
                run += 1
            yield y, x, run
            x += run
