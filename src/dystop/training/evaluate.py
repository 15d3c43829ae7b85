"""Accuracy and loss of many models on the test set."""

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
    """Results of M models, in the order they were given."""

    accuracy: Floats  # [M], share of the samples whose highest score is the right class
    loss: Floats  # [M], mean cross-entropy


class Evaluated(Protocol):
    """Results of M models; a device may still be at work, and whoever reads them waits for it."""

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


class Awaited:
    """Results that a device will have."""

    def __init__(self, wait: Callable[[], Evaluation]) -> None:
        self._wait = wait

    @cached_property
    def _found(self) -> Evaluation:
        return self._wait()

    @property
    def accuracy(self) -> Floats:
        """As in `Evaluation`."""
        return self._found.accuracy

    @property
    def loss(self) -> Floats:
        """As in `Evaluation`."""
        return self._found.loss


@dataclass(frozen=True)
class EvalTask:
    """What the models are examined with."""

    module: nn.Module  # in evaluation mode; its own tensors are never used
    layout: Layout
    samples: Samples
    chunk: int  # models at once
    batch: int  # samples at once
    precision: str = "float32"


def stratified_first(labels: Ints, count: int) -> Ints:
    """The first samples of every class, in proportion to the classes; ascending, no randomness.

    >>> stratified_first(np.array([0, 0, 0, 0, 1, 1]), 3).tolist()
    [0, 1, 4]
    """
    order = np.argsort(labels, kind="stable")
    sizes = np.unique(labels, return_counts=True)[1]
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    share = (rank + 0.5) / np.repeat(sizes, sizes)
    return np.sort(order[np.argsort(share, kind="stable")[:count]])


@torch.no_grad()
def evaluate(exam: EvalTask, models: Tensor, counters: Tensor, index: Tensor) -> Evaluated:
    """Examine a stack of models [m, W] with the test samples of this index."""
    right = torch.zeros(len(models), dtype=torch.float64, device=models.device)
    loss = torch.zeros_like(right)
    state = exam.layout.unflatten(models, counters)
    for some in pieces(len(index), exam.batch):
        x, y = exam.samples.take(index[some])
        with autocast(models.device, exam.precision):
            scores = _scores(exam.module, state, x).float()
        right += (scores.argmax(2) == y).sum(1)
        loss += _summed_loss(scores, y)
    found = [download(part / len(index)) for part in (right, loss)]
    return Awaited(lambda: Evaluation(*(part() for part in found)))


def join(parts: list[Evaluated]) -> Evaluated:
    """Results of consecutive stacks as one; does not wait for them."""
    if len(parts) == 1:
        return parts[0]

    def joined() -> Evaluation:
        none = np.zeros(0)
        return Evaluation(
            np.concatenate([none, *(part.accuracy for part in parts)]),
            np.concatenate([none, *(part.loss for part in parts)]),
        )

    return Awaited(joined)


def pieces(total: int, step: int) -> Iterator[slice]:
    """Consecutive slices of at most `step`."""
    return (slice(start, min(start + step, total)) for start in range(0, total, step))


def _scores(module: nn.Module, state: dict[str, Tensor], x: Tensor) -> Tensor:
    """Class scores [m, b, K] of m models on the same samples."""

    def call(one: dict[str, Tensor]) -> Tensor:
        out: Tensor = functional_call(module, one, (x,))
        return out

    models = len(next(iter(state.values())))
    if models == 1:  # without vmap, for modules that do not bear it
        return call({name: value[0] for name, value in state.items()})[None]
    out: Tensor = vmap(call)(state)
    return out


def _summed_loss(scores: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy of every model summed over the samples, [m], in double precision."""
    models, samples, _ = scores.shape
    each = F.cross_entropy(scores.flatten(0, 1), y.repeat(models), reduction="none")
    return each.view(models, samples).sum(1, dtype=torch.float64)
