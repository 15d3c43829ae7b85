"""Local training of one worker after another.

This is the reference for all other back ends, and the back end for large models on a CPU.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call

from dystop.training.device import autocast
from dystop.training.local_steps.optimisers import RATE
from dystop.training.local_steps.privacy import private_gradient
from dystop.training.problem import Job, Problem, Trained
from dystop.training.randomness import seed_generators


def train(problem: Problem, job: Job) -> Trained:
    """Train every row of the job by itself."""
    models, counters = job.models.clone(), job.counters.clone()
    moments = problem.first_moments(job)
    loss, seen = np.full(len(job.workers), np.nan), 0
    for row in range(len(job.workers)):
        index, counts = _mini_batches(problem, job, row)
        address = (int(job.workers[row]), int(job.versions[row]))
        numbers = problem.step_numbers(job.rows(np.array([row])), len(counts))[0].tolist()
        state = (models[row], counters[row], moments[row])
        correction = None if job.correction is None else job.correction[row]
        total = _train_row(problem, state, (index, counts, numbers), address, correction)
        if counts:
            loss[row] = float(total) / sum(counts)
        seen += sum(counts)
    return Trained(models, counters, loss, seen, None if job.moments is None else moments)


def _seeded(problem: Problem, address: tuple[int, int, int]) -> AbstractContextManager[None]:
    """Seed torch's generators by an address if the module draws from them."""
    if not problem.draws:
        return nullcontext()
    return seed_generators(problem.device, problem.seed, "dropout", *address)


def _mini_batches(problem: Problem, job: Job, row: int) -> tuple[Tensor, list[int]]:
    """Return the sample numbers [steps, batch] of one row and the sizes of its mini-batches."""
    one = slice(row, row + 1)
    batches = problem.batches(job.workers[one], job.versions[one], job.steps[one])
    return problem.indices(job.workers[one], batches.positions)[0], batches.counts[0].tolist()


def _train_row(
    problem: Problem,
    state: tuple[Tensor, Tensor, Tensor],
    work: tuple[Tensor, list[int], list[list[float]]],
    address: tuple[int, int],
    correction: Tensor | None = None,
) -> Tensor:
    """Train one flat model in place; return the loss summed over the samples."""
    model, counters, moments = state
    cut = problem.layout.parameters
    # Two tensors: in one, autograd would take an update of the buffers for a change of the
    # parameters that it has saved.
    parameters, kept = model[:cut].clone(), model[cut:].clone()
    total = torch.zeros((), dtype=torch.float64, device=model.device)
    training = problem.addresses(*np.array(address)[:, None])
    addresses = problem.batch_addresses(training, torch.arange(len(work[1]), device=model.device))
    for k, (index, count, numbers) in enumerate(zip(*work, strict=True)):
        with _seeded(problem, (*address, k)):
            tensors = (parameters, kept, counters, moments)
            if problem.privacy is None:
                some = index[:count]
                loss = train_step(problem, tensors, some, numbers, addresses[k], correction)
            else:
                step = (*address, k)
                loss = private_step(problem, tensors, numbers, step, addresses[k], correction)
            total += count * loss
    model[:cut], model[cut:] = parameters, kept
    return total


def train_step(
    problem: Problem,
    state: tuple[Tensor, Tensor, Tensor, Tensor],
    index: Tensor,
    numbers: Sequence[float],
    address: Tensor,
    correction: Tensor | None = None,
) -> Tensor:
    """Take one step on (parameters, other floats, counters, moments), in place; return the loss."""
    parameters, kept, counters, moments = state
    x, y = problem.take(index, address)
    leaf = parameters.detach().requires_grad_()
    with autocast(problem.device, problem.precision):
        named = problem.named((leaf, kept, counters), address)
        outputs = functional_call(problem.module, named, (x,))
    loss = problem.task.loss(outputs.float(), y)
    (gradient,) = torch.autograd.grad(loss, leaf)
    _descend(problem, parameters, _corrected(gradient, correction), moments, numbers)
    return loss.detach()


def private_step(
    problem: Problem,
    state: tuple[Tensor, Tensor, Tensor, Tensor],
    numbers: Sequence[float],
    step: tuple[int, int, int],
    address: Tensor,
    correction: Tensor | None = None,
) -> Tensor:
    """Take one differentially private step in place; return the mean loss of its samples."""
    parameters, kept, counters, moments = state
    assert problem.privacy is not None
    gradient, loss = private_gradient(
        problem, problem.privacy, (parameters, kept, counters), step, address
    )
    _descend(problem, parameters, _corrected(gradient, correction), moments, numbers)
    return loss


def _corrected(gradient: Tensor, correction: Tensor | None) -> Tensor:
    return gradient if correction is None else gradient + correction


def _descend(
    problem: Problem,
    parameters: Tensor,
    gradient: Tensor,
    moments: Tensor,
    numbers: Sequence[float],
) -> None:
    """Change the parameters by a gradient, in place."""
    if problem.l2:
        gradient = gradient + problem.l2 * parameters
    if problem.optimiser.is_plain:
        parameters.sub_(gradient, alpha=numbers[RATE])
    else:
        problem.optimiser.step(parameters, gradient, moments, numbers)
