"""Launching Triton programs, or only compiling them: all those of a step side by side."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

import triton

from dystop.cores import cores

_met: ContextVar[list[Any] | None] = ContextVar("met", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Run a kernel on a grid of programs; inside `compile_together` it is only compiled."""
    met = _met.get()
    if met is None:
        kernel[grid](*args, **options)
    else:
        met.append(kernel.warmup(*args, grid=grid, **options))


def compile_together(step: Callable[[], None]) -> None:
    """Compile the kernels of a step, which is carried out without them, on all cores.

    Compilers run as processes of their own, so threads are enough. What fails here is compiled
    again where it is launched, one after the other.
    """
    with suppress(Exception), ThreadPoolExecutor(cores()) as pool:
        found: list[Any] = []
        before = _met.set(found)
        try:
            with triton.AsyncCompileMode(pool):
                step()
        finally:
            _met.reset(before)
        list(pool.map(_build_launcher, found))


def _build_launcher(kernel: Any) -> None:
    """Compile the host's part of a kernel; it is kept on disk, and found there at the launch."""
    done = kernel.result() if hasattr(kernel, "result") else kernel
    triton.runtime.driver.active.launcher_cls(done.src, done.metadata)
