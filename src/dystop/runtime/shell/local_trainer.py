"""The simulator's trainer as the lesson of one worker."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dystop.runtime.events import Train, TrainingDone

if TYPE_CHECKING:
    from dystop.trainer.trainer import Trainer


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
