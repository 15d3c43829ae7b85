"""What a module allows: whether it draws random numbers, couples samples, or can be stacked."""

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from dystop.trainer.dropout import address_names
from dystop.trainer.flat import Layout


def draws_numbers(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the module draws random numbers while it trains, as dropout does.

    Found out by trying, so that a user's own module is judged by what it does.
    """
    trial = copy.deepcopy(module).to("cpu").train()
    with torch.random.fork_rng(devices=[]):
        before = torch.random.get_rng_state()
        trial(torch.zeros(2, *shape))
        return not torch.equal(before, torch.random.get_rng_state())


def mixes_samples(module: nn.Module) -> bool:
    """Whether a sample's result depends on the rest of its mini-batch.

    True for batch norm, and assumed of any module that keeps a buffer.
    """
    has_norm = any(isinstance(m, _BatchNorm) for m in module.modules())
    addresses = address_names(module)
    return has_norm or any(name not in addresses for name, _ in module.named_buffers())


def takes_single_samples(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the module can train on a mini-batch of one sample; some batch norms cannot."""
    try:
        copy.deepcopy(module).to("cpu")(torch.zeros(1, *shape))
    except ValueError:
        return False
    return True


def why_not_stacked(module: nn.Module, layout: Layout, shape: tuple[int, ...]) -> str | None:
    """Reason why two models of this kind cannot be trained in one stack, or None if they can."""
    if draws_numbers(module, shape):
        return "it draws random numbers (dropout), which a stack cannot draw by address"
    vector, counters = layout.flatten(module)
    state = layout.unflatten(vector.repeat(2, 1), counters.repeat(2, 1))
    state |= {slot.name: state[slot.name].contiguous() for slot in layout.kept}

    def call(one: dict[str, Tensor], x: Tensor) -> Tensor:
        out: Tensor = functional_call(module, one, (x,))
        return out

    try:
        vmap(call)(state, _zeros(module, (2, 2, *shape)))
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return f"torch.func.vmap refuses it ({str(error).splitlines()[0]})"
    return None


def _zeros(module: nn.Module, shape: tuple[int, ...]) -> Tensor:
    """Empty samples on the module's device."""
    return torch.zeros(shape, device=next(module.parameters()).device)
