"""Randomness by address inside torch: generators, bits on a device, dropout.

Every random number of a run has an address (`dystop.rng`). Three tools bring this to torch:

- `seed_generators` seeds torch's global generators from an address and restores them afterwards,
  for module construction and layers that draw from these generators.
- `device_bits` and `device_fold_in` compute the bits of `dystop.rng` as int64 tensors on a device.
  Products of int64 wrap around like those of uint64, so all 64 bits are equal.
- `AddressedDropout` replaces `nn.Dropout`. Torch's dropout draws from one generator for a device:
  models with dropout would have to train one after another, and another device would drop other
  numbers. Here every number of a layer's input has an address of its own. Models with dropout
  train in stacks or in CUDA graphs, and drop the same numbers on every device.
"""

import copy
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from dystop.rng import GOLDEN, M1, M2, bits

ADDRESS = "address"  # name of the buffer that holds the address of a mini-batch

_INVERSE = pow(GOLDEN, -1, 2**64)


def preserve_generators(device: torch.device) -> AbstractContextManager[None]:
    """Restore torch's generators of the CPU and of `device` when the block ends."""
    manager: AbstractContextManager[None] = torch.random.fork_rng(
        devices=[device] if device.type == "cuda" else []
    )
    return manager


@contextmanager
def seed_generators(device: torch.device, seed: int, name: str, *identity: int) -> Iterator[None]:
    """Seed torch's generators of the CPU and of `device` by an address; restore them afterwards."""
    word = int(bits(seed, name, *identity)) >> 1
    with preserve_generators(device):
        torch.default_generator.manual_seed(word)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(word)
        yield


def signed(word: int) -> int:
    """Return the int64 that has the same 64 bits as an unsigned word.

    >>> signed(2**64 - 1), signed(5)
    (-1, 5)
    """
    return (word + 2**63) % 2**64 - 2**63


def _shift_right(x: Tensor, by: int) -> Tensor:
    """Shift right as if the numbers were unsigned."""
    out: Tensor = (x >> by) & (2 ** (64 - by) - 1)
    return out


def _mix(x: Tensor) -> Tensor:
    """Return the output function of SplitMix64."""
    x = (x ^ _shift_right(x, 30)) * signed(M1)
    x = (x ^ _shift_right(x, 27)) * signed(M2)
    out: Tensor = x ^ _shift_right(x, 31)
    return out


def device_bits(seed: int, name: str, *identity: Tensor) -> Tensor:
    """Return the bits of `dystop.rng.bits` as int64; the identities broadcast."""
    start = (zlib.crc32(name.encode()) + seed * GOLDEN) % 2**64
    words = _mix(torch.full((1,), signed(start), device=identity[0].device))
    for part in identity:
        words = device_fold_in(words, part)
    return words


def device_fold_in(words: Tensor, part: Tensor | int) -> Tensor:
    """Return the bits of `dystop.rng.fold_in`: addresses with one more part.

    The sum comes before the product. A compiler takes `arange * constant` for a memory address and
    computes it in integers of any size, which then fit no register.
    """
    return _mix((words * signed(_INVERSE) + (part + 1)) * signed(GOLDEN))


def unit_below(words: Tensor, bound: float) -> Tensor:
    """Return whether the number in (0, 1) that `dystop.rng.unit` makes of the bits is below."""
    out: Tensor = _shift_right(words, 11) < round(bound * 2**53)
    return out


class AddressedDropout(nn.Module):
    """Dropout that is determined by an address.

    The address of the mini-batch is a buffer that is not part of the module's state.
    """

    address: Tensor

    def __init__(self, p: float, number: int) -> None:
        """Make a layer that drops a share `p`; `number` counts the dropout layers of a model."""
        super().__init__()
        self.p, self.number = p, number
        self.register_buffer(ADDRESS, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Drop a share of the numbers and scale the others up; outside training return x."""
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return torch.zeros_like(x)
        layer = device_fold_in(self.address, self.number)
        position = torch.arange(x.numel(), device=x.device).view(x.shape)
        dropped = unit_below(device_fold_in(layer, position), self.p)
        return torch.where(dropped, 0.0, x / (1 - self.p))


def with_addresses(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> nn.Module:
    """Return a copy of the module with `AddressedDropout` in place of `nn.Dropout`.

    A layer that is used more than once in a pass still draws from torch's generator: with one
    address it would drop the same numbers each time.
    """
    module = copy.deepcopy(module)
    uses = _dropout_uses(module, shape, dtype)
    once = [layer for layer in module.modules() if type(layer) is nn.Dropout and uses[layer] <= 1]
    replacements = {layer: AddressedDropout(layer.p, number) for number, layer in enumerate(once)}
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if child in replacements:
                setattr(parent, name, replacements[child].train(child.training))
    return module


def _dropout_uses(
    module: nn.Module, shape: tuple[int, ...], dtype: torch.dtype
) -> Counter[nn.Module]:
    """Count how often a pass uses each dropout layer, in a trial on the CPU."""
    uses: Counter[nn.Module] = Counter()
    layers = [layer for layer in module.modules() if type(layer) is nn.Dropout]
    if not layers:
        return uses
    trial = copy.deepcopy(module).to("cpu").train()
    copies = [layer for layer in trial.modules() if type(layer) is nn.Dropout]
    original = dict(zip(copies, layers, strict=True))
    for layer in copies:
        layer.register_forward_hook(lambda used, *_: uses.update([original[used]]))
    trial(torch.zeros(2, *shape, dtype=dtype))
    return uses


def address_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the buffers that hold an address."""
    return tuple(
        f"{name}.{ADDRESS}"
        for name, layer in module.named_modules()
        if isinstance(layer, AddressedDropout)
    )
