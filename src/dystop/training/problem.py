"""The interface of a training back end: its inputs and its results.

A back end is a function `(Problem, Job) -> Trained`. `sequential.train` is the reference. Every
other back end returns the same numbers, up to floating-point rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from dystop.rng import bits
from dystop.sparse import Floats, Ints
from dystop.training.device import upload
from dystop.training.flat import Layout
from dystop.training.local_steps.augmentation import NO_AUGMENTATION, Augmentation
from dystop.training.local_steps.batches import Batches, batches
from dystop.training.local_steps.optimisers import PLAIN, Optimiser
from dystop.training.local_steps.privacy import Privacy
from dystop.training.randomness import device_fold_in
from dystop.training.samples import Samples, Shards
from dystop.training.tasks.task import CLASSIFICATION, Task


@dataclass(frozen=True)
class Problem:
    """The inputs of local training that stay the same for a whole run."""

    module: nn.Module  # in training mode; of its own tensors only the base of adapters is used
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
    optimiser: Optimiser = PLAIN
    augmentation: Augmentation = NO_AUGMENTATION
    privacy: Privacy | None = None  # None: training is not private
    corrects: bool = False  # whether jobs bring corrections of gradients

    @property
    def steps_differ(self) -> bool:
        """Whether gradients are changed before a step uses them."""
        return bool(self.l2 or self.privacy or self.corrects)

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

        Without dropout and augmentation nobody reads them, and only their shape matters.
        """
        if not self.dropouts and not self.augmentation.is_on:
            return addresses + torch.zeros_like(steps)
        return device_fold_in(addresses, steps)

    def batches(self, workers: Ints, versions: Ints, steps: Ints) -> Batches:
        """Return the mini-batches of these local trainings."""
        sizes = self.shards.sizes[workers]
        return batches(self.seed, workers, versions, steps, sizes, self.batch)

    def indices(self, workers: Ints, positions: Ints) -> Tensor:
        """Return the sample numbers of shard positions, on the device."""
        return upload(self.shards.lookup(workers, positions), self.device)

    def take(self, index: Tensor, address: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of mini-batches [..., b] with these addresses [...]."""
        if not self.augmentation.is_on:
            return self.samples.take(index)
        moves = self.augmentation.moves(address, index.shape[-1]).flatten(0, -2)
        return self.samples.take(index, lambda images: self.augmentation.moved(images, moves))

    @property
    def suits_kernels(self) -> bool:
        """Whether dystop's own GPU kernels can train: cross-entropy, plain SGD, unmoved images."""
        plain = self.optimiser.is_plain and not self.augmentation.is_on
        return plain and self.task.has_kernels

    def step_numbers(self, job: "Job", steps: int) -> Tensor:
        """Return the numbers of the optimiser for every step, [A, steps, n] in float64."""
        rates = upload(self.learning_rate * job.rates, self.device)
        return self.optimiser.numbers(rates, job.taken, steps)

    def first_moments(self, job: "Job") -> Tensor:
        """Return the state with which the optimiser begins, [A, n P]; it may be overwritten."""
        if job.moments is not None:
            return job.moments
        floats = self.optimiser.moments * self.layout.parameters
        return torch.zeros(len(job.workers), floats, device=self.device)


@dataclass(frozen=True)
class Job:
    """Local trainings to run: A independent rows."""

    models: Tensor  # [A, W], the start of each training; a back end may overwrite it
    counters: Tensor  # [A, C]; a back end may overwrite it
    workers: Ints  # [A], whose data to train on
    versions: Ints  # [A], trainings that the worker has finished before
    steps: Ints  # [A], mini-batches to take
    rates: Floats  # [A], factors of the learning rate
    moments: Tensor | None = None  # [A, n P], state of the optimiser; None: zeros, and not wanted
    taken: Tensor | None = None  # [A], steps in earlier trainings; None: none
    correction: Tensor | None = None  # [A, P], added to every gradient; None: nothing is

    def rows(self, rows: Ints, device: torch.device | None = None) -> "Job":
        """Return some rows of the job, moved to `device` if given; copied, unless all rows."""
        is_all = np.array_equal(rows, np.arange(len(self.workers)))
        where = slice(None) if is_all else upload(rows, self.models.device)
        return Job(
            self.models[where].to(device),
            self.counters[where].to(device),
            self.workers[rows],
            self.versions[rows],
            self.steps[rows],
            self.rates[rows],
            None if self.moments is None else self.moments[where].to(device),
            None if self.taken is None else self.taken[where].to(device),
            None if self.correction is None else self.correction[where].to(device),
        )


@dataclass(frozen=True)
class Trained:
    """The results of a job, row by row."""

    models: Tensor  # [A, W]
    counters: Tensor  # [A, C]
    losses: Floats | Callable[[], Floats]  # [A], or a function that waits for the device
    samples: int  # samples seen by all rows together
    moments: Tensor | None = None  # [A, n P], if the job has them

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
        some = None if is_single else job.moments
        self._moments = None if some is None else torch.empty_like(some)
        self._rows = len(job.workers)

    def collect(self, rows: Ints, result: Trained) -> Trained:
        """Copy the models of one piece; return its result without them."""
        if self._models is None or self._counters is None:
            return result
        where = upload(rows, self._models.device)
        self._models[where] = result.models.to(self._models.device)
        self._counters[where] = result.counters.to(self._models.device)
        if self._moments is not None and result.moments is not None:
            self._moments[where] = result.moments.to(self._models.device)
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
        return Trained(self._models, self._counters, losses, seen, self._moments)


class Backend(Protocol):
    """A function that runs a job."""

    def __call__(self, problem: Problem, job: Job) -> Trained:
        """Train every row of the job."""
        ...
