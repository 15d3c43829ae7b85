"""Evaluation: accuracy and loss of many models on the test set.

`evaluate` is the reference and works on every device. Other back ends return the same numbers.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from dystop.sparse import Floats, Ints
from dystop.training.device import autocast, download
from dystop.training.flat import Layout
from dystop.training.samples import Samples
from dystop.types import Score


@dataclass(frozen=True)
class Evaluation:
    """Accuracy and loss of M models, in the order of the models."""

    accuracy: Floats  # [M], share of the samples whose highest score is the right class
    loss: Floats  # [M], mean cross-entropy


class Evaluated(Protocol):
    """Accuracy and loss of M models. Reading them waits for the device to finish."""

    @property
    def accuracy(self) -> Floats:
        """Share of the samples whose highest score is the right class, [M]."""

    @property
    def loss(self) -> Floats:
        """Mean cross-entropy, [M]."""


def score_from(each: Evaluated, whole: Evaluated) -> Score:
    """Sum up the results of the workers' own models and of the global model."""
    finite = np.isfinite(each.loss)
    return Score(
        accuracy=float(each.accuracy.mean()),
        accuracy_std=float(each.accuracy.std()),
        accuracy_global=float(whole.accuracy[0]),
        loss=float(each.loss[finite].mean()) if finite.any() else math.nan,
        loss_global=float(whole.loss[0]),
        diverged=int((~finite).sum()),
    )


class PendingEvaluation:
    """An evaluation that a device is still computing."""

    def __init__(self, wait: Callable[[], Evaluation]) -> None:
        self._wait = wait

    @cached_property
    def _found(self) -> Evaluation:
        return self._wait()

    @property
    def accuracy(self) -> Floats:
        """Share of the samples whose highest score is the right class, [M]."""
        return self._found.accuracy

    @property
    def loss(self) -> Floats:
        """Mean cross-entropy, [M]."""
        return self._found.loss


@dataclass(frozen=True)
class EvalTask:
    """What models are evaluated with: a module, test samples, and how many of them at once."""

    module: nn.Module  # in evaluation mode; its own tensors are never used
    layout: Layout
    samples: Samples
    chunk: int  # models in one stack
    batch: int  # samples in one forward pass
    precision: str = "float32"


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
    correct = torch.zeros(len(models), dtype=torch.float64, device=models.device)
    loss = torch.zeros_like(correct)
    state = task.layout.unflatten(models, counters)
    for piece in pieces(len(index), task.batch):
        x, y = task.samples.take(index[piece])
        with autocast(models.device, task.precision):
            scores = _scores(task.module, state, x).float()
        correct += (scores.argmax(2) == y).sum(1)
        loss += _summed_loss(scores, y)
    found = [download(part / len(index)) for part in (correct, loss)]
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


def _scores(module: nn.Module, state: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return the class scores [m, b, K] of m models on the same samples."""

    def call(one: dict[str, Tensor]) -> Tensor:
        out: Tensor = functional_call(module, one, (x,))
        return out

    models = len(next(iter(state.values())))
    if models == 1:  # without vmap, which not all modules support
        return call({name: value[0] for name, value in state.items()})[None]
    out: Tensor = vmap(call)(state)
    return out


def _summed_loss(scores: Tensor, y: Tensor) -> Tensor:
    """Sum the cross-entropy of every model over the samples, [m], in double precision."""
    models, samples, _ = scores.shape
    each = F.cross_entropy(scores.flatten(0, 1), y.repeat(models), reduction="none")
    return each.view(models, samples).sum(1, dtype=torch.float64)
