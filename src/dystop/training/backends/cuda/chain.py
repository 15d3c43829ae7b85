"""Small networks as a chain of stages, which the kernels of this package can train."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from dystop.training.flat import Layout


@dataclass(frozen=True)
class Tensors:
    """Where a layer's weight and bias begin in the flat model; no bias: -1."""

    weight: int
    bias: int


@dataclass(frozen=True)
class Conv:
    """A square convolution of stride 1, then ReLU and max-pooling where asked for."""

    at: Tensors
    inputs: tuple[int, int, int]  # channels, height, width
    filters: int
    kernel: int
    relu: bool = False
    pool: int = 1

    @property
    def inner(self) -> tuple[int, int, int]:
        """Shape before pooling."""
        _, height, width = self.inputs
        return self.filters, height - self.kernel + 1, width - self.kernel + 1

    @property
    def outputs(self) -> tuple[int, int, int]:
        """Shape behind pooling."""
        filters, height, width = self.inner
        return filters, height // self.pool, width // self.pool


@dataclass(frozen=True)
class Dense:
    """A fully-connected layer, then ReLU where asked for."""

    at: Tensors
    inputs: int
    outputs: int
    relu: bool = False


Stage = Conv | Dense


class NotAChain(Exception):
    """The module has a part that the kernels do not know; the message names it."""


def stages_of(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> tuple[Stage, ...]:
    """Read the stages off an `nn.Sequential`.

    Raises:
        NotAChain: The module is something else.
    """
    if layout.kept or layout.counted:
        raise NotAChain("it has buffers or frozen parameters")
    offsets = _offsets(layout)
    stages: list[Stage] = []
    now: tuple[int, ...] = shape
    for name, layer in _leaves(module, ""):
        now = _add(stages, layer, _tensors(offsets, name), now)
    if not stages or not isinstance(stages[-1], Dense):
        raise NotAChain("its last layer is not fully connected")
    return tuple(stages)


def chain_of(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> tuple[Stage, ...] | None:
    """The stages of a module, or nothing where the kernels do not know it."""
    try:
        return stages_of(module, layout, shape)
    except NotAChain:
        return None


def _offsets(layout: Layout) -> dict[str, int]:
    found, at = {}, 0
    for slot in layout.trained:
        found[slot.name] = at
        at += slot.numel
    return found


def _tensors(offsets: dict[str, int], name: str) -> Tensors:
    return Tensors(offsets.get(f"{name}.weight", -1), offsets.get(f"{name}.bias", -1))


def _leaves(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Layers of nested `nn.Sequential`s in order, by name."""
    if type(module) is not nn.Sequential:
        if prefix:
            yield prefix, module
            return
        raise NotAChain(f"{type(module).__name__} is not an nn.Sequential")
    for name, child in module.named_children():
        yield from _leaves(child, f"{prefix}.{name}" if prefix else name)


def _add(
    stages: list[Stage], layer: nn.Module, at: Tensors, shape: tuple[int, ...]
) -> tuple[int, ...]:
    """Append a layer to the chain, or fold it into the last stage; returns the new shape."""
    if type(layer) is nn.Conv2d:
        stages.append(conv := _conv(layer, at, shape))
        return conv.outputs
    if type(layer) is nn.Linear:
        if shape != (layer.in_features,):
            raise NotAChain(f"{layer} meets samples of shape {shape}")
        stages.append(Dense(at, layer.in_features, layer.out_features))
        return (layer.out_features,)
    if type(layer) is nn.Flatten and (layer.start_dim, layer.end_dim) == (1, -1):
        return (math.prod(shape),)
    if type(layer) is nn.Identity:
        return shape
    return _fold(stages, layer, shape)


def _conv(layer: nn.Conv2d, at: Tensors, shape: tuple[int, ...]) -> Conv:
    plain = (
        layer.stride == (1, 1)
        and layer.padding == (0, 0)
        and layer.dilation == (1, 1)
        and layer.groups == 1
        and layer.kernel_size[0] == layer.kernel_size[1]
    )
    if not plain or len(shape) != 3:
        raise NotAChain(f"{layer} is not a plain square convolution of stride 1")
    return Conv(at, (shape[0], shape[1], shape[2]), layer.out_channels, layer.kernel_size[0])


def _fold(stages: list[Stage], layer: nn.Module, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Let the last stage do a ReLU or a max-pooling too."""
    last = stages[-1] if stages else None
    if type(layer) is nn.ReLU and last is not None and shape == _shape(last):
        stages[-1] = _with(last, relu=True)
        return shape
    if type(layer) is nn.MaxPool2d and isinstance(last, Conv) and last.pool == 1:
        side = layer.kernel_size
        if isinstance(side, int) and _is_plain(layer, side) and shape == last.outputs:
            stages[-1] = _with(last, pool=side)
            return _shape(stages[-1])
    raise NotAChain(f"{layer} has no kernel here")


def _is_plain(layer: nn.MaxPool2d, side: int) -> bool:
    plain = layer.stride == side and layer.padding == 0 and layer.dilation == 1
    return plain and side * side < 255 and not (layer.ceil_mode or layer.return_indices)


def _shape(stage: Stage) -> tuple[int, ...]:
    return stage.outputs if isinstance(stage, Conv) else (stage.outputs,)


def _with(stage: Stage, **changes: Any) -> Stage:
    changed: Stage = replace(stage, **changes)
    return changed
