"""Which device computes, and kernels that give the same bits every time."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystop.errors import ConfigError


def pick_device(name: str) -> torch.device:
    """Turn the knob's word into a device that exists.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    kind, _, number = name.partition(":")
    if name not in ("auto", "cpu") and (kind != "cuda" or (number and not number.isdigit())):
        raise ConfigError(
            f"training.device = {name!r} is not known; allowed: 'auto', 'cpu', 'cuda', 'cuda:N'"
        )
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    index, count = int(number or 0), torch.cuda.device_count()
    if index >= count:
        raise ConfigError(
            f"training.device = {name!r}, but torch sees {count} CUDA devices here; use 'cpu' or "
            f"'auto', or install a torch build with CUDA"
        )
    return torch.device("cuda", index)


def pick_devices(name: str) -> list[torch.device]:
    """All devices that share the work: every GPU there is, unless one of them is named."""
    first = pick_device(name)
    if first.type != "cuda" or ":" in name:
        return [first]
    return [torch.device("cuda", k) for k in range(torch.cuda.device_count())]


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device without waiting for what the device is doing."""
    here = torch.from_numpy(np.array(array))
    if device.type == "cpu":
        return here
    return here.pin_memory().to(device, non_blocking=True)  # pinned: kept until it has arrived


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Inside, a CUDA device multiplies in bfloat16 if that precision was chosen."""
    if precision != "bfloat16" or device.type != "cuda":
        return nullcontext()
    # Weights are views of a flat vector that changes in every step: nothing to keep in a cache.
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)


@contextmanager
def steady_kernels() -> Iterator[None]:
    """Fixed choice of convolution kernels: same inputs, same bits, on the same machine.

    Only these two switches are set and put back; the user's choice of precision stays.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
