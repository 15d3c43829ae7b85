"""Batch-norm recalibration: the statistics of batch norm, computed again for the present weights.

A model is evaluated with moving averages of its layers' statistics. These lag behind weights that
move fast, and the average of several models' statistics need not fit the average of their weights.
Recalibration replaces them by the statistics of some training samples under the present weights.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dystop.sparse import Ints
from dystop.training.device import autocast, upload
from dystop.training.evaluate import stratified_first
from dystop.training.problem import Problem
from dystop.training.samples import strata

ALL_WORKERS = -1
"""In place of a worker's number: recalibrate on a share of the samples of all workers."""

POOL = 2000  # samples for `ALL_WORKERS`, each class in proportion
PART = 100  # samples in one forward pass; enough for the mean of their variances to be exact


@dataclass(frozen=True)
class BatchNormRecalibration:
    """Recalibrates models. Each thread has its own: a module cannot be shared."""

    problem: Problem
    module: nn.Module  # batch norm in training mode, everything else in evaluation mode
    norms: tuple[Any, ...]  # its batch-norm layers
    pool: Ints  # samples for `ALL_WORKERS`

    @torch.no_grad()
    def recalibrated(self, models: Tensor, counters: Tensor, workers: Ints) -> Tensor:
        """Return copies of models [M, W] with the statistics of these workers' samples [M]."""
        models, counters = models.clone(), counters.clone()
        for row, worker in enumerate(workers.tolist()):
            samples = self.pool if worker == ALL_WORKERS else self.problem.shards.of(worker)
            if len(samples) > 1:  # a variance needs two
                self._recalibrate(models[row], counters[row], samples)
        return models

    def _recalibrate(self, vector: Tensor, counters: Tensor, samples: Ints) -> None:
        """Average the statistics over parts of the samples, in place.

        The momentum of part k is 1 / k, so that all parts have the same weight in the end.
        """
        state = self.problem.layout.unflatten(vector, counters)
        parts = np.array_split(samples, -(-len(samples) // PART))
        for number, part in enumerate(parts, 1):
            for norm in self.norms:
                norm.momentum = 1.0 / number
            x, _ = self.problem.samples.take(upload(part, self.problem.device))
            with autocast(vector.device, self.problem.precision):
                functional_call(self.module, state, (x.to(vector.device),))


def recalibration_of(problem: Problem, module: nn.Module) -> BatchNormRecalibration | None:
    """Return the recalibration of models of this kind; None if they have no batch norm."""
    own = copy.deepcopy(module).eval()
    norms = tuple(m for m in own.modules() if _has_statistics(m))
    if not norms:
        return None
    for norm in norms:
        norm.train()
    labels = strata(problem.samples.y.cpu().numpy())
    owned = np.sort(problem.shards.samples)
    pool = owned[stratified_first(labels[owned], min(POOL, len(owned)))]
    return BatchNormRecalibration(problem, own, norms, pool)


def _has_statistics(module: nn.Module) -> bool:
    """Return whether torch keeps moving averages of the statistics of this layer's inputs."""
    return isinstance(getattr(module, "running_mean", None), Tensor) and hasattr(module, "momentum")
