"""The static buffers of a CUDA graph, and the sampler that fills in the mini-batches.

A graph reads and writes tensors at fixed addresses. So the models of a job, their mini-batches and
the number of the next step are copied into static buffers before the graph runs.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dystop.rng import bits
from dystop.training.backends.cuda import kernels
from dystop.training.backends.cuda.graphs import launch
from dystop.training.device import upload
from dystop.training.flat import Layout
from dystop.training.local_steps.batches import DeviceShards, Trainings, sample_table, shards_on
from dystop.training.local_steps.optimisers import PLAIN, RATE, Optimiser
from dystop.training.problem import Problem

BLOCK = 1024  # elements of one program of the sampling kernels


@dataclass(frozen=True)
class StaticBuffers:
    """Models in training, their mini-batches, and the next step. All change in place."""

    parameters: Tensor  # [M, P]
    kept: Tensor  # [M, W - P]
    counters: Tensor  # [M, C]
    table: Tensor  # [S, M, b] int32, sample numbers of every step
    counts: Tensor  # [S, M] int32, samples of every mini-batch; 0 after a row's last step
    moments: Tensor  # [M, n P], state of the optimiser
    numbers: Tensor  # [S, n, M], numbers of the optimiser for every step
    now: Tensor  # [n, M], those of the current step
    address: Tensor  # [M] int64, random address of the local training, for dropout
    total: Tensor  # [M] float64, loss summed over the samples seen
    step: Tensor  # [1], number of the next step
    count: Tensor  # [M] int32, samples of the current mini-batch

    @property
    def height(self) -> int:
        """Number of rows."""
        return len(self.parameters)

    @property
    def batch(self) -> int:
        """Samples of a full mini-batch."""
        return self.table.shape[2]

    @property
    def rate(self) -> Tensor:
        """Learning rates of the current step, [M]."""
        return self.now[RATE]

    @property
    def changing(self) -> tuple[Tensor, ...]:
        """The tensors that a step changes."""
        model = (self.parameters, self.kept, self.counters, self.moments)
        return *model, self.now, self.total, self.step, self.count

    def load(self, models: Tensor, counters: Tensor, address: Tensor) -> None:
        """Copy the models of a job into the buffers and start at step 0."""
        rows, cut = len(models), self.parameters.shape[1]
        self.parameters[:rows], self.kept[:rows] = models[:, :cut], models[:, cut:]
        self.counters[:rows], self.address[:rows] = counters, address
        self.total.zero_()
        self.step.zero_()

    def load_optimiser(self, moments: Tensor | None, numbers: Tensor) -> None:
        """Copy states [A, n P] (None: zeros) and the numbers of every step [A, S, n] here."""
        rows, steps, _ = numbers.shape
        if moments is None:
            self.moments.zero_()
        else:
            self.moments[:rows] = moments
        self.numbers[:steps, :, :rows] = numbers.permute(1, 2, 0)
        if steps:
            self.now.copy_(self.numbers[0])

    def next_numbers(self) -> None:
        """Take the optimiser's numbers of the current step."""
        self.now.copy_(self.numbers.index_select(0, self.step)[0])

    def load_counts(self, counts: Tensor) -> None:
        """Copy the sizes of the mini-batches, [S, A], into the buffers."""
        steps, rows = counts.shape
        self.counts[:steps, :rows] = counts
        self.counts[:steps, rows:] = 0

    def models(self, rows: int) -> Tensor:
        """Return a copy of the models of the first rows."""
        return torch.cat([self.parameters[:rows], self.kept[:rows]], 1)


def static_buffers(
    sizes: tuple[int, int, int],
    shape: tuple[int, int, int],
    device: torch.device,
    optimiser: Optimiser = PLAIN,
) -> StaticBuffers:
    """Allocate buffers.

    Args:
        sizes: Trained parameters P, other floats W - P and counters C of a model.
        shape: Steps S, rows M and samples b of a mini-batch.
        device: The device of the buffers.
        optimiser: Whose state and numbers they hold.
    """
    numbers = optimiser.numbers_of_a_step
    (trained, kept, counted), (steps, rows, batch) = sizes, shape
    return StaticBuffers(
        parameters=torch.zeros(rows, trained, device=device),
        kept=torch.zeros(rows, kept, device=device),
        counters=torch.zeros(rows, counted, dtype=torch.int64, device=device),
        table=torch.zeros(steps, rows, batch, dtype=torch.int32, device=device),
        counts=torch.zeros(steps, rows, dtype=torch.int32, device=device),
        moments=torch.zeros(rows, optimiser.moments * trained, device=device),
        numbers=torch.zeros(steps, numbers, rows, device=device),
        now=torch.zeros(numbers, rows, device=device),
        address=torch.zeros(rows, dtype=torch.int64, device=device),
        total=torch.zeros(rows, dtype=torch.float64, device=device),
        step=torch.zeros(1, dtype=torch.int64, device=device),
        count=torch.zeros(rows, dtype=torch.int32, device=device),
    )


def model_sizes(layout: Layout) -> tuple[int, int, int]:
    """Return trained parameters P, other floats W - P and counters C of a model."""
    return layout.parameters, layout.width - layout.parameters, layout.counters


class BatchSampler:
    """Samples mini-batches with two kernels and a sort: `sample_table` with fewer launches."""

    def __init__(self, shards: DeviceShards, seed: int, batch: int) -> None:
        self._shards, self._batch = shards, batch
        self._start = torch.tensor([_first_state(seed)], device=shards.start.device)

    def fill(self, trainings: Trainings, table: Tensor) -> None:
        """Fill the first rows of a table [S, M, b] with the samples of these trainings."""
        shards, rows = self._shards, len(trainings.workers)
        workers, versions = (
            upload(part, table.device) for part in (trainings.workers, trainings.versions)
        )
        width = max(int(trainings.sizes.max(initial=0)), 1)
        columns = int(trainings.steps.max(initial=0)) * self._batch
        keys = torch.empty(rows, width, dtype=torch.int64, device=table.device)
        for epoch in range(trainings.epochs(self._batch)):
            launch(
                kernels.sort_keys, (rows, -(-width // BLOCK)), workers, versions, shards.sizes,
                self._start, epoch, keys, width, BLOCK=BLOCK,
            )  # fmt: skip
            order = keys.sort(dim=1, stable=True).indices
            launch(
                kernels.fill_table, (rows, -(-columns // BLOCK)),
                order, workers, shards.sizes, shards.start, shards.samples, table, epoch, columns,
                table.shape[1], width, BATCH=self._batch, BLOCK=BLOCK,
            )  # fmt: skip


def _first_state(seed: int) -> int:
    """Return the bits of the address before its first part, as a signed integer."""
    return int(bits(seed, "batches").astype(np.int64))


def table_filler(problem: Problem) -> Callable[[Trainings, Tensor], None]:
    """Return the function that fills tables: with kernels on a GPU, else with torch."""
    shards = shards_on(problem.shards, problem.device)
    if problem.device.type == "cuda":
        return BatchSampler(shards, problem.seed, problem.batch).fill

    def fill(trainings: Trainings, table: Tensor) -> None:
        drawn = sample_table(shards, problem.seed, trainings, problem.batch)
        table[: drawn.shape[0], : drawn.shape[1]] = drawn

    return fill
