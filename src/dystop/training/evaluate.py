"""Evaluation: score and loss of many models on the test set.

`evaluate` is the reference and works on every device. Other back ends return the same numbers.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from dystop.sparse import Floats, Ints
from dystop.training.device import autocast, download
from dystop.training.flat import Layout
from dystop.training.samples import Samples
from dystop.training.tasks.task import CLASSIFICATION, Task
from dystop.types import Score

WORST = -1e6
"""The lowest score: that of a model whose outputs are not finite. Records hold finite numbers."""


@dataclass(frozen=True)
class Evaluation:
    """Score and loss of M models, in the order of the models."""

    accuracy: Floats  # [M], the score of the task: of a classification, the share of right classes
    loss: Floats  # [M], mean over the samples


class Evaluated(Protocol):
    """Score and loss of M models. Reading them waits for the device to finish."""

    @property
    def accuracy(self) -> Floats:
        """Score of the task, [M]: of a classification, the share of right classes."""

    @property
    def loss(self) -> Floats:
        """Mean loss over the samples, [M]."""


def score_from(each: Evaluated, whole: Evaluated, name: str = "accuracy") -> Score:
    """Sum up the results of the workers' own models and of the global model.

    Args:
        each: Results of the workers' own models.
        whole: Result of the global model.
        name: Name of the score of the task.
    """
    finite = np.isfinite(each.loss)
    return Score(
        accuracy=float(each.accuracy.mean()),
        accuracy_std=float(each.accuracy.std()),
        accuracy_global=float(whole.accuracy[0]),
        loss=float(each.loss[finite].mean()) if finite.any() else math.nan,
        loss_global=float(whole.loss[0]),
        diverged=int((~finite).sum()),
        name=name,
    )


def with_workers(score: Score, each: Evaluated, workers: Ints, count: int) -> Score:
    """Return the score with the results of single workers.

    None stands for a worker that was not tested, and for a result that is not finite.

    Args:
        score: The score of all workers together.
        each: The results of some workers' own models.
        workers: Who they are, in the order of the models.
        count: Number of all workers N.
    """

    def of_all(values: Floats) -> tuple[float | None, ...]:
        known = dict(zip(workers.tolist(), values.tolist(), strict=True))
        finite = (known.get(worker, math.nan) for worker in range(count))
        return tuple(value if math.isfinite(value) else None for value in finite)

    return replace(score, worker_accuracy=of_all(each.accuracy), worker_loss=of_all(each.loss))


class PendingEvaluation:
    """An evaluation that a device is still computing."""

    def __init__(self, wait: Callable[[], Evaluation]) -> None:
        self._wait = wait

    @cached_property
    def _found(self) -> Evaluation:
        return self._wait()

    @property
    def accuracy(self) -> Floats:
        """Score of the task, [M]."""
        return self._found.accuracy

    @property
    def loss(self) -> Floats:
        """Mean loss over the samples, [M]."""
        return self._found.loss


@dataclass(frozen=True)
class EvalTask:
    """What models are evaluated with: a module, test samples, and how many of them at once."""

    module: nn.Module  # in evaluation mode; of its own tensors only the base of adapters is used
    layout: Layout
    samples: Samples
    chunk: int  # models in one stack
    batch: int  # samples in one forward pass
    precision: str = "float32"
    learned: Task = CLASSIFICATION  # whose score and loss are computed


def stratified_first(labels: Ints, count: int) -> Ints:
    """Return the indices of the first samples of every class, in proportion, ascending.

    >>> stratified_first(np.array([0, 0, 0, 0, 1, 1]), 3).tolist()
    [0, 1, 4]
    """
    order = np.argsort(labels, kind="stable")
    sizes = np.unique(labels, return_counts=True)[1]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    share = (rank + 0.5) / np.repeat(sizes, sizes)
    return np.sort(order[np.argsort(share, kind="stable")[:count]])


@torch.no_grad()
def evaluate(task: EvalTask, models: Tensor, counters: Tensor, index: Tensor) -> Evaluated:
    """Evaluate a stack of models [m, W] on the test samples of this index."""
    loss = torch.zeros(len(models), dtype=torch.float64, device=models.device)
    measures = []
    state = task.layout.unflatten(models, counters)
    for piece in pieces(len(index), task.batch):
        x, y = task.samples.take(index[piece])
        with autocast(models.device, task.precision):
            outputs = _outputs(task.module, state, x).float()
        each = outputs.flatten(0, 1), y.repeat(len(models), *(1 for _ in y.shape[1:]))
        loss += _summed(task.learned.losses(*each)[:, None], len(models))[:, 0]
        measures.append(_summed(task.learned.measures(*each), len(models)))
    score = task.learned.score(torch.stack(measures).sum(0) / len(index))
    score = score.nan_to_num(nan=WORST).clamp(WORST, 1.0)
    found = [download(part) for part in (score, loss / len(index))]
    return PendingEvaluation(lambda: Evaluation(*(part() for part in found)))


def join(parts: list[Evaluated]) -> Evaluated:
    """Join the results of consecutive stacks, without waiting for them."""
    if len(parts) == 1:
        return parts[0]

    def joined() -> Evaluation:
        none = np.zeros(0)
        return Evaluation(
            np.concatenate([none, *(part.accuracy for part in parts)]),
            np.concatenate([none, *(part.loss for part in parts)]),
        )

    return PendingEvaluation(joined)


def pieces(total: int, step: int) -> Iterator[slice]:
    """Return consecutive slices of at most `step`."""
    return (slice(start, min(start + step, total)) for start in range(0, total, step))


def _outputs(module: nn.Module, state: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return the outputs [m, b, ...] of m models on the same samples."""

    def call(one: dict[str, Tensor]) -> Tensor:
        out: Tensor = functional_call(module, one, (x,))
        return out

    models = len(next(iter(state.values())))
    if models == 1:  # without vmap, which not all modules support
        return call({name: value[0] for name, value in state.items()})[None]
    out: Tensor = vmap(call)(state)
    return out


def _summed(each: Tensor, models: int) -> Tensor:
    """Sum numbers of every sample [m * b, k] over the samples, [m, k], in double precision."""
    return each.view(models, -1, each.shape[1]).sum(1, dtype=torch.float64)
