"""Batch norm's statistics, computed anew for the weights as they are.

A model is tested with moving averages of its layers' statistics. They lag behind weights that move
fast, and the average of several models' statistics need not fit the average of their weights. A fit
puts the statistics of some training samples under the present weights in their place.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from dystop.sparse import Ints, ints
from dystop.training.device import autocast, upload
from dystop.training.evaluate import stratified_first
from dystop.training.problem import Problem

EVERYBODY = -1
"""In the place of a worker: a model of everybody's, fitted on a share of all samples."""

POOL = 2000  # samples of everybody's, each class in proportion
PART = 100  # samples at once: many enough for a mean of variances to be one of all


@dataclass(frozen=True)
class BatchNormRecalibration:
    """What fits models; a module is not safe to share between threads, so each has its own."""

    problem: Problem
    module: nn.Module  # its norms in training mode, everything else in evaluation mode
    norms: tuple[Any, ...]  # layers with a momentum
    pool: Ints  # samples that a model of everybody's is fitted on

    @torch.no_grad()
    def fitted(self, models: Tensor, counters: Tensor, whose: Ints) -> Tensor:
        """Models [M, W] with the statistics of these workers' samples [M]; copies."""
        models, counters = models.clone(), counters.clone()
        for row, worker in enumerate(whose.tolist()):
            chosen = self.pool if worker == EVERYBODY else self.problem.shards.of(worker)
            if len(chosen) > 1:  # a variance needs two
                self._fit(models[row], counters[row], chosen)
        return models

    def _fit(self, vector: Tensor, counters: Tensor, chosen: Ints) -> None:
        """In place: every part moves an average by one over the number of parts so far."""
        state = self.problem.layout.unflatten(vector, counters)
        parts = np.array_split(chosen, -(-len(chosen) // PART))
        for number, part in enumerate(parts, 1):
            for norm in self.norms:
                norm.momentum = 1.0 / number
            x, _ = self.problem.samples.take(upload(part, self.problem.device))
            with autocast(vector.device, self.problem.precision):
                functional_call(self.module, state, (x.to(vector.device),))


def recalibration_of(problem: Problem, module: nn.Module) -> BatchNormRecalibration | None:
    """What fits models of this kind; None where they have no statistics."""
    own = copy.deepcopy(module).eval()
    norms = tuple(m for m in own.modules() if _is_norm(m))
    if not norms:
        return None
    for norm in norms:
        norm.train()
    labels = problem.samples.y.cpu().numpy()
    everybody = np.sort(problem.shards.samples)
    pool = everybody[stratified_first(ints(labels[everybody]), min(POOL, len(everybody)))]
    return BatchNormRecalibration(problem, own, norms, pool)


def _is_norm(module: nn.Module) -> bool:
    """Whether torch keeps moving averages of its inputs' statistics."""
    return isinstance(getattr(module, "running_mean", None), Tensor) and hasattr(module, "momentum")
