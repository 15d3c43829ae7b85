"""Forward and backward passes of the stages over a stack of models, and the step they make up.

Every stage owns buffers for the highest stack and works on its first rows. The block sizes of the
kernels were found by measurement on an H200; they change the speed only.
"""

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dystop.training.backends.cuda import kernels
from dystop.training.backends.cuda.chain import Conv, Dense, Stage, Tensors
from dystop.training.backends.cuda.graphs import StaticBuffers, compile_together, launch
from dystop.training.samples import Samples

POINTS = 1024  # elements that one program of an element-wise kernel takes


def _blocks(size: int, block: int) -> int:
    return -(-size // block)


def power(size: int, least: int = 16) -> int:
    """The next power of two; a matrix unit takes 16 at least."""
    return max(least, 1 << (size - 1).bit_length())


@dataclass(frozen=True)
class Slope:
    """Gradient of one tensor, in parts that are added in order: strides of part, row and output."""

    parts: Tensor
    strides: tuple[int, int, int]
    outputs: int
    columns: int
    count: int = 1


def descend(desk: StaticBuffers, offset: int, slope: Slope, rows: int) -> None:
    """One step of gradient descent on one tensor of the first rows, in place."""
    size = slope.outputs * slope.columns
    launch(
        kernels.descend, (_blocks(size, POINTS), rows),
        desk.parameters[:, offset:], slope.parts, desk.rate, desk.count, desk.parameters.shape[1],
        *slope.strides, SIZE=size, COLS=slope.columns, SPLIT=slope.count, BLOCK=POINTS,
    )  # fmt: skip


class ConvWork:
    """A convolution with its ReLU and pooling."""

    def __init__(
        self,
        stage: Conv,
        desk: StaticBuffers,
        precision: str,
        *,
        is_first: bool,
        trains: bool = True,
    ) -> None:
        self.stage, self.desk, self.precision = stage, desk, precision
        self.is_first = is_first
        self.margin = 0 if is_first else stage.kernel - 1
        self.taps = stage.inputs[0] * stage.kernel**2
        # Enough programs to fill the device, and few enough sums to add up.
        self.split = 16 if self.taps < 32 else 4
        self._x = self._inner = self._buffer(*stage.inner)
        self._out = self._buffer(*stage.outputs)
        self._won = self._buffer(*stage.outputs, dtype=torch.uint8)
        if trains:
            self._make_gradients()

    def viewed(self, desk: StaticBuffers) -> "ConvWork":
        """The same buffers for fewer rows of more samples each; for examinations only."""
        other = copy.copy(self)
        other.desk, many = desk, (desk.height, desk.batch)
        for name in ("_inner", "_out", "_won"):
            flat = getattr(self, name).flatten(0, 1)[: math.prod(many)]
            setattr(other, name, flat.unflatten(0, many))
        return other

    def _make_gradients(self) -> None:
        filters, height, width = self.stage.inner
        side, rows = 2 * self.margin, self.desk.height
        self._slope = self._buffer(filters, height + side, width + side)
        self._back = self._buffer(*(() if self.is_first else self.stage.inputs))
        self._parts = self.desk.parameters.new_zeros(self.split, rows, filters, self.taps + 1)

    def _buffer(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        device = self.desk.parameters.device
        return torch.empty(self.desk.height, self.desk.batch, *shape, dtype=dtype, device=device)

    def forward(self, x: Tensor, rows: int) -> Tensor:
        """Outputs of the first rows."""
        self._x, stage = x, self.stage
        self._convolve(x, self._inner, (stage.inputs, stage.inner), rows, backward=False)
        size = math.prod(self._out.shape[1:])
        launch(
            kernels.relu_pool, (_blocks(size, POINTS), rows),
            self._inner, self._out, self._won, self.desk.count, size, **self._pooling(),
            RELU=stage.relu, BLOCK=POINTS,
        )  # fmt: skip
        return self._out

    def backward(self, gradient: Tensor, rows: int) -> Tensor:
        """Update the weights of the first rows; returns the gradient at the input."""
        stage, desk = self.stage, self.desk
        size = math.prod(self._slope.shape[1:])
        launch(
            kernels.relu_pool_back, (_blocks(size, POINTS), rows),
            gradient, self._won, self._slope, desk.count, PLANES=desk.batch * stage.filters,
            **self._pooling(), PAD=self.margin, BLOCK=POINTS,
        )  # fmt: skip
        self._filter_gradient(rows)
        if not self.is_first:
            shapes = ((stage.filters, *self._slope.shape[3:]), stage.inputs)
            self._convolve(self._slope, self._back, shapes, rows, backward=True)
        strides = (self._parts.stride(0), self._parts.stride(1), self._parts.stride(2))
        many = (stage.filters, self.taps, self.split)
        descend(desk, stage.at.weight, Slope(self._parts, strides, *many), rows)
        if stage.at.bias >= 0:
            last = self._parts[..., self.taps :]
            slope = Slope(last, strides, stage.filters, 1, self.split)
            descend(desk, stage.at.bias, slope, rows)
        return self._back

    def _pooling(self) -> dict[str, int]:
        _, height, width = self.stage.inner
        _, out_height, out_width = self.stage.outputs
        return {"H": height, "W": width, "PH": out_height, "PW": out_width, "POOL": self.stage.pool}

    def _convolve(
        self, x: Tensor, y: Tensor, shapes: tuple[Any, Any], rows: int, *, backward: bool
    ) -> None:
        (channels, height, width), (filters, out_height, out_width) = shapes
        at, flat = self.stage.at, self.desk.parameters
        short = channels * self.stage.kernel**2 <= 32
        positions, block = self.desk.batch * out_height * out_width, 64 if short else 128
        launch(
            kernels.convolve, (_blocks(positions, block), rows),
            x, flat[:, at.weight :], flat[:, max(at.bias, 0) :], y, self.desk.count, flat.shape[1],
            x.stride(0), self.desk.batch, C=channels, H=height, W=width, O=filters, OH=out_height,
            OW=out_width, K=self.stage.kernel, BACKWARD=backward,
            BIAS=at.bias >= 0 and not backward, PRECISION=self.precision, BLOCK_P=block,
            BLOCK_O=power(filters), BLOCK_K=32 if short else 16, num_warps=2,
            num_stages=1 if short else 3,
        )  # fmt: skip

    def _filter_gradient(self, rows: int) -> None:
        channels, height, width = self.stage.inputs
        filters, out_height, out_width = self.stage.inner
        block = 32 if self.taps < 32 else 128
        launch(
            kernels.filter_gradient, (_blocks(self.taps + 1, block), self.split, rows),
            self._x, self._slope, self._parts, self.desk.count, self.desk.height,
            BATCH=self.desk.batch, C=channels, H=height, W=width, O=filters, OH=out_height,
            OW=out_width, K=self.stage.kernel, PAD=self.margin, SPLIT=self.split,
            PRECISION=self.precision, BLOCK_P=32, BLOCK_O=power(filters), BLOCK_K=block,
            num_warps=1 if self.taps < 32 else 4, num_stages=1,
        )  # fmt: skip


class DenseWork:
    """A fully-connected layer with its ReLU."""

    def __init__(self, stage: Dense, desk: StaticBuffers, is_first: bool) -> None:
        self.stage, self.desk, self.is_first = stage, desk, is_first
        self._weight = _view(desk, stage.at, stage.outputs, stage.inputs)
        at, none = stage.at.bias, desk.parameters.new_zeros(desk.height, stage.outputs)
        self._bias = desk.parameters[:, at : at + stage.outputs] if at >= 0 else none
        self._x = self._y = none

    def viewed(self, desk: StaticBuffers) -> "DenseWork":
        """The same layer for another desk."""
        return DenseWork(self.stage, desk, self.is_first)

    def forward(self, x: Tensor, rows: int) -> Tensor:
        """Outputs of the first rows."""
        self._x = x.flatten(2)[:rows]
        weight = self._weight[:rows].transpose(1, 2)
        self._y = torch.baddbmm(self._bias[:rows, None], self._x, weight)
        return self._y.relu_() if self.stage.relu else self._y

    def backward(self, gradient: Tensor, rows: int) -> Tensor:
        """Update the weights of the first rows; returns the gradient at the input."""
        stage, desk = self.stage, self.desk
        slope = gradient.view(-1, desk.batch, stage.outputs)[:rows]
        if stage.relu:
            slope = torch.ops.aten.threshold_backward(slope, self._y, 0)
        back = slope if self.is_first else torch.bmm(slope, self._weight[:rows])
        weight = torch.bmm(slope.transpose(1, 2), self._x)
        strides = (0, stage.outputs * stage.inputs, stage.inputs)
        descend(desk, stage.at.weight, Slope(weight, strides, stage.outputs, stage.inputs), rows)
        if stage.at.bias >= 0:
            strides = (0, stage.outputs, 1)
            descend(desk, stage.at.bias, Slope(slope.sum(1), strides, stage.outputs, 1), rows)
        return back


def _view(desk: StaticBuffers, at: Tensors, outputs: int, inputs: int) -> Tensor:
    """A weight of every row, [M, outputs, inputs], sharing memory with the flat models."""
    flat = desk.parameters[:, at.weight : at.weight + outputs * inputs]
    return flat.view(-1, outputs, inputs)


def works_of(
    stages: tuple[Stage, ...], desk: StaticBuffers, precision: str, trains: bool = True
) -> list[ConvWork | DenseWork]:
    """All stages with their buffers."""
    return [
        ConvWork(stage, desk, precision, is_first=place == 0, trains=trains)
        if isinstance(stage, Conv)
        else DenseWork(stage, desk, place == 0)
        for place, stage in enumerate(stages)
    ]


class ChainStep:
    """One mini-batch of plain SGD for the first rows of a desk, without autograd."""

    compiles = staticmethod(compile_together)  # its kernels, before it is recorded

    def __init__(
        self, stages: tuple[Stage, ...], desk: StaticBuffers, samples: Samples, precision: str
    ) -> None:
        self.desk, self.samples = desk, samples
        rows = (desk.height, desk.batch)
        self._x = torch.empty(*rows, *samples.shape, device=samples.x.device)
        self._y = torch.empty(*rows, dtype=torch.int32, device=samples.x.device)
        last = stages[-1].outputs
        self._slope = torch.empty(*rows, last, device=samples.x.device)  # type: ignore[arg-type]
        self._works = works_of(stages, desk, precision)
        channels = samples.shape[0]
        self._scale = samples.scale.reshape(-1).expand(channels).contiguous()
        self._shift = samples.shift.reshape(-1).expand(channels).contiguous()

    def __call__(self, rows: int) -> None:
        """Gather, forward, loss, backward with the updates on the way."""
        desk = self.desk
        x = self._gather(rows)
        for work in self._works:
            x = work.forward(x, rows)
        classes = self._slope.shape[2]
        launch(
            kernels.cross_entropy, (rows,),
            x, self._y, desk.count, desk.total, self._slope, BATCH=desk.batch, CLASSES=classes,
            BLOCK_B=power(desk.batch, 2), BLOCK_C=power(classes, 2),
        )  # fmt: skip
        gradient = self._slope
        for work in reversed(self._works):
            gradient = work.backward(gradient, rows)
        desk.step.add_(1)

    def _gather(self, rows: int) -> Tensor:
        desk, size = self.desk, math.prod(self.samples.shape)
        launch(
            kernels.gather_samples, (rows, desk.batch),
            self.samples.x, self.samples.y, self._scale, self._shift, desk.table, desk.counts,
            desk.step, self._x, self._y, desk.count, desk.height, desk.batch, SIZE=size,
            PLANE=size // self.samples.shape[0], BLOCK=power(size, 64) // 4,
        )  # fmt: skip
        return self._x
