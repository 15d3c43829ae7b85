"""Steps recorded into CUDA graphs: launched once with all their kernels, replayed as one."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Protocol

import torch
from torch import Tensor

from dystop.trainer.seeding import restored

Step = Callable[[], None]
_RECORDING = Lock()  # torch bears one recording at a time in a process, on whatever device


def stream_on(device: torch.device) -> torch.cuda.Stream:
    """A new stream of a device."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class Player(Protocol):
    """Carries out a step that is known by a number."""

    def play(self, key: int, step: Step) -> None:
        """Carry out the step; the same key always stands for the same step."""


class Live:
    """Carries steps out as they are, kernel by kernel."""

    def play(self, key: int, step: Step) -> None:
        """Carry out the step."""
        step()


class Recorder:
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
