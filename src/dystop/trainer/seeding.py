"""Torch's own randomness, given an address for a while and put back afterwards.

Module construction and dropout draw from torch's global generators and cannot be handed another
one; `addressed` seeds those generators from `dystop.rng` and restores them when it is left.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

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
