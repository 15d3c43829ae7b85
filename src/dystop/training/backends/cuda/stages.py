"""The stages of a small network that the Triton kernels compute, derived from its layers.

A stage is one pass of the kernels: a convolution with its ReLU and its max-pooling, or a linear
layer with its ReLU.
"""

from dataclasses import dataclass, replace

from torch import nn

from dystop.training.backends.layers import Kind, Layer, Refusal, Volume, read_layers
from dystop.training.flat import Layout

MAX_WINDOW = 255  # positions of a pooling window, which a kernel numbers in one byte


@dataclass(frozen=True)
class ConvStage:
    """A square convolution of stride 1, then max-pooling and ReLU where the network has them."""

    weight: int  # first float in the flat model
    bias: int | None
    inputs: Volume
    filters: int
    kernel: int
    relu: bool = False
    pool: int = 1

    @property
    def convolved(self) -> Volume:
        """Shape before the pooling."""
        _, height, width = self.inputs
        return self.filters, height - self.kernel + 1, width - self.kernel + 1

    @property
    def outputs(self) -> Volume:
        """Shape after the pooling."""
        filters, height, width = self.convolved
        return filters, height // self.pool, width // self.pool


@dataclass(frozen=True)
class LinearStage:
    """A linear layer, then ReLU where the network has one."""

    weight: int  # first float in the flat model
    bias: int | None
    inputs: int
    outputs: int
    relu: bool = False


Stage = ConvStage | LinearStage


def stages_of(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> tuple[Stage, ...]:
    """Return the stages of a module that takes samples of this shape.

    Raises:
        Refusal: The module has a layer that these kernels cannot compute.
    """
    if layout.kept or layout.counted:
        raise Refusal("it has buffers or frozen parameters")
    stages: list[Stage] = []
    for layer in read_layers(module, layout, shape):
        if layer.kind is Kind.CONVOLUTION:
            stages.append(_conv_stage(layer))
        elif layer.kind is Kind.LINEAR:
            features = (layer.inputs[0], layer.outputs[0])
            stages.append(LinearStage(layer.weight, layer.bias, *features, layer.relu))
        elif stages:
            stages[-1] = _with_pooling(stages[-1], layer)
        else:
            raise Refusal("it begins with a pooling")
    if not isinstance(stages[-1], LinearStage):
        raise Refusal("its last layer is not linear")
    return tuple(stages)


def stages_if_supported(
    module: nn.Module, layout: Layout, shape: tuple[int, ...]
) -> tuple[Stage, ...] | None:
    """Return the stages of a module, or None where the kernels cannot compute it."""
    try:
        return stages_of(module, layout, shape)
    except Refusal:
        return None


def _conv_stage(layer: Layer) -> ConvStage:
    kernel = layer.kernel[0]
    if layer.kernel != (kernel, kernel) or layer.stride != (1, 1) or layer.padding != (0, 0):
        raise Refusal(
            f"a convolution has kernel {layer.kernel}, stride {layer.stride} and padding "
            f"{layer.padding}; supported: a square kernel, stride 1, padding 0"
        )
    filters = layer.outputs[0]
    return ConvStage(layer.weight, layer.bias, layer.inputs, filters, kernel, layer.relu)


def _with_pooling(stage: Stage, layer: Layer) -> Stage:
    """Return a convolution stage that also does this pooling."""
    side = layer.kernel[0]
    is_plain = layer.kernel == layer.stride == (side, side) and side * side < MAX_WINDOW
    if (
        layer.kind is not Kind.MAX_POOL
        or not is_plain
        or not isinstance(stage, ConvStage)
        or stage.pool != 1
    ):
        raise Refusal(
            f"a pooling has kernel {layer.kernel} and stride {layer.stride}; supported: one "
            f"max-pooling after a convolution, square, with stride = kernel"
        )
    return replace(stage, pool=side, relu=stage.relu or layer.relu)
