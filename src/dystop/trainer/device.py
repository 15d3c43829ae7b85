"""Which device computes, and kernels that give the same bits every time."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

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
