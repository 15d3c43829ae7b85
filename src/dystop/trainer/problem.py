"""What a training back end is given and what it gives back.

A back end is a function `(Problem, Job) -> Trained`. `sequential.train` is the reference; another
one (compiled, captured into CUDA graphs, spread over processes) may take its place as long as it
returns the same numbers to floating-point tolerance.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dystop.sparse import Floats, Ints
from dystop.trainer.batches import Batches, batches
from dystop.trainer.flat import Layout
from dystop.trainer.samples import Samples, Shards


@dataclass(frozen=True)
class Problem:
    """What stays the same for a whole run."""

    module: nn.Module  # in training mode; its own tensors are never used
    layout: Layout
    samples: Samples
    shards: Shards
    batch: int
    learning_rate: float
    seed: int
    chunk: int  # workers in one stack
    draws: bool  # the module draws random numbers while it trains (dropout)
    precision: str = "float32"
    compiles: bool = False

    @property
    def device(self) -> torch.device:
        """Where everything is computed."""
        return self.samples.y.device

    def batches(self, workers: Ints, versions: Ints, steps: Ints) -> Batches:
        """Mini-batches of these local trainings."""
        sizes = self.shards.sizes[workers]
        return batches(self.seed, workers, versions, steps, sizes, self.batch)

    def indices(self, workers: Ints, positions: Ints) -> Tensor:
        """Sample numbers of shard positions, on the device."""
        return torch.from_numpy(self.shards.lookup(workers, positions)).to(self.device)


@dataclass(frozen=True)
class Job:
    """Local trainings to run: A rows, independent of each other."""

    models: Tensor  # [A, W], what each training starts from; not modified
    counters: Tensor  # [A, C]; not modified
    workers: Ints  # [A], whose data
    versions: Ints  # [A], trainings the worker has finished before
    steps: Ints  # [A], mini-batches to take
    rates: Floats  # [A], factor on the learning rate

    def rows(self, rows: Ints, device: torch.device | None = None) -> "Job":
        """Some rows of the job, copied, to a device where one is named."""
        where = torch.from_numpy(rows).to(self.models.device)
        return Job(
            self.models[where].to(device),
            self.counters[where].to(device),
            self.workers[rows],
            self.versions[rows],
            self.steps[rows],
            self.rates[rows],
        )


@dataclass(frozen=True)
class Trained:
    """Results of a job, row by row."""

    models: Tensor  # [A, W]
    counters: Tensor  # [A, C]
    loss: Floats  # [A], mean over the samples seen while training; NaN where none was
    samples: int  # samples seen by all rows together


def cut(steps: Ints, height: int) -> list[Ints]:
    """Cut a job into pieces of at most `height` rows, nearly equal, the longest work first."""
    order = np.argsort(-steps, kind="stable")
    return np.array_split(order, -(-len(order) // height)) if len(order) else []


def join(job: Job, pieces: list[Ints], results: list[Trained]) -> Trained:
    """Put the results of the pieces back into the order of the job."""
    models, counters = torch.empty_like(job.models), torch.empty_like(job.counters)
    loss = np.empty(len(job.workers))
    for rows, result in zip(pieces, results, strict=True):
        where = torch.from_numpy(rows).to(models.device)
        models[where] = result.models.to(models.device)
        counters[where], loss[rows] = result.counters.to(models.device), result.loss
    return Trained(models, counters, loss, sum(result.samples for result in results))


class Backend(Protocol):
    """Anything that can run a job."""

    def __call__(self, problem: Problem, job: Job) -> Trained:
        """Train every row of the job."""
        ...
