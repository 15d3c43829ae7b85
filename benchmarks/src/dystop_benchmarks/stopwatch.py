"""Fair measurement of time: clocks wait for the device, and compared measurements alternate."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar, cast

import torch

from dystop.simulator.state import Components
from dystop.training.device import finish
from dystop.training.trainer import Trainer
from dystop_benchmarks.result import Spread, spread

_LARGEST_STEP = 20.0  # factor by which a count may grow at once while it is being found


class Elapsed:
    """Seconds of a block, filled in when the block ends."""

    seconds = 0.0


@contextmanager
def timed(device: torch.device) -> Iterator[Elapsed]:
    """Time a block, including all its work on the device."""
    out = Elapsed()
    finish(device)
    begin = time.perf_counter()
    yield out
    finish(device)
    out.seconds = time.perf_counter() - begin


class Meter:
    """A rate: repeats a step, which returns an amount, until enough seconds have passed."""

    def __init__(
        self, step: Callable[[], float], device: torch.device, at_least_s: float = 0.5
    ) -> None:
        self._step, self._device, self._at_least_s = step, device, at_least_s
        self._count = 1  # steps that last long enough; found at the first call, then kept

    def __call__(self) -> float:
        """Return the amount per second."""
        while True:
            with timed(self._device) as clock:
                amount = sum(self._step() for _ in range(self._count))
            # A later reading that is a little short is as good as the others.
            if clock.seconds >= 0.8 * self._at_least_s:
                return amount / clock.seconds
            missing = 1.1 * self._at_least_s / max(clock.seconds, 1e-9)
            self._count = math.ceil(self._count * min(missing, _LARGEST_STEP))


def in_turns(measures: Sequence[Callable[[], float]], repeat: int) -> list[Spread]:
    """Take every measurement `repeat` times, in turns.

    A machine that is busy for a while is busy for all of them, so ratios stay comparable.

    >>> [one.samples for one in in_turns([lambda: 1.0, lambda: 2.0], 2)]
    [(1.0, 1.0), (2.0, 2.0)]
    """
    taken: list[list[float]] = [[] for _ in measures]
    for _ in range(repeat):
        for samples, measure in zip(taken, measures, strict=True):
            samples.append(measure())
    return [spread(samples) for samples in taken]


P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Seconds of every block that ran under a name.

    On a GPU it reads events in the device's stream instead of the host's clock. The simulator plans
    the next round while the device trains, and waiting for the device would undo that.
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
        """Record how long the block takes, including its work on the device."""
        begin = self._mark()
        try:
            yield
        finally:
            self._marks[name].append((begin, self._mark()))

    def seconds(self, name: str) -> list[float]:
        """Return the seconds of each block of this name."""
        finish(self._device)
        if self._device.type != "cuda":
            return [end - begin for begin, end in self._marks[name]]
        return [float(begin.elapsed_time(end)) / 1e3 for begin, end in self._marks[name]]

    def around(self, name: str, work: Callable[P, R]) -> Callable[P, R]:
        """Return the function with its seconds recorded."""

        def watched(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.running(name):
                return work(*args, **kwargs)

        return watched


class TimedTrainer:
    """A trainer whose trainings and evaluations are timed."""

    def __init__(self, trainer: Trainer, watch: Stopwatch) -> None:
        self._trainer = trainer
        self.train = watch.around("training", trainer.train)
        self.evaluate = watch.around("evaluation", trainer.evaluate)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def with_stopwatch(components: Components) -> tuple[Components, Stopwatch]:
    """Return the components with a stopwatch around their trainer."""
    watch = Stopwatch(components.trainer.device)
    timed = cast(Trainer, TimedTrainer(components.trainer, watch))
    return replace(components, trainer=timed), watch
