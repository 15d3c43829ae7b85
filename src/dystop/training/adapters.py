"""Adapters (LoRA): a frozen base that all workers share, and small matrices that each one trains.

A linear layer W x + b becomes W x + b + (alpha / r) B A x, with A [r, in] and B [out, r] (Hu et al.
2022). Only A and B are stacked, trained, mixed and sent. The base stays inside the module, once for
each device. B begins with zeros, so that the first model is the base.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dystop.errors import ConfigError
from dystop.training.randomness import seed_generators

TRAINED = ("lora_a", "lora_b")


@dataclass(frozen=True)
class Adapter:
    """What is added to a base."""

    rank: int
    alpha: float
    layers: tuple[str, ...] = ()  # ends of the names of linear layers; empty: all of them


class LowRank(nn.Module):
    """A frozen linear layer, and a product of two small matrices that is trained."""

    def __init__(self, base: nn.Linear, adapter: Adapter) -> None:
        super().__init__()
        self.base, self.scale = base, adapter.alpha / adapter.rank
        self.lora_a = nn.Parameter(torch.empty(adapter.rank, base.in_features))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, adapter.rank))
        nn.init.kaiming_uniform_(self.lora_a, a=5**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """Return W x + b + (alpha / r) B A x."""
        added = F.linear(F.linear(x, self.lora_a), self.lora_b)
        out: Tensor = self.base(x) + self.scale * added
        return out


def with_adapters(module: nn.Module, adapter: Adapter, seed: int) -> nn.Module:
    """Return a copy of the module whose chosen linear layers have adapters, and alone are trained.

    Raises:
        ConfigError: The module has no such layer, or batch norm, which would change the base.

    >>> adapted = with_adapters(nn.Sequential(nn.Linear(6, 4)), Adapter(2, 4.0), seed=0)
    >>> sum(p.numel() for p in adapted.parameters() if p.requires_grad)
    20
    """
    module = copy.deepcopy(module)
    if name := next((name for name, _ in module.named_buffers()), None):
        raise ConfigError(
            f"model.adapter = 'lora': training would change the buffer {name!r} of the base, which "
            "all workers share; use a model without buffers, and so without batch norm"
        )
    chosen = [name for name, layer in module.named_modules() if _is_chosen(name, layer, adapter)]
    if not chosen:
        linear = [name for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
        raise ConfigError(
            f"model.lora.layers = {list(adapter.layers)} chooses no layer of the model; its linear "
            f"layers are: {', '.join(linear) or 'none'}"
        )
    for parameter in module.parameters():
        parameter.requires_grad_(False)
    with seed_generators(torch.device("cpu"), seed, "adapter"):
        for name in chosen:
            _replace(module, name, adapter)
    return module


def _is_chosen(name: str, layer: nn.Module, adapter: Adapter) -> bool:
    ends = adapter.layers
    return type(layer) is nn.Linear and (not ends or name.endswith(ends))


def _replace(module: nn.Module, name: str, adapter: Adapter) -> None:
    parent_name, _, child = name.rpartition(".")
    parent = module.get_submodule(parent_name)
    layer = getattr(parent, child)
    setattr(parent, child, LowRank(layer, adapter))


def held_once(module: nn.Module) -> frozenset[str]:
    """Return the names of the tensors that all workers share: those of a base with adapters."""
    if not any(isinstance(layer, LowRank) for layer in module.modules()):
        return frozenset()
    names = (name for name, _ in module.named_parameters())
    return frozenset(name for name in names if not name.endswith(TRAINED))


def copied(module: nn.Module) -> nn.Module:
    """Return a copy of a module that shares the base with it."""
    held = held_once(module)
    shared = {id(tensor): tensor for name, tensor in module.named_parameters() if name in held}
    return copy.deepcopy(module, shared)


def parameters_of(module: nn.Module, names: Sequence[str] | frozenset[str]) -> int:
    """Return how many numbers some tensors of a module have together."""
    return sum(p.numel() for name, p in module.named_parameters() if name in names)
