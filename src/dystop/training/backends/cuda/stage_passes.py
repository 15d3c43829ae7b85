"""Forward and backward passes of the stages over a stack of models, and the SGD step they form.

Every stage owns buffers for the highest stack and works on its first rows. The block sizes of the
kernels were chosen by measurement on an H200. They change the speed only.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dystop.training.backends.cuda import kernels
from dystop.training.backends.cuda.buffers import StaticBuffers
from dystop.training.backends.cuda.graphs import compile_together, launch
from dystop.training.backends.cuda.stages import ConvStage, LinearStage, Stage
from dystop.training.samples import Samples

BLOCK = 1024  # elements of one program of an element-wise kernel


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def power_of_two(size: int, least: int = 16) -> int:
    """Return the next power of two; a matrix unit takes at least 16."""
    return max(least, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class Gradient:
    """The gradient of one tensor, as parts that are added in order."""

    parts: Tensor
    strides: tuple[int, int, int]  # of part, row and output
    outputs: int
    columns: int
    count: int = 1  # number of parts


def update(buffers: StaticBuffers, offset: int, gradient: Gradient, rows: int) -> None:
    """Take one SGD step on one tensor of the first rows, in place."""
    size = gradient.outputs * gradient.columns
    launch(
        kernels.update, (_blocks(size, BLOCK), rows),
        buffers.parameters[:, offset:], gradient.parts, buffers.rate, buffers.count,
        buffers.parameters.shape[1], *gradient.strides, SIZE=size, COLS=gradient.columns,
        SPLIT=gradient.count, BLOCK=BLOCK,
    )  # fmt: skip


class ConvPass:
    """A convolution with its max-pooling and its ReLU."""

    def __init__(
        self,
        stage: ConvStage,
        buffers: StaticBuffers,
        precision: str,
        *,
        is_first: bool,
        trains: bool = True,
    ) -> None:
        self.stage, self.buffers, self.precision = stage, buffers, precision
        self.is_first = is_first
        self.margin = 0 if is_first else stage.kernel - 1
        self.taps = stage.inputs[0] * stage.kernel**2
        # Enough programs to fill the device, and few enough partial sums to add.
        self.split = 16 if self.taps < 32 else 4
        self._x = self._convolved = self._allocate(*stage.convolved)
        self._out = self._allocate(*stage.outputs)
        self._argmax = self._allocate(*stage.outputs, dtype=torch.uint8)
        if trains:
            self._allocate_gradients()

    def resized(self, buffers: StaticBuffers) -> "ConvPass":
        """Return a pass in the same memory, for fewer rows of more samples; evaluation only."""
        other = copy.copy(self)
        other.buffers, shape = buffers, (buffers.height, buffers.batch)
        for name in ("_convolved", "_out", "_argmax"):
            flat = getattr(self, name).flatten(0, 1)[: math.prod(shape)]
            setattr(other, name, flat.unflatten(0, shape))
        return other

    def _allocate_gradients(self) -> None:
        filters, height, width = self.stage.convolved
        side, rows = 2 * self.margin, self.buffers.height
        self._gradient = self._allocate(filters, height + side, width + side)
        self._input_gradient = self._allocate(*(() if self.is_first else self.stage.inputs))
        self._parts = self.buffers.parameters.new_zeros(self.split, rows, filters, self.taps + 1)

    def _allocate(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        rows, device = (self.buffers.height, self.buffers.batch), self.buffers.parameters.device
        return torch.empty(*rows, *shape, dtype=dtype, device=device)

    def forward(self, x: Tensor, rows: int) -> Tensor:
        """Return the outputs of the first rows."""
        self._x, stage = x, self.stage
        self._convolve(x, self._convolved, (stage.inputs, stage.convolved), rows, backward=False)
        size = math.prod(self._out.shape[1:])
        launch(
            kernels.relu_pool, (_blocks(size, BLOCK), rows),
            self._convolved, self._out, self._argmax, self.buffers.count, size, **self._pooling(),
            RELU=stage.relu, BLOCK=BLOCK,
        )  # fmt: skip
        return self._out

    def backward(self, gradient: Tensor, rows: int) -> Tensor:
        """Update the weights of the first rows; return the gradient at the input."""
        stage, buffers = self.stage, self.buffers
        size = math.prod(self._gradient.shape[1:])
        launch(
            kernels.relu_pool_backward, (_blocks(size, BLOCK), rows),
            gradient, self._argmax, self._gradient, buffers.count,
            PLANES=buffers.batch * stage.filters, **self._pooling(), PAD=self.margin, BLOCK=BLOCK,
        )  # fmt: skip
        self._filter_gradient(rows)
        if not self.is_first:
            shapes = ((stage.filters, *self._gradient.shape[3:]), stage.inputs)
            self._convolve(self._gradient, self._input_gradient, shapes, rows, backward=True)
        strides = (self._parts.stride(0), self._parts.stride(1), self._parts.stride(2))
        weights = Gradient(self._parts, strides, stage.filters, self.taps, self.split)
        update(buffers, stage.weight, weights, rows)
        if stage.bias is not None:
            last = self._parts[..., self.taps :]
            biases = Gradient(last, strides, stage.filters, 1, self.split)
            update(buffers, stage.bias, biases, rows)
        return self._input_gradient

    def _pooling(self) -> dict[str, int]:
        _, height, width = self.stage.convolved
        _, out_height, out_width = self.stage.outputs
        return {"H": height, "W": width, "PH": out_height, "PW": out_width, "POOL": self.stage.pool}

    def _convolve(
        self, x: Tensor, y: Tensor, shapes: tuple[Any, Any], rows: int, *, backward: bool
    ) -> None:
        (channels, height, width), (filters, out_height, out_width) = shapes
        stage, flat = self.stage, self.buffers.parameters
        short = channels * stage.kernel**2 <= 32
        positions, block = self.buffers.batch * out_height * out_width, 64 if short else 128
        launch(
            kernels.convolve, (_blocks(positions, block), rows),
            x, flat[:, stage.weight :], flat[:, stage.bias or 0 :], y, self.buffers.count,
            flat.shape[1], x.stride(0), self.buffers.batch, C=channels, H=height, W=width,
            O=filters, OH=out_height, OW=out_width, K=stage.kernel, BACKWARD=backward,
            BIAS=stage.bias is not None and not backward, PRECISION=self.precision, BLOCK_P=block,
            BLOCK_O=power_of_two(filters), BLOCK_K=32 if short else 16, num_warps=2,
            num_stages=1 if short else 3,
        )  # fmt: skip

    def _filter_gradient(self, rows: int) -> None:
        channels, height, width = self.stage.inputs
        filters, out_height, out_width = self.stage.convolved
        block = 32 if self.taps < 32 else 128
        launch(
            kernels.filter_gradient, (_blocks(self.taps + 1, block), self.split, rows),
            self._x, self._gradient, self._parts, self.buffers.count, self.buffers.height,
            BATCH=self.buffers.batch, C=channels, H=height, W=width, O=filters, OH=out_height,
            OW=out_width, K=self.stage.kernel, PAD=self.margin, SPLIT=self.split,
            PRECISION=self.precision, BLOCK_P=32, BLOCK_O=power_of_two(filters), BLOCK_K=block,
            num_warps=1 if self.taps < 32 else 4, num_stages=1,
        )  # fmt: skip


class LinearPass:
    """A linear layer with its ReLU."""

    def __init__(self, stage: LinearStage, buffers: StaticBuffers, is_first: bool) -> None:
        self.stage, self.buffers, self.is_first = stage, buffers, is_first
        flat, size = buffers.parameters, stage.outputs * stage.inputs
        weight = flat[:, stage.weight : stage.weight + size]
        self._weight = weight.view(-1, stage.outputs, stage.inputs)
        zeros = flat.new_zeros(buffers.height, stage.outputs)
        bias = stage.bias
        self._bias = zeros if bias is None else flat[:, bias : bias + stage.outputs]
        self._x = self._y = zeros

    def resized(self, buffers: StaticBuffers) -> "LinearPass":
        """Return a pass for other buffers."""
        return LinearPass(self.stage, buffers, self.is_first)

    def forward(self, x: Tensor, rows: int) -> Tensor:
        """Return the outputs of the first rows."""
        self._x = x.flatten(2)[:rows]
        weight = self._weight[:rows].transpose(1, 2)
        self._y = torch.baddbmm(self._bias[:rows, None], self._x, weight)
        return self._y.relu_() if self.stage.relu else self._y

    def backward(self, gradient: Tensor, rows: int) -> Tensor:
        """Update the weights of the first rows; return the gradient at the input."""
        stage, buffers = self.stage, self.buffers
        gradient = gradient.view(-1, buffers.batch, stage.outputs)[:rows]
        if stage.relu:
            gradient = torch.ops.aten.threshold_backward(gradient, self._y, 0)
        at_input = gradient if self.is_first else torch.bmm(gradient, self._weight[:rows])
        weight = torch.bmm(gradient.transpose(1, 2), self._x)
        strides = (0, stage.outputs * stage.inputs, stage.inputs)
        weights = Gradient(weight, strides, stage.outputs, stage.inputs)
        update(buffers, stage.weight, weights, rows)
        if stage.bias is not None:
            biases = Gradient(gradient.sum(1), (0, stage.outputs, 1), stage.outputs, 1)
            update(buffers, stage.bias, biases, rows)
        return at_input


def passes_of(
    stages: tuple[Stage, ...], buffers: StaticBuffers, precision: str, trains: bool = True
) -> list[ConvPass | LinearPass]:
    """Return the passes of all stages, with their buffers."""
    return [
        ConvPass(stage, buffers, precision, is_first=number == 0, trains=trains)
        if isinstance(stage, ConvStage)
        else LinearPass(stage, buffers, number == 0)
        for number, stage in enumerate(stages)
    ]


class StageStep:
    """One SGD step of the first rows of the buffers, without autograd."""

    compiles = staticmethod(compile_together)

    def __init__(
        self,
        stages: tuple[Stage, ...],
        buffers: StaticBuffers,
        samples: Samples,
        precision: str,
        *,
        changes_rate: bool = False,
    ) -> None:
        self.buffers, self.samples = buffers, samples
        rows = (buffers.height, buffers.batch)
        self._x = torch.empty(*rows, *samples.shape, device=samples.x.device)
        self._y = torch.empty(*rows, dtype=torch.int32, device=samples.x.device)
        classes: Any = stages[-1].outputs
        self._gradient = torch.empty(*rows, classes, device=samples.x.device)
        self._passes = passes_of(stages, buffers, precision)
        channels = samples.shape[0]
        self._scale = samples.scale.reshape(-1).expand(channels).contiguous()
        self._shift = samples.shift.reshape(-1).expand(channels).contiguous()
        self._changes_rate = changes_rate

    def __call__(self, rows: int) -> None:
        """Gather the samples, run forward pass, loss and backward pass with the updates."""
        buffers = self.buffers
        if self._changes_rate:
            buffers.next_numbers()
        x = self._gather(rows)
        for stage in self._passes:
            x = stage.forward(x, rows)
        classes = self._gradient.shape[2]
        launch(
            kernels.cross_entropy, (rows,),
            x, self._y, buffers.count, buffers.total, self._gradient, BATCH=buffers.batch,
            CLASSES=classes, BLOCK_B=power_of_two(buffers.batch, 2),
            BLOCK_C=power_of_two(classes, 2),
        )  # fmt: skip
        gradient = self._gradient
        for stage in reversed(self._passes):
            gradient = stage.backward(gradient, rows)
        buffers.step.add_(1)

    def _gather(self, rows: int) -> Tensor:
        buffers, size = self.buffers, math.prod(self.samples.shape)
        launch(
            kernels.gather_samples, (rows, buffers.batch),
            self.samples.x, self.samples.y, self._scale, self._shift, buffers.table,
            buffers.counts, buffers.step, self._x, self._y, buffers.count, buffers.height,
            buffers.batch, SIZE=size, PLANE=size // self.samples.shape[0],
            BLOCK=power_of_two(size, 64) // 4,
        )  # fmt: skip
        return self._x
