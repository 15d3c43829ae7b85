"""Torch's own randomness, given an address for a while and put back afterwards.

Module construction and dropout draw from torch's global generators and cannot be handed another
one; `addressed` seeds those generators from `dystop.rng` and restores them when it is left.
"""

import copy
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from dystop.rng import bits


def restored(device: torch.device) -> AbstractContextManager[None]:
    """Whatever is drawn inside on the CPU and on `device`, the generators are put back after."""
    manager: AbstractContextManager[None] = torch.random.fork_rng(
        devices=[device] if device.type == "cuda" else []
    )
    return manager


@contextmanager
def addressed(device: torch.device, seed: int, name: str, *identity: int) -> Iterator[None]:
    """Inside, whatever torch draws on the CPU and on `device` is fixed by the address."""
    word = int(bits(seed, name, *identity)) >> 1
    with restored(device):
        torch.default_generator.manual_seed(word)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(word)
        yield


# MERGED: `dystop.rng` on a device: the same bits as int64 tensors, wherever these lie. Products
#   of int64 wrap around as those of uint64 do, so the bits are equal to the last one.


_GOLDEN = 0x9E3779B97F4A7C15
_INVERSE = pow(_GOLDEN, -1, 2**64)
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB


def signed(word: int) -> int:
    """The int64 with the same 64 bits; products wrap around alike."""
    return (word + 2**63) % 2**64 - 2**63


def _shift(x: Tensor, by: int) -> Tensor:
    """Shift right as if unsigned."""
    out: Tensor = (x >> by) & (2 ** (64 - by) - 1)
    return out


def _scramble(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * signed(_M1)
    x = (x ^ _shift(x, 27)) * signed(_M2)
    out: Tensor = x ^ _shift(x, 31)
    return out


def device_bits(seed: int, name: str, *identity: Tensor) -> Tensor:
    """The bits of `dystop.rng.bits` as int64; the identities broadcast."""
    start = (zlib.crc32(name.encode()) + seed * _GOLDEN) % 2**64
    words = _scramble(torch.full((1,), signed(start), device=identity[0].device))
    for part in identity:
        words = device_deeper(words, part)
    return words


def device_deeper(words: Tensor, part: Tensor | int) -> Tensor:
    """The bits of `dystop.rng.fold_in`: identities with one part more.

    The sum comes before the product. A compiler takes `arange * constant` for an address in memory
    and works it out in numbers of any size, which then fit no register.
    """
    return _scramble((words * signed(_INVERSE) + (part + 1)) * signed(_GOLDEN))


def below(words: Tensor, share: float) -> Tensor:
    """Whether the number in (0, 1) that `dystop.rng.unit` makes of the bits is below a share."""
    out: Tensor = _shift(words, 11) < round(share * 2**53)
    return out


# MERGED: Dropout with an address: which numbers fall out is fixed by worker, training and step
#   alone. Torch's own dropout draws from one generator per device, so models that use it must
#   train one after the other, and another device draws other numbers. Here every number of a
#   layer's input has an address of its own (`dystop.rng`): models with dropout train side by
#   side, stacked or recorded, and drop the same numbers on every device.


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
