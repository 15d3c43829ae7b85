"""The interface of a training back end: its inputs and its results.

A back end is a function `(Problem, Job) -> Trained`. `sequential.train` is the reference. Every
other back end returns the same numbers, up to floating-point rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dystop.rng import bits
from dystop.sparse import Floats, Ints
from dystop.training.batches import Batches, batches
from dystop.training.device import upload
from dystop.training.flat import Layout
from dystop.training.randomness import device_fold_in
from dystop.training.samples import Samples, Shards
from dystop.training.tasks.task import CLASSIFICATION, Task


@dataclass(frozen=True)
class Problem:
    """The inputs of local training that stay the same for a whole run."""

    module: nn.Module  # in training mode; its own tensors are not used
    layout: Layout
    samples: Samples
    shards: Shards
    batch: int
    learning_rate: float
    seed: int
    chunk: int  # models in one stack
    draws: bool  # whether the module draws from torch's generator while it trains
    precision: str = "float32"
    compiles: bool = False  # whether torch may compile steps on a GPU
    l2: float = 0.0  # strength of the penalty on the parameters
    dropouts: tuple[str, ...] = ()  # names of the buffers that hold the address of a mini-batch
    task: Task = CLASSIFICATION

    @property
    def device(self) -> torch.device:
        """The device that trains."""
        return self.samples.y.device

    def addresses(self, workers: Ints, versions: Ints) -> Tensor:
        """Return the random addresses of local trainings, [A], on the device."""
        words = bits(self.seed, "dropout", workers, versions)
        return upload(words.astype(np.int64), self.device)

    def named(self, state: tuple[Tensor, Tensor, Tensor], address: Tensor) -> dict[str, Tensor]:
        """Return the tensors for `functional_call`: parameters, buffers, counters, addresses."""
        return self.layout.named(*state) | dict.fromkeys(self.dropouts, address)

    def batch_addresses(self, addresses: Tensor, steps: Tensor) -> Tensor:
        """Return the addresses of mini-batches from those of their local trainings.

        Without dropout nobody reads them, and only their shape matters.
        """
        if not self.dropouts:
            return addresses + torch.zeros_like(steps)
        return device_fold_in(addresses, steps)

    def batches(self, workers: Ints, versions: Ints, steps: Ints) -> Batches:
        """Return the mini-batches of these local trainings."""
        sizes = self.shards.sizes[workers]
        return batches(self.seed, workers, versions, steps, sizes, self.batch)

    def indices(self, workers: Ints, positions: Ints) -> Tensor:
        """Return the sample numbers of shard positions, on the device."""
        return upload(self.shards.lookup(workers, positions), self.device)


@dataclass(frozen=True)
class Job:
    """Local trainings to run: A independent rows."""

    models: Tensor  # [A, W], the start of each training; a back end may overwrite it
    counters: Tensor  # [A, C]; a back end may overwrite it
    workers: Ints  # [A], whose data to train on
    versions: Ints  # [A], trainings that the worker has finished before
    steps: Ints  # [A], mini-batches to take
    rates: Floats  # [A], factors of the learning rate

    def rows(self, rows: Ints, device: torch.device | None = None) -> "Job":
        """Return some rows of the job, moved to `device` if given; copied, unless all rows."""
        if np.array_equal(rows, np.arange(len(self.workers))):
            models, counters = self.models.to(device), self.counters.to(device)
            return replace(self, models=models, counters=counters)
        where = upload(rows, self.models.device)
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
    """The results of a job, row by row."""

    models: Tensor  # [A, W]
    counters: Tensor  # [A, C]
    losses: Floats | Callable[[], Floats]  # [A], or a function that waits for the device
    samples: int  # samples seen by all rows together

    @property
    def loss(self) -> Floats:
        """Mean training loss over the samples seen, [A]; NaN for a row without samples.

        Reading it waits for the device to finish.
        """
        return self.losses() if callable(self.losses) else self.losses


def cut(steps: Ints, height: int) -> list[Ints]:
    """Cut a job into nearly equal pieces of at most `height` rows, the longest rows first."""
    if 0 < len(steps) <= height:
        return [np.arange(len(steps))]
    order = np.argsort(-steps, kind="stable")
    return np.array_split(order, -(-len(order) // height)) if len(order) else []


class Collector:
    """Collects the results of pieces in the order of the job.

    The thread that trained a piece copies its models out at once and drops them, so that there is
    never a second stack of models.
    """

    def __init__(self, job: Job, pieces: int) -> None:
        is_single = pieces == 1  # the result of a single piece needs no copy
        self._models = None if is_single else torch.empty_like(job.models)
        self._counters = None if is_single else torch.empty_like(job.counters)
        self._rows = len(job.workers)

    def collect(self, rows: Ints, result: Trained) -> Trained:
        """Copy the models of one piece; return its result without them."""
        if self._models is None or self._counters is None:
            return result
        where = upload(rows, self._models.device)
        self._models[where] = result.models.to(self._models.device)
        self._counters[where] = result.counters.to(self._models.device)
        none = torch.empty(0)  # a slice would keep the whole piece alive
        return Trained(none, none, result.losses, result.samples)

    def joined(self, pieces: list[Ints], results: list[Trained]) -> Trained:
        """Return the results of all pieces as one."""
        if self._models is None or self._counters is None:
            return results[0]

        def losses() -> Floats:
            found = np.empty(self._rows)
            for rows, result in zip(pieces, results, strict=True):
                found[rows] = result.loss
            return found

        seen = sum(result.samples for result in results)
        return Trained(self._models, self._counters, losses, seen)


class Backend(Protocol):
    """A function that runs a job."""

    def __call__(self, problem: Problem, job: Job) -> Trained:
        """Train every row of the job."""
        ...
