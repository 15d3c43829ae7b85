"""Planning only: what stands in for a trainer where no model is trained."""

import numpy as np
import torch
from torch import Tensor

from dystop.sparse import Ints
from dystop.training.flat import Layout
from dystop.training.problem import Job, Trained
from dystop.training.tasks.task import CLASSIFICATION
from dystop.training.trainer import Trainer, samples_seen


class NoTraining(Trainer):
    """A trainer that counts samples and trains nothing.

    Its models have no weights, so that those of a million workers take no memory. It has no loss to
    report and evaluates nothing.
    """

    task = CLASSIFICATION
    base_parameters = 0
    returns_early = False
    rows_independent = False
    evaluated_s = 0.0

    def __init__(self, layout: Layout, data_size: Ints, batch: int) -> None:
        """Take what the records need.

        Args:
            layout: Of the model that would be trained; its bytes travel.
            data_size: Training samples of each worker, [N].
            batch: Samples in a mini-batch.
        """
        self.layout, self.device, self.path = layout, torch.device("cpu"), "none"
        self._data_size, self._batch = data_size, batch

    def initial(self) -> tuple[Tensor, Tensor]:
        """Return a model without weights and counters."""
        return torch.zeros(0), torch.zeros(0, dtype=torch.int64)

    def samples_seen(self, workers: Ints, steps: Ints) -> int:
        """Return how many samples local trainings would see together."""
        return samples_seen(self._data_size[workers], steps, self._batch)

    def train_job(self, job: Job) -> Trained:
        """Return the models as they are, without losses."""
        seen = self.samples_seen(job.workers, job.steps)
        return Trained(job.models, job.counters, np.full(len(job.workers), np.nan), seen)
