"""Launching Triton programs, or only compiling them: all those of a step side by side."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any, Protocol

import torch
import triton
from torch import Tensor

from dystop.parallel import cores
from dystop.training.randomness import restored

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


# MERGED: Steps recorded into CUDA graphs: launched once with all their kernels, replayed as one.


Step = Callable[[], None]
_RECORDING = Lock()  # torch bears one recording at a time in a process, on whatever device


def stream_on(device: torch.device) -> torch.cuda.Stream:
    """A new stream of a device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class GraphRunner(Protocol):
    """Carries out a step that is known by a number."""

    def play(self, key: int, step: Step) -> None:
        """Carry out the step; the same key always stands for the same step."""


class EagerRunner:
    """Carries steps out as they are, kernel by kernel."""

    def play(self, key: int, step: Step) -> None:
        """Carry out the step."""
        step()


class GraphRecorder:
    """Records a step when it is played for the first time, and replays it from then on.

    All recordings of a recorder share one pool of memory: they are never replayed side by side.
    Each recorder records on a stream of its own, where it has rehearsed before: the work space of
    a matrix library belongs to a stream, and recorders that are replayed side by side must not
    share one, nor may it die with the first recording.
    """

    def __init__(
        self, changing: Sequence[Tensor], compiles: Callable[[Step], None] | None = None
    ) -> None:
        """Prepare.

        Args:
            changing: All that a step changes. A rehearsal before the recording changes it too, so
                it is put back.
            compiles: Compiles what a step needs, faster than the step would by itself.
        """
        self._compiles = compiles
        self._changing = tuple(changing)
        self._tapes: dict[int, torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = stream_on(self._changing[0].device)

    def play(self, key: int, step: Step) -> None:
        """Replay the step, after recording it if it is new."""
        if key not in self._tapes:
            self._tapes[key] = self._record(step)
        self._tapes[key].replay()

    def _record(self, step: Step) -> torch.cuda.CUDAGraph:
        """Rehearse (libraries set themselves up, kernels are compiled), put back, record."""
        with restored(self._stream.device):  # a rehearsal draws random numbers, too
            return self._rehearsed(step)

    def _rehearsed(self, step: Step) -> torch.cuda.CUDAGraph:
        before = [tensor.clone() for tensor in self._changing]
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        compiles = self._compiles
        first = [] if compiles is None else [lambda: compiles(step)]
        with torch.cuda.stream(self._stream):
            for rehearse in (*first, step, step):
                rehearse()
                for tensor, old in zip(self._changing, before, strict=True):
                    tensor.copy_(old)
        torch.cuda.synchronize(self._stream.device)
        tape = torch.cuda.CUDAGraph()
        # Other devices are at work in other threads; only what this thread does is recorded.
        with _RECORDING, torch.cuda.graph(tape, self._pool, self._stream, "thread_local"):
            step()
        return tape


# MERGED: The desk: tensors at fixed addresses that a recorded step reads and writes.


@dataclass(frozen=True)
class StaticBuffers:
    """Models being trained, their mini-batches, and which step is next. All changes in place."""

    parameters: Tensor  # [M, P]
    kept: Tensor  # [M, W - P]
    counters: Tensor  # [M, C]
    table: Tensor  # [S, M, b] int32, sample numbers of every step
    counts: Tensor  # [S, M] int32, samples that count; 0 behind a row's last step
    rate: Tensor  # [M], learning rate
    address: Tensor  # [M] int64, of the local training; dropout is drawn by it
    total: Tensor  # [M] float64, loss summed over the samples seen
    step: Tensor  # [1], the next step
    count: Tensor  # [M] int32, samples that count in the current step

    @property
    def height(self) -> int:
        """Rows."""
        return len(self.parameters)

    @property
    def batch(self) -> int:
        """Samples of a row in a step."""
        return self.table.shape[2]

    @property
    def changing(self) -> tuple[Tensor, ...]:
        """What a step changes."""
        return self.parameters, self.kept, self.counters, self.total, self.step, self.count

    def lay(self, models: Tensor, counters: Tensor, rates: Tensor, address: Tensor) -> None:
        """Put the rows of a job on the desk."""
        rows, cut = len(models), self.parameters.shape[1]
        self.parameters[:rows], self.kept[:rows] = models[:, :cut], models[:, cut:]
        self.counters[:rows], self.rate[:rows] = counters, rates
        self.address[:rows] = address
        self.total.zero_()
        self.step.zero_()

    def note(self, counts: Tensor) -> None:
        """Put the sizes of the mini-batches, [S, A], on the desk."""
        steps, rows = counts.shape
        self.counts[:steps, :rows] = counts
        self.counts[:steps, rows:] = 0

    def models(self, rows: int) -> Tensor:
        """The models of the first rows, copied."""
        return torch.cat([self.parameters[:rows], self.kept[:rows]], 1)


def static_buffers(
    sizes: tuple[int, int, int], shape: tuple[int, int, int], device: torch.device
) -> StaticBuffers:
    """An empty desk.

    Args:
        sizes: Trained numbers P, kept numbers W - P and counters C of a model.
        shape: Steps S, rows M and samples b of a mini-batch.
        device: Where it stands.
    """
    (trained, kept, counted), (steps, rows, batch) = sizes, shape
    whole, place = torch.int32, device
    return StaticBuffers(
        parameters=torch.zeros(rows, trained, device=place),
        kept=torch.zeros(rows, kept, device=place),
        counters=torch.zeros(rows, counted, dtype=torch.int64, device=place),
        table=torch.zeros(steps, rows, batch, dtype=whole, device=place),
        counts=torch.zeros(steps, rows, dtype=whole, device=place),
        rate=torch.zeros(rows, device=place),
        address=torch.zeros(rows, dtype=torch.int64, device=place),
        total=torch.zeros(rows, dtype=torch.float64, device=place),
        step=torch.zeros(1, dtype=torch.int64, device=place),
        count=torch.zeros(rows, dtype=whole, device=place),
    )
