"""A network as a chain of layers, read once from its `nn.Module`.

The compiled back ends do not run torch modules. They need to know which layers a network has, in
which order, and where the weights of each layer lie in the flat model. `read_layers` answers this,
or raises a `Refusal` that names the layer which no kernel can compute. Each back end then derives
what its own kernels need (`backends.cpu.arena`, `backends.cuda.stages`).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import prod
from typing import Any

from torch import nn

from dystop.training.flat import Layout

Pair = tuple[int, int]  # rows, columns
Volume = tuple[int, int, int]  # channels, rows, columns


class Refusal(Exception):
    """A module is not a chain of layers that the kernels can compute; the message says why."""


class Kind(Enum):
    """What a layer computes."""

    CONVOLUTION = auto()
    LINEAR = auto()
    MAX_POOL = auto()
    MEAN_POOL = auto()


@dataclass(frozen=True)
class Layer:
    """One layer with weights, or one pooling, with the ReLU that follows it.

    A vector of features is a volume of so many channels, one row and one column. A linear layer is
    then a convolution with a 1x1 kernel.
    """

    kind: Kind
    inputs: Volume
    outputs: Volume
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)  # zeros around the input
    weight: int = 0  # first float of the weight in the flat model
    bias: int | None = None  # first float of the bias; None without a bias
    trained: tuple[bool, bool] = (False, False)  # whether weight and bias are trained
    relu: bool = False

    @property
    def has_weights(self) -> bool:
        """Whether the layer is a convolution or a linear layer."""
        return self.kind in (Kind.CONVOLUTION, Kind.LINEAR)

    @property
    def taps(self) -> int:
        """Number of inputs that one output is computed from."""
        return (self.inputs[0] if self.has_weights else 1) * prod(self.kernel)


def read_layers(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> tuple[Layer, ...]:
    """Read the layers of a module that takes samples of this shape.

    Raises:
        Refusal: The module is not a chain of known layers that ends in class scores.

    >>> from dystop.training.flat import layout_of
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.ReLU())
    >>> (layer,) = read_layers(net, layout_of(net), (3,))
    >>> layer.outputs, layer.bias, layer.relu
    ((2, 1, 1), 6, True)
    """
    if len(shape) not in (1, 3):
        raise Refusal(f"samples of shape {shape} are neither images nor vectors")
    volume = (shape[0], 1, 1) if len(shape) == 1 else (shape[0], shape[1], shape[2])
    chain, tensors = _Chain((), volume, is_flat=len(shape) == 1), _tensors(layout)
    for name, layer in _leaves(module, ""):
        reader = _READERS.get(type(layer))
        if reader is None:
            raise _refusal(name, layer, "has no kernel")
        chain = reader(chain, name, layer, tensors)
    if not chain.is_flat or not any(layer.has_weights for layer in chain.layers):
        raise Refusal("it does not end in one score for each class")
    return chain.layers


@dataclass(frozen=True)
class _Chain:
    """The layers that have been read so far."""

    layers: tuple[Layer, ...]
    outputs: Volume  # of the last layer
    is_flat: bool  # the outputs are a vector

    def append(self, layer: Layer, is_flat: bool = False) -> "_Chain":
        """Add a layer at the end."""
        return _Chain((*self.layers, layer), layer.outputs, is_flat)

    def with_relu(self, relu: bool) -> "_Chain":
        """Add a ReLU to the last layer, or take it away."""
        return replace(self, layers=(*self.layers[:-1], replace(self.layers[-1], relu=relu)))


_Tensors = dict[str, tuple[int, bool]]  # name: first float in the flat model, whether it is trained
_Reader = Callable[[_Chain, str, Any, _Tensors], _Chain]


def _tensors(layout: Layout) -> _Tensors:
    found: _Tensors = {}
    offset = 0
    for slots, is_trained in ((layout.trained, True), (layout.kept, False)):
        for slot in slots:
            found[slot.name] = offset, is_trained
            offset += slot.numel
    return found


def _leaves(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers of nested `nn.Sequential`s in the order of the forward pass, by name."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if any(getattr(module, hook) for hook in hooks):
        raise _refusal(name, module, "has hooks")
    if type(module).forward is nn.Sequential.forward:
        for child, part in module._modules.items():  # named_children() leaves out repetitions
            if part is not None:
                yield from _leaves(part, f"{name}.{child}" if name else child)
    else:
        yield name, module


def _refusal(name: str, layer: nn.Module, why: str) -> Refusal:
    return Refusal(f"layer {name!r} ({type(layer).__name__}) {why}")


def _weights(name: str, layer: Any, tensors: _Tensors) -> dict[str, Any]:
    """Return the fields of `Layer` that say where weight and bias lie."""
    prefix = f"{name}." if name else ""
    wanted = [f"{prefix}weight", *([] if layer.bias is None else [f"{prefix}bias"])]
    if any(tensor not in tensors for tensor in wanted):
        raise _refusal(name, layer, "shares its weights with another layer")
    (weight, trains_weight), *rest = (tensors[tensor] for tensor in wanted)
    bias, trains_bias = rest[0] if rest else (None, False)
    return {"weight": weight, "bias": bias, "trained": (trains_weight, trains_bias)}


def _read_convolution(chain: _Chain, name: str, layer: Any, tensors: _Tensors) -> _Chain:
    if layer.groups != 1 or layer.dilation != (1, 1) or layer.padding_mode != "zeros":
        raise _refusal(name, layer, "has groups, dilation or a padding other than zeros")
    if layer.padding == "same":
        raise _refusal(name, layer, "has padding = 'same'; numbers are supported")
    padding = (0, 0) if layer.padding == "valid" else layer.padding
    size = _output_size(chain, name, layer, (layer.kernel_size, layer.stride, padding))
    if chain.outputs[0] != layer.in_channels:
        raise _refusal(name, layer, f"is given {chain.outputs[0]} channels")
    outputs = (layer.out_channels, *size)
    window = {"kernel": layer.kernel_size, "stride": layer.stride, "padding": padding}
    weights = _weights(name, layer, tensors)
    return chain.append(Layer(Kind.CONVOLUTION, chain.outputs, outputs, **window, **weights))


def _output_size(
    chain: _Chain, name: str, layer: nn.Module, window: tuple[Pair, Pair, Pair]
) -> Pair:
    """Return rows and columns of the output of a sliding window (kernel, stride, padding)."""
    if chain.is_flat:
        raise _refusal(name, layer, "comes after the images have been flattened")
    rows, columns = (
        (size + 2 * padding - kernel) // stride + 1
        for size, kernel, stride, padding in zip(chain.outputs[1:], *window, strict=True)
    )
    if min(rows, columns) < 1:
        raise _refusal(name, layer, f"has a window larger than its input of {chain.outputs[1:]}")
    return rows, columns


def _read_linear(chain: _Chain, name: str, layer: Any, tensors: _Tensors) -> _Chain:
    if not chain.is_flat or chain.outputs[0] != layer.in_features:
        raise _refusal(name, layer, f"is given {chain.outputs}, not {layer.in_features} features")
    outputs = (layer.out_features, 1, 1)
    weights = _weights(name, layer, tensors)
    return chain.append(Layer(Kind.LINEAR, chain.outputs, outputs, **weights), is_flat=True)


def _read_pooling(chain: _Chain, name: str, layer: Any, _: _Tensors) -> _Chain:
    is_max = isinstance(layer, nn.MaxPool2d)
    unusual = (layer.return_indices, layer.dilation != 1) if is_max else (layer.divisor_override,)
    if any(unusual) or layer.ceil_mode or _pair(layer.padding) != (0, 0):
        raise _refusal(name, layer, "has padding, dilation, indices, a divisor or ceil_mode")
    kernel = _pair(layer.kernel_size)
    stride = _pair(layer.stride or layer.kernel_size)
    outputs = (chain.outputs[0], *_output_size(chain, name, layer, (kernel, stride, (0, 0))))
    kind = Kind.MAX_POOL if is_max else Kind.MEAN_POOL
    pooling = Layer(kind, chain.outputs, outputs, kernel, stride)
    if is_max and chain.layers and chain.layers[-1].relu:
        # ReLU and maximum commute. After the pooling there are fewer numbers to rectify.
        return chain.with_relu(False).append(replace(pooling, relu=True))
    return chain.append(pooling)


def _pair(size: int | Pair) -> Pair:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _read_relu(chain: _Chain, name: str, layer: nn.Module, _: _Tensors) -> _Chain:
    if not chain.layers:
        raise _refusal(name, layer, "comes before any layer with weights")
    return chain.with_relu(True)


def _read_flatten(chain: _Chain, name: str, layer: Any, _: _Tensors) -> _Chain:
    if (layer.start_dim, layer.end_dim) != (1, -1):
        raise _refusal(name, layer, "does not flatten whole samples")
    return _Chain(chain.layers, (prod(chain.outputs), 1, 1), is_flat=True)


def _read_identity(chain: _Chain, _: str, __: nn.Module, ___: _Tensors) -> _Chain:
    return chain


_READERS: dict[type[nn.Module], _Reader] = {
    nn.Conv2d: _read_convolution,
    nn.Linear: _read_linear,
    nn.MaxPool2d: _read_pooling,
    nn.AvgPool2d: _read_pooling,
    nn.ReLU: _read_relu,
    nn.Flatten: _read_flatten,
    nn.Identity: _read_identity,
}
