"""Local training of many workers at once: one tensor program over a stack of models.

Each row is trained as in `sequential`. Rows are sorted by their number of steps, so the rows that
still train at step k are the first ones of the stack. Short mini-batches are filled up with samples
of weight zero. If the samples of a batch influence each other (batch norm), rows with equal batch
sizes train together instead, and nothing is filled up.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap

from dystop.sparse import Ints
from dystop.training.backend_choice import couples_samples
from dystop.training.problem import Job, Problem, Trained


@dataclass(frozen=True)
class Stack:
    """The models of some rows in training, updated in place."""

    parameters: Tensor  # [m, P]
    kept: Tensor  # [m, W - P]
    counters: Tensor  # [m, C]
    moments: Tensor  # [m, n P]

    def rows(self, rows: slice | Tensor) -> "Stack":
        """Return a slice of the stack (a view), or a selection (a copy)."""
        parts = (self.parameters, self.kept, self.counters, self.moments)
        return Stack(*(part[rows] for part in parts))

    def put(self, rows: Tensor, part: "Stack") -> None:
        """Write a selection back."""
        self.parameters[rows] = part.parameters
        self.kept[rows] = part.kept
        self.counters[rows] = part.counters
        self.moments[rows] = part.moments


def train(problem: Problem, job: Job) -> Trained:
    """Train all rows of the job in one stack."""
    # A worker without data takes no step.
    steps = np.where(problem.shards.sizes[job.workers] > 0, job.steps, 0)
    order = np.argsort(-steps, kind="stable")
    part = job.rows(order)
    moments = problem.first_moments(part)
    total, counts = _train_stack(problem, part, moments)
    with np.errstate(invalid="ignore"):
        loss = total.cpu().numpy() / counts.sum(1)
    back = np.argsort(order, kind="stable")
    where = torch.from_numpy(back).to(part.models.device)
    after = None if job.moments is None else moments[where]
    return Trained(part.models[where], part.counters[where], loss[back], int(counts.sum()), after)


def _train_stack(problem: Problem, part: Job, moments: Tensor) -> tuple[Tensor, Ints]:
    """Train rows sorted by step count, largest first, in place; return summed losses and counts."""
    cut = problem.layout.parameters
    parameters, kept = part.models[:, :cut].clone(), part.models[:, cut:].clone()
    stack = Stack(parameters, kept, part.counters, moments)
    batches = problem.batches(part.workers, part.versions, part.steps)
    index = problem.indices(part.workers, batches.positions)
    count = torch.from_numpy(batches.counts).to(problem.device)
    total = torch.zeros(len(part.workers), dtype=torch.float64, device=problem.device)
    numbers = problem.step_numbers(part, batches.counts.shape[1]).to(stack.parameters)
    is_exact = couples_samples(problem.module)
    address = problem.addresses(part.workers, part.versions)
    for k in range(batches.counts.shape[1]):
        for rows, width in _groups(batches.counts[:, k], is_exact):
            where = rows if isinstance(rows, slice) else torch.from_numpy(rows).to(count.device)
            some = stack.rows(where)
            picked = (index[where, k, :width], count[where, k])
            batch_address = problem.batch_addresses(address[where], address.new_tensor(k))
            total[where] += train_step(problem, some, picked, numbers[where, k], batch_address)
            if isinstance(where, Tensor):
                stack.put(where, some)
    part.models[:, :cut], part.models[:, cut:] = stack.parameters, stack.kept
    return total, batches.counts


def _groups(counts: Ints, is_exact: bool) -> Iterator[tuple[slice | Ints, int]]:
    """Yield the rows that train together in a step, with their batch size.

    The rows that still train come first, because rows are sorted by their number of steps.
    """
    counts = counts[: np.count_nonzero(counts)]
    if not is_exact or counts.min() == counts.max():
        yield slice(0, len(counts)), int(counts.max())
        return
    for size in np.unique(counts):
        yield np.flatnonzero(counts == size), int(size)


def train_step(
    problem: Problem, stack: Stack, picked: tuple[Tensor, Tensor], numbers: Tensor, address: Tensor
) -> Tensor:
    """Take one step of every row, in place; `picked` is (index [m, b], count [m]).

    The losses of all rows are summed before the gradient is taken. Rows share no parameter, so each
    row of the gradient belongs to that row alone.
    """
    index, count = picked
    x, y = problem.take(index, address)
    leaf = stack.parameters.detach().requires_grad_()
    # Batch norm under vmap loses its update of a running statistic that is not contiguous.
    named = problem.named((leaf, stack.kept, stack.counters), address)
    buffers = {slot.name: named[slot.name].contiguous() for slot in problem.layout.kept}
    outputs = vmap(lambda state, xs: functional_call(problem.module, state, (xs,)))(
        named | buffers, x
    )
    each = problem.task.losses(outputs.flatten(0, 1), y.flatten(0, 1)).view(index.shape)
    weight = torch.arange(index.shape[1], device=y.device) < count[:, None]
    loss = (each * weight).sum(1)
    (gradient,) = torch.autograd.grad((loss / count).sum(), leaf)
    if problem.l2:
        gradient = gradient + problem.l2 * leaf.detach()
    problem.optimiser.step(stack.parameters, gradient, stack.moments, numbers.T[..., None])
    for name, value in buffers.items():
        named[name].copy_(value)
    return loss.detach()
