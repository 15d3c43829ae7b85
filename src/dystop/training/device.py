"""Which device computes, and kernels that give the same bits every time."""

import time
from collections.abc import Callable, Iterator
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


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Inside, a GPU is the current one: Triton launches there, and not where its arguments lie."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device without waiting for what the device is doing."""
    here = torch.from_numpy(np.array(array))
    if device.type == "cpu":
        return here
    return here.pin_memory().to(device, non_blocking=True)  # pinned: kept until it has arrived


def download(tensor: Tensor) -> Callable[[], NDArray[Any]]:
    """Start to copy a tensor here; what is returned waits for it, and for nothing asked later.

    >>> download(torch.ones(2))().tolist()
    [1.0, 1.0]
    """
    if tensor.device.type == "cpu":
        here = tensor.clone().numpy()
        return lambda: here
    pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor, non_blocking=True)
    arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
    arrived.record(torch.cuda.current_stream(tensor.device))

    def wait() -> NDArray[Any]:
        arrived.synchronize()
        return pinned.numpy()

    return wait


def finish(device: torch.device) -> None:
    """Wait until a device has done all that it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


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


class Timer:
    """Seconds that a device spends on what is asked of it inside blocks.

    Marks in the stream of a GPU are read, and not the clock: nobody waits for it on that account.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._spent_s = device, 0.0
        self._open: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count what is asked for inside."""
        if self._device.type == "cpu":
            began = time.perf_counter()
            yield
            self._spent_s += time.perf_counter() - began
            return
        begin = self._mark()
        yield
        self._open.append((begin, self._mark()))
        while self._open and self._open[0][1].query():  # type: ignore[no-untyped-call]
            self._close()

    def _mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def _close(self) -> None:
        begin, end = self._open.pop(0)
        end.synchronize()
        self._spent_s += float(begin.elapsed_time(end)) / 1e3

    def seconds(self) -> float:
        """Seconds of all blocks; waits for those that are still under way."""
        while self._open:
            self._close()
        return self._spent_s
