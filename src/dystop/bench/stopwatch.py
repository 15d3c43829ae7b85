"""A stopwatch around a trainer, so that the engine can be timed and need not know."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, cast

import torch

from dystop.bench.clock import wait_for
from dystop.simulator.state import Components
from dystop.training.trainer import Trainer

P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Seconds of every block that ran under a name.

    On a GPU, marks in the device's own stream are read instead of the host's clock: the engine
    plans the next round while the device trains, and waiting for the device would undo that.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: dict[str, list[tuple[Any, Any]]] = defaultdict(list)

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Note how long the block takes, what it gives the device included."""
        begin = self._mark()
        try:
            yield
        finally:
            self._marks[name].append((begin, self._mark()))

    def seconds(self, name: str) -> list[float]:
        """Seconds of each block of this name."""
        wait_for(self._device)
        if self._device.type != "cuda":
            return [end - begin for begin, end in self._marks[name]]
        return [float(begin.elapsed_time(end)) / 1e3 for begin, end in self._marks[name]]

    def around(self, name: str, work: Callable[P, R]) -> Callable[P, R]:
        """The same function, with its seconds noted."""

        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.running(name):
                return work(*args, **kwargs)

        return watched


class TimedTrainer:
    """A trainer whose trainings and evaluations are timed; everything else is passed on."""

    def __init__(self, trainer: Trainer, watch: Stopwatch) -> None:
        self._trainer = trainer
        self.train = watch.around("training", trainer.train)
        self.evaluate = watch.around("evaluation", trainer.evaluate)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def watched(parts: Components) -> tuple[Components, Stopwatch]:
    """The same simulation with a stopwatch around its trainer."""
    watch = Stopwatch(parts.trainer.device)
    timed = cast(Trainer, TimedTrainer(parts.trainer, watch))
    return replace(parts, trainer=timed), watch
