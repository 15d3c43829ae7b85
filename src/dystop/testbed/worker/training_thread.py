"""The training thread of a worker: local trainings one after another, at the device's speed."""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from dystop.errors import ConfigError
from dystop.testbed.events import StartTraining, TrainingFailed, TrainingFinished
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.log_throttle import shown, throttled_logger

if TYPE_CHECKING:
    from dystop.training.trainer import Trainer

_LOG = throttled_logger(__name__)

TrainFunction = Callable[[StartTraining], TrainingFinished]


class TrainingThread:
    """Runs trainings in a thread of its own; passes the results to `put`."""

    def __init__(
        self,
        train: TrainFunction | None,
        step_s: float,
        put: Callable[[TrainingFinished | TrainingFailed], None],
    ) -> None:
        """Prepare the thread.

        Args:
            train: Trains a model; None for a node without data.
            step_s: Least seconds of a mini-batch (emulated device); 0: no emulation.
            put: Called from the training thread.
        """
        self._train, self._step_s, self._put = train, step_s, put
        self._requests: queue.SimpleQueue[StartTraining | None] = queue.SimpleQueue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="training", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, request: StartTraining) -> None:
        """Train after all earlier requests."""
        self._requests.put(request)

    def close(self) -> None:
        """End the thread after the current training, whose result is discarded; do not wait."""
        self._over.set()
        self._requests.put(None)

    def join(self) -> None:
        """Wait until the thread has ended."""
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            event = self._run_training(request)
            if not self._over.is_set():
                self._put(event)

    def _run_training(self, request: StartTraining) -> TrainingFinished | TrainingFailed:
        began_s = time.monotonic()
        try:
            if self._train is None:
                raise ConfigError("this node has no data to train on")
            finished = self._train(request)
            reach("worker.mid_train")
        except Exception as error:
            _LOG.exception("training %d failed", request.number)
            return TrainingFailed(request.number, shown(f"{type(error).__name__}: {error}"))
        left_s = began_s + self._step_s * request.steps - time.monotonic()
        if left_s > 0:
            self._over.wait(left_s)
        return replace(finished, number=request.number, seconds=time.monotonic() - began_s)


def local_trainer(trainer: "Trainer", node: int) -> TrainFunction:
    """Return a function that trains one worker with the code and random numbers of the simulator.

    The result depends on the model, (seed, node, number), steps and rate alone, and in private
    training on noise that only the trainer's process knows.
    """
    import torch

    torch.set_num_threads(1)

    def train(request: StartTraining) -> TrainingFinished:
        trained = trainer.train(
            torch.from_numpy(np.array(request.vector, np.float32))[None],
            torch.from_numpy(np.array(request.counters, np.int64))[None],
            np.array([node]),
            np.array([request.number]),
            np.array([request.steps]),
            np.array([request.rate]),
        )
        return TrainingFinished(
            number=request.number,
            vector=trained.models[0].cpu().numpy(),
            counters=trained.counters[0].cpu().numpy(),
            loss=float(trained.loss[0]),
            samples=trained.samples,
            seconds=0.0,
        )

    return train
