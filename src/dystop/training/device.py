"""Devices: their choice, transfers, timing, and deterministic kernels."""

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
    """Return the device that `training.device` names; refuse one that does not exist.

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
    device = torch.device("cuda", index)
    _check_access(device, name)
    return device


def _check_access(device: torch.device, name: str) -> None:
    """Refuse a GPU that does not accept this process, before anything is built on it."""
    try:
        torch.empty(1, device=device)
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"training.device = {name!r}: the GPU {device} does not accept this process: {reason}. "
            "Other processes may hold it exclusively or fill its memory, and NVIDIA MPS serves a "
            "limited number of processes; run fewer at the same time, or use 'cpu'"
        ) from None


def pick_devices(name: str) -> list[torch.device]:
    """Return the devices that share the work: all GPUs, unless `name` names one of them."""
    first = pick_device(name)
    if first.type != "cuda" or ":" in name:
        return [first]
    return [torch.device("cuda", k) for k in range(torch.cuda.device_count())]


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one: Triton launches on the current GPU, wherever the data are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def upload(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device without waiting for the device."""
    here = torch.from_numpy(np.array(array))
    if device.type == "cpu":
        return here
    return here.pin_memory().to(
        device, non_blocking=True
    )  # torch keeps pinned memory until the copy ends


def download(tensor: Tensor) -> Callable[[], NDArray[Any]]:
    """Start to copy a tensor to the host; return a function that waits for this copy only.

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
    """Wait until a device has finished all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Make a CUDA device multiply in bfloat16 if that precision is chosen."""
    if precision != "bfloat16" or device.type != "cuda":
        return nullcontext()
    # Weights are views of a flat vector that changes in every step: a cache would not help.
    return torch.autocast("cuda", torch.bfloat16, cache_enabled=False)


@contextmanager
def deterministic_kernels() -> Iterator[None]:
    """Make cuDNN deterministic: the same inputs give the same bits on the same machine.

    Only these two switches are set and restored; the user's choice of precision stays.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


class Timer:
    """Measures the seconds that a device spends on the work of some blocks.

    On a GPU, events in the stream are read instead of the clock, so nobody has to wait.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._spent_s = device, 0.0
        self._open: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Measure the work that is launched inside the block."""
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
        """Return the seconds of all blocks; wait for those that still run."""
        while self._open:
            self._close()
        return self._spent_s
