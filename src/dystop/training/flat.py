"""A model as one flat vector, which is mixed, sent, stored and stacked.

The vector holds the P trainable parameters first, then all other floats: frozen parameters and
float buffers such as the running statistics of batch norm. Integer buffers ("counters") have a
vector of their own, because they are never averaged. The state of an optimiser may follow the
model in either vector (`training.optimisers`).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dystop.errors import ConfigError
from dystop.training.adapters import held_once


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor of a module: its name, shape and type."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numel(self) -> int:
        """Number of elements of the tensor."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The order of a module's tensors in a flat vector [W] and a counter vector [C]."""

    trained: tuple[Slot, ...]  # parameters that are trained
    kept: tuple[Slot, ...]  # frozen parameters and float buffers
    counted: tuple[Slot, ...]  # integer and boolean buffers
    carried: tuple[Slot, ...] = ()  # optimiser state that is mixed and sent with the model
    own: tuple[Slot, ...] = ()  # optimiser state that stays with its worker, after the counters

    @property
    def parameters(self) -> int:
        """Number of trainable parameters P."""
        return sum(slot.numel for slot in self.trained)

    @property
    def width(self) -> int:
        """Number of floats of one model, W."""
        return self.parameters + sum(slot.numel for slot in (*self.kept, *self.carried))

    @property
    def counters(self) -> int:
        """Number of integers of one model, C."""
        return sum(slot.numel for slot in (*self.counted, *self.own))

    @property
    def model_bytes(self) -> int:
        """Bytes of one model on the wire; counters are not sent."""
        return 4 * self.width

    def flatten(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """Copy a module's tensors into a vector [W] and counters [C]."""
        tensors = dict(_named(module))
        floats = [tensors[s.name].reshape(-1).float() for s in (*self.trained, *self.kept)]
        whole = [tensors[s.name].reshape(-1).long() for s in self.counted]
        device = floats[0].device
        # An optimiser begins with zeros.
        state = torch.zeros(sum(slot.numel for slot in self.carried), device=device)
        own = sum(slot.numel for slot in self.own)
        none = torch.zeros(own, dtype=torch.int64, device=device)
        return torch.cat([*floats, state]).detach(), torch.cat([*whole, none])

    def unflatten(self, vector: Tensor, counters: Tensor) -> dict[str, Tensor]:
        """View vectors [..., W] and [..., C] as the named tensors that `functional_call` takes.

        The state of an optimiser is left out.
        A leading stack dimension stays in front of every shape. The views share memory with the
        vectors, so a module that updates a buffer in place updates the vector.
        """
        kept, counted = (sum(slot.numel for slot in s) for s in (self.kept, self.counted))
        cut = self.parameters
        return self.named(vector[..., :cut], vector[..., cut : cut + kept], counters[..., :counted])

    def named(self, parameters: Tensor, kept: Tensor, counters: Tensor) -> dict[str, Tensor]:
        """View parameters [..., P], buffers [..., W - P] and counters [..., C] as named tensors."""
        return {
            **_views(self.trained, parameters),
            **_views(self.kept, kept),
            **_views(self.counted, counters),
        }


def _views(slots: tuple[Slot, ...], flat: Tensor) -> dict[str, Tensor]:
    """Split a flat tensor into named views, at once: the gradient is then one concatenation."""
    if not slots:
        return {}
    pieces = flat.split_with_sizes([slot.numel for slot in slots], -1)
    lead = flat.shape[:-1]
    return {
        slot.name: _as_stored(piece.view((*lead, *slot.shape)), slot.dtype)
        for slot, piece in zip(slots, pieces, strict=True)
    }


def _as_stored(view: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert booleans and short integers back (as a copy); other types stay views."""
    return view if dtype.is_floating_point or dtype == torch.int64 else view.to(dtype)


def _named(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Yield parameters and buffers by name; a shared tensor appears once."""
    yield from module.named_parameters()
    yield from module.named_buffers()


def layout_of(module: nn.Module) -> Layout:
    """Return the layout of a module. The base of adapters is no part of it.

    >>> layout_of(nn.BatchNorm1d(3)).width, layout_of(nn.BatchNorm1d(3)).counters
    (12, 1)
    """
    trained, kept, counted = [], [], []
    held = held_once(module)
    for name, tensor in _named(module):
        if name in held:
            continue
        slot = Slot(name, tuple(tensor.shape), tensor.dtype)
        if tensor.is_complex():
            raise ConfigError(f"model: tensor {name!r} is complex; only real tensors can be mixed")
        if not tensor.is_floating_point():
            counted.append(slot)
        elif tensor.requires_grad:
            trained.append(slot)
        else:
            kept.append(slot)
    return Layout(tuple(trained), tuple(kept), tuple(counted))
