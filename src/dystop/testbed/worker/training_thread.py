"""The training thread of a node: one local training after another, as slow as its device."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dystop.errors import ConfigError
from dystop.testbed.events import Train, TrainingDone, TrainingFailed
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.log_throttle import shown, throttled_logger

if TYPE_CHECKING:
    from dystop.training.trainer import Trainer

_LOG = throttled_logger(__name__)

LocalTraining = Callable[[Train], TrainingDone]


class TrainingThread:
    """Takes orders from the updating thread; hands results to `put`."""

    def __init__(
        self,
        train: LocalTraining | None,
        step_s: float,
        put: Callable[[TrainingDone | TrainingFailed], None],
    ) -> None:
        """Nothing runs yet.

        Args:
            train: The real work; None where there is no data.
            step_s: Emulated: least seconds of a mini-batch; 0: as long as it takes.
            put: Called from the training thread.
        """
        self._train, self._step_s, self._put = train, step_s, put
        self._orders: queue.SimpleQueue[Train | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)

    def start(self) -> None:
        """Wait for orders."""
        self._thread.start()

    def begin(self, order: Train) -> None:
        """Train after what was ordered before."""
        self._orders.put(order)

    def close(self) -> None:
        """No more; what is being trained is not told any more. Returns at once."""
        self._over.set()
        self._orders.put(None)

    def join(self) -> None:
        """Wait until the thread is gone."""
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while (order := self._orders.get()) is not None:
            event = self._lesson(order)
            if not self._over.is_set():
                self._put(event)

    def _lesson(self, order: Train) -> TrainingDone | TrainingFailed:
        began = time.monotonic()
        try:
            if self._train is None:
                raise ConfigError("this node has no data to train on")
            done = self._train(order)
            reach("worker.mid_train")
        except Exception as error:
            _LOG.exception("training %d failed", order.number)
            return TrainingFailed(order.number, shown(f"{type(error).__name__}: {error}"))
        left_s = began + self._step_s * order.steps - time.monotonic()
        if left_s > 0:
            self._over.wait(left_s)
        return replace(done, number=order.number, seconds=time.monotonic() - began)


# MERGED: The simulator's trainer as the lesson of one worker.


def local_trainer(trainer: "Trainer", node: int) -> Callable[[Train], TrainingDone]:
    """Train one worker with the same code and the same draws as the simulator.

    The result depends on the model, (seed, node, number), steps and rate alone.
    """
    import torch

    torch.set_num_threads(1)

    def train(order: Train) -> TrainingDone:
        done = trainer.train(
            torch.from_numpy(np.array(order.vector, np.float32))[None],
            torch.from_numpy(np.array(order.counters, np.int64))[None],
            np.array([node]),
            np.array([order.number]),
            np.array([order.steps]),
            np.array([order.rate]),
        )
        return TrainingDone(
            number=order.number,
            vector=done.models[0].cpu().numpy(),
            counters=done.counters[0].cpu().numpy(),
            loss=float(done.loss[0]),
            samples=done.samples,
            seconds=0.0,
        )

    return train
