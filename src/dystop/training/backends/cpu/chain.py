"""Reading a torch module as a chain of layers that the fused kernels can compute."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from torch import nn

from dystop.training.flat import Layout

CONVOLUTION, LINEAR, MAX_POOL, MEAN_POOL = range(4)
Pair = tuple[int, int]  # rows, columns
Volume = tuple[int, int, int]  # channels, rows, columns


class Refusal(Exception):
    """The fused kernels cannot compute a module; says why."""


@dataclass(frozen=True)
class Link:
    """One layer with weights, or one pooling; a rectifier belongs to the link before it."""

    kind: int
    shape: Volume  # of its input
    out: Volume
    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    rim: Pair = (0, 0)  # zeros around the input
    weight: int = 0  # place in the flat model
    bias: int | None = None
    trains: tuple[bool, bool] = (False, False)  # weight, bias
    rectifies: bool = False

    @property
    def taps(self) -> int:
        """Inputs that one output is made of."""
        channels = self.shape[0] if self.kind in (CONVOLUTION, LINEAR) else 1
        return channels * prod(self.kernel)


@dataclass(frozen=True)
class Chain:
    """What has been read so far."""

    links: tuple[Link, ...]
    shape: Volume
    is_flat: bool  # there is one number for each channel

    def then(self, link: Link, is_flat: bool = False) -> "Chain":
        """One link more."""
        return Chain((*self.links, link), link.out, is_flat)


Places = dict[str, tuple[int, bool]]  # where a tensor lies in the flat model, and if it is trained
Step = Callable[[Chain, str, Any, Places], Chain]


def why_not_fused(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> str | None:
    """Reason why the fused kernels cannot train this module, or None if they can.

    >>> from dystop.training.flat import layout_of
    >>> net = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    >>> why_not_fused(net, layout_of(net), (3,))
    "layer '1' (Tanh) has no fused kernel"
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "numba's compiler is switched off (NUMBA_DISABLE_JIT)"
    try:
        read_chain(module, layout, shape)
    except Refusal as reason:
        return str(reason)
    return None


