"""The program of a training step: the calls of a forward and a backward pass.

A program is a list of `CALL` records for one size of mini-batch. Python writes it once. The
compiled code in `passes` only executes it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.sparse import Ints
from dystop.training.backends.cpu.arena import (
    ArenaLayout,
    Terms,
    padded,
    runs_of,
    taps_of,
    windows_of,
)
from dystop.training.backends.cpu.blocks import CALL, CORRELATE_ROWS, MULTIPLY_ROWS, block_rows
from dystop.training.backends.layers import Kind

(
    MULTIPLY,
    CORRELATE,
    AVERAGE,
    MAXIMUM,
    MAXIMUM_BACKWARD,
    RELU_BACKWARD,
    TRANSPOSE,
    UPDATE,
    UPDATE_BIAS,
    LOSS,
    UPDATE_WITH_MOMENTUM,
    UPDATE_BIAS_WITH_MOMENTUM,
) = range(12)


@dataclass(frozen=True)
class Program:
    """The calls for one size of mini-batch."""

    calls: NDArray[Any]  # of CALL
    forward_calls: int  # number of calls up to the loss; the others are the backward pass
    table: Ints  # [terms, 2], offsets of factors; equal for all sizes of mini-batch


@lru_cache(maxsize=64)
def program_of(arena: ArenaLayout, batch: int) -> Program:
    """Write the program for mini-batches of exactly `batch` samples."""
    writer = _Writer(arena, batch)
    writer.load_samples()
    for k in range(len(arena.layers)):
        writer.forward(k)
    writer.call(LOSS)
    forward_calls = len(writer.calls)
    for k in reversed(range(len(arena.layers))):
        writer.backward(k)
    names = CALL.names or ()
    calls = [tuple(call.get(name, 0) for name in names) for call in writer.calls]
    return Program(np.array(calls, CALL), forward_calls, np.array(writer.table, np.int64))


@dataclass
class _Writer:
    """Writes calls. Turns offsets in floats of one sample into offsets in the arena."""

    arena: ArenaLayout
    batch: int
    calls: list[dict[str, int]] = field(default_factory=list)
    table: list[tuple[int, int]] = field(default_factory=list)
    table_rows: dict[Terms, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        sizes = [size for layer in self.arena.layers for size in (layer.taps, layer.outputs[0])]
        self.table += [(k, k) for k in range(max(self.arena.batch, *sizes))]  # for linear layers

    def call(self, kind: int, **fields: int) -> None:
        """Append a call."""
        usual = {"kind": kind, "rows": 1, "repeats": 1, "start": self.arena.zero}
        self.calls.append(usual | fields)

    def at(self, offset: int) -> int:
        """Return the offset in the arena of an activation or a gradient."""
        return self.arena.activations + offset * self.batch

    def table_row(self, terms: Terms) -> int:
        """Return the first row of these terms in the table. Equal terms share their rows."""
        if terms not in self.table_rows:
            self.table_rows[terms] = len(self.table)
            self.table += terms
        return self.table_rows[terms]

    def load_samples(self) -> None:
        """Transpose the samples into the input of the first layer."""
        layer, source = self.arena.layers[0], self.arena.regions[0].source
        inputs = (
            c * source.plane + source.at(y + layer.padding[0], x + layer.padding[1])
            for c, y, x in np.ndindex(*layer.inputs)
        )
        self.call(
            TRANSPOSE,
            rows=self.batch,
            width=prod(layer.inputs),
            right=self.arena.samples,
            right_step=self.arena.sample_stride,
            right_unit=self.batch,
            out=self.arena.activations,
            first=self.table_row(tuple(enumerate(inputs))),
        )

    def forward(self, k: int) -> None:
        """Compute the output of a layer."""
        layer = self.arena.layers[k]
        if layer.kind is Kind.MAX_POOL:
            self._max_pool(k)
        elif layer.has_weights:
            self._multiply(k)
        else:
            self._mean_pool(k)

    def backward(self, k: int) -> None:
        """Compute the gradient of the layer's input, then update its weights."""
        layer = self.arena.layers[k]
        if layer.relu and layer.kind is not Kind.MAX_POOL:
            self._relu_backward(k)
        if k > 0:
            self._input_gradient(k)
        if layer.kind is Kind.CONVOLUTION:
            self._update_convolution(k)
        elif layer.kind is Kind.LINEAR:
            self._update_linear(k)

    def _multiply(self, k: int) -> None:
        """Compute a convolution, or a linear layer as a convolution of 1x1 images.

        With a stride of one, a row of positions is one run of floats.
        """
        layer, regions = self.arena.layers[k], self.arena.regions[k]
        rows, columns = layer.outputs[1:]
        run = columns if layer.stride[1] == 1 else 1
        first = self.table_row(taps_of(layer, regions.source))
        for y, x in ((y, x) for y in range(rows) for x in range(0, columns, run)):
            corner = regions.source.at(y * layer.stride[0], x * layer.stride[1])
            self.call(
                MULTIPLY,
                rows=layer.outputs[0],
                length=run * self.batch,
                out=self.at(regions.target.at(y, x)),
                out_step=regions.target.plane * self.batch,
                start=self.arena.zero if layer.bias is None else layer.bias,
                start_step=int(layer.bias is not None),
                left=layer.weight,
                left_step=layer.taps,
                left_unit=1,
                right=self.at(corner),
                right_unit=self.batch,
                first=first,
                terms=layer.taps,
                relu=int(layer.relu),
            )

    def _max_pool(self, k: int) -> None:
        layer, regions = self.arena.layers[k], self.arena.regions[k]
        for y in range(layer.outputs[1]):
            self.call(
                MAXIMUM,
                rows=layer.outputs[0],
                width=layer.outputs[2],
                length=self.batch,
                out=self.at(regions.target.at(y, 0)),
                out_step=regions.target.plane * self.batch,
                out_across=self.batch,
                left=self.at(regions.argmax + y * layer.outputs[2]),
                left_step=prod(layer.outputs[1:]) * self.batch,
                left_across=self.batch,
                right=self.at(regions.source.at(y * layer.stride[0], 0)),
                right_step=regions.source.plane * self.batch,
                right_across=layer.stride[1] * self.batch,
                right_unit=self.batch,
                first=self.table_row(taps_of(layer, regions.source)),
                terms=layer.taps,
                relu=int(layer.relu),
            )

    def _mean_pool(self, k: int) -> None:
        layer, regions = self.arena.layers[k], self.arena.regions[k]
        for y, x in np.ndindex(*layer.outputs[1:]):
            corner = regions.source.at(y * layer.stride[0], x * layer.stride[1])
            self.call(
                AVERAGE,
                rows=layer.outputs[0],
                length=self.batch,
                out=self.at(regions.target.at(y, x)),
                out_step=regions.target.plane * self.batch,
                left=self.arena.mean_factor(k),
                right=self.at(corner),
                right_step=regions.source.plane * self.batch,
                right_unit=self.batch,
                first=self.table_row(taps_of(layer, regions.source)),
                terms=layer.taps,
                relu=int(layer.relu),
            )

    def _relu_backward(self, k: int) -> None:
        """Set the gradient to zero where the output of a ReLU is zero."""
        layer, regions = self.arena.layers[k], self.arena.regions[k]
        self.call(
            RELU_BACKWARD,
            rows=layer.outputs[0],
            height=layer.outputs[1],
            length=layer.outputs[2] * self.batch,
            out=self.at(regions.gradient),
            out_step=prod(layer.outputs[1:]) * self.batch,
            out_down=layer.outputs[2] * self.batch,
            right=self.at(regions.target.offset),
            right_step=regions.target.plane * self.batch,
            right_down=regions.target.row * self.batch,
        )

    def _input_gradient(self, k: int) -> None:
        """Compute the gradient of a layer's input."""
        layer = self.arena.layers[k]
        step = prod(layer.outputs[1:]) * self.batch
        if layer.kind is Kind.LINEAR:
            self._input_gradient_linear(k)
        elif layer.kind is Kind.CONVOLUTION:
            operands = {"left": layer.weight, "left_step": prod(layer.kernel), "left_unit": 1}
            again = {"repeats": layer.outputs[0], "left_jump": layer.taps, "right_jump": step}
            self._gather(k, MULTIPLY, operands | again)
        elif layer.kind is Kind.MAX_POOL:
            operands = {"left_step": step, "left_unit": self.batch, "right_step": step}
            self._gather(k, MAXIMUM_BACKWARD, operands)
        else:
            self._gather(k, AVERAGE, {"left": self.arena.mean_factor(k), "right_step": step})

    def _gather(self, k: int, kind: int, operands: dict[str, int]) -> None:
        """Sum, for every input position, over the windows that cover it.

        Neighbouring positions with equal windows form one call.
        """
        layer, regions = self.arena.layers[k], self.arena.regions[k]
        target, size = self.arena.regions[k - 1].gradient, prod(layer.inputs[1:])
        for y, x, run in runs_of(layer, kind == MULTIPLY):
            base, terms = windows_of(layer, y, x)
            if kind == MAXIMUM_BACKWARD:
                operands["left"] = self.at(regions.argmax + base)
            self.call(
                kind,
                rows=layer.inputs[0],
                length=run * self.batch,
                out=self.at(target + y * layer.inputs[2] + x),
                out_step=size * self.batch,
                right=self.at(regions.gradient + base),
                right_unit=self.batch,
                first=self.table_row(terms),
                terms=len(terms),
                **operands,
            )

    def _input_gradient_linear(self, k: int) -> None:
        layer = self.arena.layers[k]
        self.call(
            MULTIPLY,
            rows=layer.taps,
            length=self.batch,
            out=self.at(self.arena.regions[k - 1].gradient),
            out_step=self.batch,
            left=layer.weight,
            left_step=1,
            left_unit=layer.taps,
            right=self.at(self.arena.regions[k].gradient),
            right_unit=self.batch,
            terms=layer.outputs[0],
        )

    def _update_convolution(self, k: int) -> None:
        """Update the weights of a convolution, a few output channels at a time."""
        layer, regions = self.arena.layers[k], self.arena.regions[k]
        rows, columns = layer.outputs[1:]
        run = columns if layer.stride[1] == 1 else 1
        if layer.trained[1]:
            self._update_bias(k)
        for row, count in _blocks(layer.outputs[0] if layer.trained[0] else 0, CORRELATE_ROWS):
            self.call(
                CORRELATE,
                rows=count,
                height=rows,
                width=columns // run,
                length=run * self.batch,
                out=self.arena.workspace,
                out_step=layer.taps,
                left=self.at(regions.gradient + row * rows * columns),
                left_step=rows * columns * self.batch,
                left_down=columns * self.batch,
                left_across=self.batch,
                right=self.at(regions.source.offset),
                right_down=layer.stride[0] * regions.source.row * self.batch,
                right_across=layer.stride[1] * self.batch,
                right_unit=self.batch,
                first=self.table_row(taps_of(layer, regions.source)),
                terms=layer.taps,
            )
            offset = layer.weight + row * layer.taps
            self._update(out=offset, length=count * layer.taps, right=self.arena.workspace)

    def _update_linear(self, k: int) -> None:
        """Update the weights of a linear layer: a sum over samples of vectors of inputs."""
        layer, regions, arena = self.arena.layers[k], self.arena.regions[k], self.arena
        if layer.trained[1]:
            self._update_bias(k)
        rows, row = (
            (arena.transposed, arena.transposed_stride)
            if k
            else (arena.samples, arena.sample_stride)
        )
        if layer.trained[0] and k:
            source = {"right": self.at(regions.source.offset), "right_step": self.batch}
            self.call(
                TRANSPOSE, rows=layer.taps, width=self.batch, out=rows, right_unit=row, **source
            )
        for first, count in _blocks(layer.outputs[0] if layer.trained[0] else 0, MULTIPLY_ROWS):
            step = padded(layer.taps)
            self.call(
                MULTIPLY,
                rows=count,
                length=step,
                out=arena.workspace,
                out_step=step,
                left=self.at(regions.gradient + first),
                left_step=self.batch,
                left_unit=1,
                right=rows,
                right_unit=row,
                terms=self.batch,
            )
            self._update(
                rows=count,
                length=layer.taps,
                out=layer.weight + first * layer.taps,
                out_step=layer.taps,
                right=arena.workspace,
                right_step=step,
            )

    def _update(self, **fields: int) -> None:
        """Update rows of weights by their gradient."""
        if self.arena.momentum:
            self.call(UPDATE_WITH_MOMENTUM, **fields, **self._momentum(fields["out"]))
        else:
            self.call(UPDATE, left=self.arena.rate, **fields)

    def _momentum(self, out: int) -> dict[str, int]:
        """Return the operands of a step with momentum on weights from `out` on."""
        arena = self.arena
        start = arena.velocity + out
        return {"left": arena.rate, "first": arena.momentum_numbers, "start": start}

    def _update_bias(self, k: int) -> None:
        """Update the biases by the gradient, summed over positions and samples."""
        layer, regions = self.arena.layers[k], self.arena.regions[k]
        step, out = prod(layer.outputs[1:]) * self.batch, layer.bias or 0
        fields = {"rows": layer.outputs[0], "length": step, "out": out, "right_step": step}
        fields["right"] = self.at(regions.gradient)
        if self.arena.momentum:
            how = {"terms": self.arena.scratch, **self._momentum(out)}
            self.call(UPDATE_BIAS_WITH_MOMENTUM, **fields, **how)
        else:
            self.call(UPDATE_BIAS, left=self.arena.rate, start=self.arena.scratch, **fields)


def _blocks(rows: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield blocks of rows: the first row and the number of rows."""
    row = 0
    while row < rows:
        count = int(block_rows(rows - row, most))
        yield row, count
        row += count
