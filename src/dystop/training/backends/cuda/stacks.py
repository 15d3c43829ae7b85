"""The back end for small models on a CUDA device: a stack of them, trained by one CUDA graph.

Rows are sorted by their number of steps, so the rows that still train are the first ones. A step is
captured for a few heights (powers of two). It leaves rows without samples as they are.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from dystop.sparse import Floats, Ints
from dystop.training.backend_choice import couples_samples
from dystop.training.backends.cuda.buffers import (
    StaticBuffers,
    model_sizes,
    static_buffers,
    table_filler,
)
from dystop.training.backends.cuda.graphs import EagerRunner, GraphRunner, StepRunner
from dystop.training.backends.cuda.stages import stages_if_supported
from dystop.training.device import autocast, download, finish, upload
from dystop.training.local_steps.batches import Trainings
from dystop.training.problem import Job, Problem, Trained

StackStep = Callable[[int], None]  # trains the first rows of the buffers on their next mini-batch
PRODUCTS = {"float32": "tf32x3", "bfloat16": "bf16"}  # how kernels multiply; tf32x3 is as exact
MIN_HEIGHT = 8  # rows; a graph for fewer rows would hardly be faster


def can_stack(problem: Problem) -> bool:
    """Return whether short mini-batches may be filled up: not if samples influence each other."""
    return not couples_samples(problem.module)


class StackBackend:
    """Trains jobs of up to `height` rows; keeps its buffers and graphs between jobs."""

    def __init__(self, problem: Problem, height: int) -> None:
        self._problem, self._height = problem, height
        self._fill_table = table_filler(problem)
        self._sizes = problem.shards.sizes
        self._allocate(int(-(-self._sizes.max(initial=1) // problem.batch)))

    def _allocate(self, steps: int) -> None:
        """Allocate buffers for so many steps; no graph is captured yet."""
        problem = self._problem
        shape = (steps, self._height, problem.batch)
        sizes = model_sizes(problem.layout)
        self.buffers = static_buffers(sizes, shape, problem.device, problem.optimiser)
        self._step = step_for(problem, self.buffers)
        on_cuda = problem.device.type == "cuda"
        compiles = getattr(self._step, "compiles", None)
        self._runner: StepRunner = (
            GraphRunner(self.buffers.changing, compiles) if on_cuda else EagerRunner()
        )

    def __call__(self, problem: Problem, job: Job) -> Trained:
        """Train every row of the job."""
        sizes = self._sizes[job.workers]
        steps = np.where(sizes > 0, job.steps, 0)
        order = np.argsort(-steps, kind="stable")
        ordered = job.rows(order)
        trainings = Trainings(ordered.workers, ordered.versions, sizes[order], steps[order])
        counts = trainings.counts(problem.batch)
        if counts.shape[1] > len(self.buffers.table):
            finish(problem.device)  # graphs that may still run are about to be dropped
            self._allocate(2 * counts.shape[1])
        self._load(ordered, trainings, counts)
        for rows in np.count_nonzero(counts, axis=0):
            self._train_first(int(rows))
        return self._result(order, counts, keeps=job.moments is not None)

    def _load(self, job: Job, trainings: Trainings, counts: Ints) -> None:
        problem, device = self._problem, self._problem.device
        addresses = problem.addresses(job.workers, job.versions)
        self.buffers.load(job.models, job.counters, addresses)
        self.buffers.load_optimiser(job.moments, problem.step_numbers(job, counts.shape[1]))
        self._fill_table(trainings, self.buffers.table)
        self.buffers.load_counts(upload(counts.T.astype(np.int32), device))

    def _train_first(self, rows: int) -> None:
        """Run a step for at least so many rows."""
        height = min(max(MIN_HEIGHT, 1 << (rows - 1).bit_length()), self._height)
        self._runner.run(height, lambda: self._step(height))

    def _result(self, order: Ints, counts: Ints, *, keeps: bool) -> Trained:
        rows, seen = len(order), counts.sum(1)
        back = np.argsort(order, kind="stable")
        where = upload(back, self.buffers.total.device)
        models, total = self.buffers.models(rows)[where], download(self.buffers.total[:rows])

        def losses() -> Floats:
            with np.errstate(invalid="ignore"):
                mean: Floats = total() / seen
            return mean[back]

        moments = self.buffers.moments[:rows][where] if keeps else None
        counters = self.buffers.counters[:rows][where]
        return Trained(models, counters, losses, int(seen.sum()), moments)


def step_for(problem: Problem, buffers: StaticBuffers) -> StackStep:
    """Return a step of dystop's own kernels if they support the network, else a step of torch."""
    stages = stages_if_supported(problem.module, problem.layout, problem.samples.shape)
    if problem.device.type != "cuda" or not problem.suits_kernels or stages is None:
        return VmapStep(problem, buffers)
    from dystop.training.backends.cuda.stage_passes import StageStep

    precision, changes = PRODUCTS[problem.precision], problem.optimiser.changes_numbers
    return StageStep(stages, buffers, problem.samples, precision, changes_rate=changes)


class VmapStep:
    """One step of the first rows of the buffers, for any module that `vmap` supports."""

    def __init__(self, problem: Problem, buffers: StaticBuffers) -> None:
        self.problem, self.buffers = problem, buffers

    def __call__(self, rows: int) -> None:
        """Gather the samples, compute loss and gradient, update."""
        buffers = self.buffers
        index = buffers.table.index_select(0, buffers.step)[0, :rows]
        buffers.count.copy_(buffers.counts.index_select(0, buffers.step)[0])
        count = buffers.count[:rows, None]
        leaf = buffers.parameters[:rows].detach().requires_grad_()
        loss = self._losses(leaf, index.long(), count)
        (gradient,) = torch.autograd.grad((loss / count[:, 0].clamp(min=1)).sum(), leaf)
        self._update(gradient, count > 0)
        buffers.total[:rows] += loss.detach()
        buffers.step.add_(1)

    def _update(self, gradient: Tensor, has_samples: Tensor) -> None:
        """Take a step of the optimiser in the rows that have samples."""
        optimiser, buffers, rows = self.problem.optimiser, self.buffers, len(gradient)
        if optimiser.changes_numbers:
            buffers.next_numbers()
        before = (buffers.parameters[:rows], buffers.moments[:rows])
        after = tuple(part.clone() for part in before)
        optimiser.step(after[0], gradient, after[1], buffers.now[:, :rows, None])
        for old, new in zip(before, after, strict=True):
            old.copy_(torch.where(has_samples, new, old))

    def _losses(self, leaf: Tensor, index: Tensor, count: Tensor) -> Tensor:
        """Return the loss of every row, summed over the samples of its mini-batch, [m]."""
        problem, buffers, rows = self.problem, self.buffers, len(index)
        addresses = problem.batch_addresses(buffers.address[:rows], buffers.step)
        x, y = problem.take(index, addresses)
        state = (leaf, buffers.kept[:rows], buffers.counters[:rows])
        named = problem.named(state, addresses)
        with autocast(problem.device, problem.precision):
            outputs = vmap(lambda state, xs: functional_call(problem.module, state, (xs,)))(
                named, x
            )
        each = problem.task.losses(outputs.flatten(0, 1).float(), y.flatten(0, 1))
        used = torch.arange(index.shape[1], device=y.device) < count
        return torch.where(used, each.view(index.shape), 0.0).sum(1)