def read_chain(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> tuple[Link, ...]:
    """Read a module that works on samples of this shape.

    Raises:
        Refusal: Where it is more than a chain of known layers.
    """
    if len(shape) not in (1, 3):
        raise Refusal(f"samples of shape {shape} are neither images nor plain vectors")
    volume = (shape[0], 1, 1) if len(shape) == 1 else (shape[0], shape[1], shape[2])
    chain, places = Chain((), volume, len(shape) == 1), _places(layout)
    for name, layer in _leaves(module, ""):
        step = _STEPS.get(type(layer))
        if step is None:
            raise _refusal(name, layer, "has no fused kernel")
        chain = step(chain, name, layer, places)
    if not chain.is_flat or not any(link.kind in (CONVOLUTION, LINEAR) for link in chain.links):
        raise Refusal("it does not end in one score for each class")
    return chain.links


def _places(layout: Layout) -> Places:
    """Where every tensor lies in the flat model."""
    places: Places = {}
    place = 0
    for slots, is_trained in ((layout.trained, True), (layout.kept, False)):
        for slot in slots:
            places[slot.name] = place, is_trained
            place += slot.numel
    return places


def _leaves(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Layers in the order in which they are applied, with their names."""
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


def _tensors(name: str, layer: Any, places: Places) -> dict[str, Any]:
    """Places of a layer's weight and bias."""
    prefix = f"{name}." if name else ""
    wanted = [f"{prefix}weight", *([] if layer.bias is None else [f"{prefix}bias"])]
    if any(tensor not in places for tensor in wanted):
        raise _refusal(name, layer, "shares its weights with another layer")
    (weight, first), *rest = (places[tensor] for tensor in wanted)
    bias, second = rest[0] if rest else (None, False)
    return {"weight": weight, "bias": bias, "trains": (first, second)}


def _convolution(chain: Chain, name: str, layer: Any, places: Places) -> Chain:
    if layer.groups != 1 or layer.dilation != (1, 1) or layer.padding_mode != "zeros":
        raise _refusal(name, layer, "has groups, dilation or a padding other than zeros")
    if layer.padding == "same":
        raise _refusal(name, layer, "has its padding given as a word")
    rim = (0, 0) if layer.padding == "valid" else layer.padding
    sizes = _sizes(chain, name, layer, (layer.kernel_size, layer.stride, rim))
    if chain.shape[0] != layer.in_channels:
        raise _refusal(name, layer, f"is given {chain.shape[0]} channels")
    out = (layer.out_channels, *sizes)
    how = _tensors(name, layer, places)
    window = {"kernel": layer.kernel_size, "stride": layer.stride, "rim": rim}
    return chain.then(Link(CONVOLUTION, chain.shape, out, **window, **how))


def _sizes(chain: Chain, name: str, layer: nn.Module, window: tuple[Pair, Pair, Pair]) -> Pair:
    """Rows and columns of what a moving window (kernel, stride, rim) leaves."""
    if chain.is_flat:
        raise _refusal(name, layer, "comes after the images have been flattened")
    rows, columns = (
        (size + 2 * rim - kernel) // stride + 1
        for size, kernel, stride, rim in zip(chain.shape[1:], *window, strict=True)
    )
    if min(rows, columns) < 1:
        raise _refusal(name, layer, f"has a window larger than its input of {chain.shape[1:]}")
    return rows, columns


def _linear(chain: Chain, name: str, layer: Any, places: Places) -> Chain:
    if not chain.is_flat or chain.shape[0] != layer.in_features:
        raise _refusal(name, layer, f"is given {chain.shape}, not {layer.in_features} features")
    out = (layer.out_features, 1, 1)
    link = Link(LINEAR, chain.shape, out, **_tensors(name, layer, places))
    return chain.then(link, is_flat=True)


def _pooling(chain: Chain, name: str, layer: Any, _: Places) -> Chain:
    is_largest = isinstance(layer, nn.MaxPool2d)
    odd = (layer.return_indices, layer.dilation != 1) if is_largest else (layer.divisor_override,)
    if any(odd) or layer.ceil_mode or _pair(layer.padding) != (0, 0):
        raise _refusal(name, layer, "has padding, dilation, indices, a divisor or ceil_mode")
    kernel = _pair(layer.kernel_size)
    stride = _pair(layer.stride or layer.kernel_size)
    out = (chain.shape[0], *_sizes(chain, name, layer, (kernel, stride, (0, 0))))
    kind = MAX_POOL if is_largest else MEAN_POOL
    link = Link(kind, chain.shape, out, kernel, stride)
    if is_largest and chain.links and chain.links[-1].rectifies:
        # The largest of rectified numbers is the rectified largest: fewer numbers to rectify.
        before = replace(chain.links[-1], rectifies=False)
        chain = replace(chain, links=(*chain.links[:-1], before))
        link = replace(link, rectifies=True)
    return chain.then(link)


def _pair(size: int | Pair) -> Pair:
    return (size, size) if isinstance(size, int) else (size[0], size[1])


def _rectifier(chain: Chain, name: str, layer: nn.Module, _: Places) -> Chain:
    if not chain.links:
        raise _refusal(name, layer, "comes before any layer with weights")
    last = replace(chain.links[-1], rectifies=True)
    return replace(chain, links=(*chain.links[:-1], last))


def _flatten(chain: Chain, name: str, layer: Any, _: Places) -> Chain:
    if (layer.start_dim, layer.end_dim) != (1, -1):
        raise _refusal(name, layer, "does not flatten whole samples")
    return Chain(chain.links, (prod(chain.shape), 1, 1), True)


def _same(chain: Chain, _: str, __: nn.Module, ___: Places) -> Chain:
    return chain


_STEPS: dict[type[nn.Module], Step] = {
    nn.Conv2d: _convolution,
    nn.Linear: _linear,
    nn.MaxPool2d: _pooling,
    nn.AvgPool2d: _pooling,
    nn.ReLU: _rectifier,
    nn.Flatten: _flatten,
    nn.Identity: _same,
}
