"""CUDA graphs: a step is captured once, with all its kernels, and then replayed as one launch.

Before the capture, the step runs a few times as a warm-up: libraries initialise themselves and
kernels are compiled, all kernels of a step side by side.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from threading import Lock
from typing import Any, Protocol

import torch
import triton
from torch import Tensor

from dystop.parallel import cores
from dystop.training.randomness import preserve_generators

Step = Callable[[], None]

_CAPTURE = Lock()  # torch supports one capture at a time in a process, on any device
_compiling: ContextVar[list[Any] | None] = ContextVar("compiling", default=None)


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Launch a Triton kernel on a grid; inside `compile_together`, only compile it."""
    compiled = _compiling.get()
    if compiled is None:
        kernel[grid](*args, **options)
    else:
        compiled.append(kernel.warmup(*args, grid=grid, **options))


def compile_together(step: Step) -> None:
    """Compile the kernels of a step on all cores, without launching them.

    The compilers are processes of their own, so threads are enough. A kernel that fails here is
    compiled again at its launch.
    """
    with suppress(Exception), ThreadPoolExecutor(cores()) as pool:
        compiled: list[Any] = []
        token = _compiling.set(compiled)
        try:
            with triton.AsyncCompileMode(pool):
                step()
        finally:
            _compiling.reset(token)
        list(pool.map(_build_launcher, compiled))


def _build_launcher(kernel: Any) -> None:
    """Compile the host code of a kernel. Triton keeps it on disk and finds it at the launch."""
    done = kernel.result() if hasattr(kernel, "result") else kernel
    triton.runtime.driver.active.launcher_cls(done.src, done.metadata)


def new_stream(device: torch.device) -> torch.cuda.Stream:
    """Return a new stream of a device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class StepRunner(Protocol):
    """Runs steps that are known by a key."""

    def run(self, key: int, step: Step) -> None:
        """Run the step; a key always stands for the same step."""


class EagerRunner:
    """Runs steps directly, kernel by kernel."""

    def run(self, key: int, step: Step) -> None:
        """Run the step."""
        step()


class GraphRunner:
    """Captures a step as a CUDA graph at its first run, and replays the graph from then on.

    The graphs of one runner share a memory pool: they never run side by side. Each runner captures
    on a stream of its own, after a warm-up on that stream: the workspace of a matrix library
    belongs to a stream. Runners that replay side by side must not share a workspace, and it must
    not be freed with the first graph.
    """

    def __init__(
        self, changing: Sequence[Tensor], compiles: Callable[[Step], None] | None = None
    ) -> None:
        """Make a runner without graphs.

        Args:
            changing: All tensors that a step changes. The warm-up changes them too, and the runner
                restores them.
            compiles: Compiles the kernels of a step, faster than the step itself would.
        """
        self._compiles = compiles
        self._changing = tuple(changing)
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = new_stream(self._changing[0].device)

    def run(self, key: int, step: Step) -> None:
        """Replay the step, after capturing it if its key is new."""
        if key not in self._graphs:
            with preserve_generators(self._stream.device):  # a step may draw random numbers
                self._warm_up(step)
                self._graphs[key] = self._capture(step)
        self._graphs[key].replay()

    def _warm_up(self, step: Step) -> None:
        """Run the step, then restore all that it changes."""
        before = [tensor.clone() for tensor in self._changing]
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        compiles = self._compiles
        first = [] if compiles is None else [lambda: compiles(step)]
        with torch.cuda.stream(self._stream):
            for run in (*first, step, step):
                run()
                for tensor, old in zip(self._changing, before, strict=True):
                    tensor.copy_(old)
        torch.cuda.synchronize(self._stream.device)

    def _capture(self, step: Step) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # Other threads may use other devices; only the work of this thread is captured.
        with _CAPTURE, torch.cuda.graph(graph, self._pool, self._stream, "thread_local"):
            step()
        return graph
