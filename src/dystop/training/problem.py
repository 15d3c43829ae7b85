"""What a training back end is given and what it gives back.

A back end is a function `(Problem, Job) -> Trained`. `sequential.train` is the reference; another
one (compiled, captured into CUDA graphs, spread over processes) may take its place as long as it
returns the same numbers to floating-point tolerance.
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
from dystop.training.randomness import device_deeper
from dystop.training.samples import Samples, Shards


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
    draws: bool  # the module draws from torch's generator while it trains
    precision: str = "float32"
    compiles: bool = False
    l2: float = 0.0  # strength of the penalty on the parameters
    dropouts: tuple[str, ...] = ()  # buffers that take the address of a mini-batch

    @property
    def device(self) -> torch.device:
        """Where everything is computed."""
        return self.samples.y.device

    def addresses(self, workers: Ints, versions: Ints) -> Tensor:
        """Addresses of local trainings, [A], on the device."""
        words = bits(self.seed, "dropout", workers, versions)
        return upload(words.astype(np.int64), self.device)

    def named(self, state: tuple[Tensor, Tensor, Tensor], address: Tensor) -> dict[str, Tensor]:
        """What `functional_call` wants: parameters, kept numbers, counters, and an address."""
        return self.layout.named(*state) | dict.fromkeys(self.dropouts, address)

    def places(self, addresses: Tensor, steps: Tensor) -> Tensor:
        """Addresses of mini-batches from those of their trainings, where anything asks for them."""
        return (
            device_deeper(addresses, steps)
            if self.dropouts
            else addresses + torch.zeros_like(steps)
        )

    def batches(self, workers: Ints, versions: Ints, steps: Ints) -> Batches:
        """Mini-batches of these local trainings."""
        sizes = self.shards.sizes[workers]
        return batches(self.seed, workers, versions, steps, sizes, self.batch)

    def indices(self, workers: Ints, positions: Ints) -> Tensor:
        """Sample numbers of shard positions, on the device."""
        return upload(self.shards.lookup(workers, positions), self.device)


@dataclass(frozen=True)
class Job:
    """Local trainings to run: A rows, independent of each other."""

    models: Tensor  # [A, W], what each training starts from; a back end may write over it
    counters: Tensor  # [A, C]; likewise
    workers: Ints  # [A], whose data
    versions: Ints  # [A], trainings the worker has finished before
    steps: Ints  # [A], mini-batches to take
    rates: Floats  # [A], factor on the learning rate

    def rows(self, rows: Ints, device: torch.device | None = None) -> "Job":
        """Some rows of the job, on a device where one is named; copied, unless all of them."""
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
    """Results of a job, row by row."""

    models: Tensor  # [A, W]
    counters: Tensor  # [A, C]
    losses: Floats | Callable[[], Floats]  # [A], or how to get it once the device has it
    samples: int  # samples seen by all rows together

    @property
    def loss(self) -> Floats:
        """Mean over the samples seen while training, [A]; NaN where none was.

        A device may still be at work: whoever asks for the loss waits for it.
        """
        return self.losses() if callable(self.losses) else self.losses


def cut(steps: Ints, height: int) -> list[Ints]:
    """Cut a job into pieces of at most `height` rows, nearly equal, the longest work first."""
    if 0 < len(steps) <= height:
        return [np.arange(len(steps))]
    order = np.argsort(-steps, kind="stable")
    return np.array_split(order, -(-len(order) // height)) if len(order) else []


class Collector:
    """Puts the results of pieces into the order of the job as they come in.

    A piece is copied out where it was made and forgotten: there is never a second stack of them.
    """

    def __init__(self, job: Job, pieces: int) -> None:
        whole = pieces == 1  # the one result is the answer itself
        self._models = None if whole else torch.empty_like(job.models)
        self._counters = None if whole else torch.empty_like(job.counters)
        self._rows = len(job.workers)

    def keep(self, rows: Ints, result: Trained) -> Trained:
        """Copy one piece's models out of its result; returns what is still of interest."""
        if self._models is None or self._counters is None:
            return result
        where = upload(rows, self._models.device)
        self._models[where] = result.models.to(self._models.device)
        self._counters[where] = result.counters.to(self._models.device)
        none = torch.empty(0)  # not a slice, which would keep the whole piece alive
        return Trained(none, none, result.losses, result.samples)

    def joined(self, pieces: list[Ints], results: list[Trained]) -> Trained:
        """All results as one."""
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
    """Anything that can run a job."""

    def __call__(self, problem: Problem, job: Job) -> Trained:
        """Train every row of the job."""
        ...
