"""The models of workers: one type for the stacks of the simulator and for a worker's process.

A model is a flat vector [W]: its parameters and float buffers, and behind them the vectors that
travel with it (`dystop.carried`). It is what a payload holds. Its counters [C] are the integers of
the model, and behind them what stays at home. Both are stored in checkpoints.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

Array = TypeVar("Array")
Integers = TypeVar("Integers")
"""Arrays of NumPy, or tensors of torch."""


@dataclass(frozen=True)
class ModelState(Generic[Array, Integers]):
    """The models of one worker, [W], or of all nodes row by row, [nodes, W].

    `latest` is the newest model. While its training runs, a simulator that has trained ahead holds
    the result, and a worker's process the model that is trained. Others then get `finished`. The
    starts of trainings are kept only where updates are sent or compensated; they move with passive
    mixes, so that updates stay the same.
    """

    latest: Array
    counters: Integers  # [C] integers, never mixed
    start: Array | None = None  # where the training behind `latest` began
    finished: Array | None = None  # None: others get `latest`
    finished_start: Array | None = None  # where the training behind `finished` began
    finished_counters: Integers | None = None  # kept where a training may fail

    @property
    def published(self) -> Array:
        """The model that others get from this one worker."""
        return self.latest if self.finished is None else self.finished

    @property
    def published_counters(self) -> Integers:
        """The counters of the published model of this one worker."""
        return self.counters if self.finished_counters is None else self.finished_counters

    @property
    def published_start(self) -> Array | None:
        """Where the training behind the published model of this one worker began."""
        return self.start if self.finished is None else self.finished_start

    def begun(self, latest: Array, counters: Integers) -> "ModelState[Array, Integers]":
        """Return the models of a worker that begins to train at `latest`."""
        return ModelState(
            latest,
            counters,
            start=None if self.start is None else latest,
            finished=self.latest,
            finished_start=self.start,
            finished_counters=self.counters,
        )

    def ended(self, latest: Array, counters: Integers) -> "ModelState[Array, Integers]":
        """Return the models after a training with this result."""
        return ModelState(latest, counters, self.start)

    def failed(self) -> "ModelState[Array, Integers]":
        """Return the models after a training without a usable result: those before it."""
        if self.finished is None or self.finished_counters is None:
            return self
        return ModelState(self.finished, self.finished_counters, self.finished_start)
