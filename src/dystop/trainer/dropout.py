"""Dropout with an address: which numbers fall out is fixed by worker, training and step alone.

Torch's own dropout draws from one generator per device, so models that use it must train one after
the other, and another device draws other numbers. Here every number of a layer's input has an
address of its own (`dystop.rng`): models with dropout train side by side, stacked or recorded, and
drop the same numbers on every device.
"""

import copy
from collections import Counter

import torch
from torch import Tensor, nn

from dystop.trainer.device_bits import below, device_deeper

ADDRESS = "address"


class AddressedDropout(nn.Module):
    """As `nn.Dropout`; the address of a mini-batch comes in by a buffer that is no state."""

    address: Tensor

    def __init__(self, share: float, place: int) -> None:
        super().__init__()
        self.share, self.place = share, place
        self.register_buffer(ADDRESS, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Drop a share of the numbers and raise the others; nothing changes outside training."""
        if not self.training or self.share == 0:
            return x
        if self.share == 1:
            return torch.zeros_like(x)
        layer = device_deeper(self.address, self.place)
        number = torch.arange(x.numel(), device=x.device).view(x.shape)
        falls = below(device_deeper(layer, number), self.share)
        return torch.where(falls, 0.0, x / (1 - self.share))


def with_addresses(module: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """A copy of the module whose dropout layers take addresses.

    A layer that is used more than once in a pass keeps drawing from torch's generator: with one
    address it would drop the same numbers each time.
    """
    module = copy.deepcopy(module)
    uses = _uses(module, shape)
    once = [layer for layer in module.modules() if type(layer) is nn.Dropout and uses[layer] <= 1]
    places = {layer: AddressedDropout(layer.p, place) for place, layer in enumerate(once)}
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child in places:
                setattr(parent, name, places[child].train(child.training))
    return module


def _uses(module: nn.Module, shape: tuple[int, ...]) -> Counter[nn.Module]:
    """How often each dropout layer is used in a pass, found out by trying on the CPU."""
    found: Counter[nn.Module] = Counter()
    layers = [layer for layer in module.modules() if type(layer) is nn.Dropout]
    if not layers:
        return found
    trial = copy.deepcopy(module).to("cpu").train()
    twins = [layer for layer in trial.modules() if type(layer) is nn.Dropout]
    origin = dict(zip(twins, layers, strict=True))
    for twin in twins:
        twin.register_forward_hook(lambda layer, *_: found.update([origin[layer]]))
    trial(torch.zeros(2, *shape))
    return found


def address_names(module: nn.Module) -> tuple[str, ...]:
    """The buffers that take an address, by name."""
    return tuple(
        f"{name}.{ADDRESS}"
        for name, layer in module.named_modules()
        if isinstance(layer, AddressedDropout)
    )
