"""`Task`: what models learn from samples, and how good they are at it.

A task says what is learned of a sample (`targets`), what a model returns (`outputs`), the loss that
training minimises (`losses`), and the score that records and reports show (`measures`, `score`).
Every back end calls it on plain tensors. The compiled kernels know one loss, the cross-entropy of
class scores, and train no other task.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from dystop.errors import ConfigError
from dystop.sparse import Ints


@dataclass(frozen=True)
class SampleKind:
    """What a model must know of the samples of a data set."""

    shape: tuple[int, ...]  # of one sample
    classes: int  # of the labels
    tokens: int = 0  # size of the vocabulary; 0: samples are numbers
    values: int = 0  # numbers that a regression predicts for one sample; 0: the set has none


class Task:
    """What is learned. A task of your own overrides what is different.

    A sample is stored as it comes: bytes are normalised as (x / 255 - mean) / std when a mini-batch
    is taken, floats as (x - mean) / std, and other integers are token ids, which stay as they are.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    score_name: ClassVar[str] = "accuracy"
    """Name of the score in records and reports. More is better, and 1 is the most."""
    least_loss: ClassVar[float] = -math.inf
    """No loss is below it. A testbed refuses a lower one that a worker reports."""
    default_model: ClassVar[str] = ""
    """The model if nobody names one; empty: `cnn`, `mlp` or `transformer`, by the samples."""

    def __init_subclass__(cls) -> None:
        """Forget the least loss of another task where the loss is a new one."""
        super().__init_subclass__()
        own = vars(cls)
        if {"losses", "loss"} & own.keys() and "least_loss" not in own:
            cls.least_loss = Task.least_loss

    def targets(self, labels: Ints, values: NDArray[Any] | None) -> NDArray[Any]:
        """Return what is learned of every sample: by default its class.

        Args:
            labels: Class of every sample, [n]. The samples are divided by it, whatever is learned.
            values: Targets that are no classes, [n, ...]; None if the data set has none.
        """
        return labels

    def outputs(self, kind: SampleKind) -> tuple[int, ...]:
        """Return the shape of what a model returns for one sample."""
        return (kind.classes,)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of every sample, [b]; training minimises the mean over a mini-batch."""
        raise NotImplementedError(f"{type(self).__name__} has no losses")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss of a mini-batch; a task may compute it in fewer steps."""
        return self.losses(outputs, targets).mean()

    def measures(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return numbers of every sample, [b, m], from whose means the score is computed."""
        raise NotImplementedError(f"{type(self).__name__} has no measures")

    def score(self, means: Tensor) -> Tensor:
        """Return the score [...] from the means of the measures over the test samples [..., m]."""
        return means[..., 0]

    @property
    def has_kernels(self) -> bool:
        """Whether the loss is the one of the compiled kernels."""
        kind = type(self)
        return kind.losses is Classification.losses and kind.measures is Classification.measures


class Classification(Task):
    """One class for each sample: cross-entropy of class scores."""

    name = "classification"
    summary = "one class for each sample (images, tables or token ids); cross-entropy"
    least_loss = 0.0

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy of every sample, [b]."""
        return F.cross_entropy(outputs, targets, reduction="none")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy, in one step."""
        return F.cross_entropy(outputs, targets)

    def measures(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 for every sample whose highest score is the right class, else 0."""
        return (outputs.argmax(1) == targets)[:, None]


class NextToken(Task):
    """The token that follows each token: mean cross-entropy over the tokens of a sample."""

    name = "next-token"
    summary = "the token that follows each token of a text; cross-entropy"
    least_loss = 0.0

    def targets(self, labels: Ints, values: NDArray[Any] | None) -> NDArray[Any]:
        """Return the tokens that follow, [n, T]."""
        return _given(values, "next-token", "iu", "the token ids that follow, of shape [n, T]")

    def outputs(self, kind: SampleKind) -> tuple[int, ...]:
        """Return a score for every token of the vocabulary, at every position."""
        if not kind.tokens:
            raise _unsuited("next-token", "has no token ids", "integers of shape [n, T]")
        return (*kind.shape, kind.tokens)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy over the tokens of every sample, [b]."""
        each = F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none")
        return each.view(targets.shape).mean(1)

    def measures(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the share of right tokens of every sample."""
        return (outputs.argmax(2) == targets).double().mean(1, keepdim=True)


class Regression(Task):
    """Numbers for each sample: mean squared error, and R2, the explained share of the variance."""

    name = "regression"
    summary = "numbers for each sample; mean squared error"
    score_name = "r2"
    least_loss = 0.0

    def targets(self, labels: Ints, values: NDArray[Any] | None) -> NDArray[Any]:
        """Return the numbers to predict, [n, k]."""
        found = _given(values, "regression", "f", _FLOATS)
        return found.reshape(len(found), -1)

    def outputs(self, kind: SampleKind) -> tuple[int, ...]:
        """Return as many numbers as a sample has targets."""
        if not kind.values:
            raise _unsuited("regression", "has class labels alone", _FLOATS)
        return (kind.values,)

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of every sample, mean over its numbers, [b]."""
        return (outputs - targets).square().mean(1)

    def measures(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return squared errors, targets and squared targets, [b, 3k]."""
        outputs, targets = outputs.double(), targets.double()
        return torch.cat([(outputs - targets).square(), targets, targets.square()], 1)

    def score(self, means: Tensor) -> Tensor:
        """Return R2 = 1 - squared error / variance, mean over the numbers of a sample."""
        error, mean, square = means.chunk(3, -1)
        variance = (square - mean.square()).clamp(min=torch.finfo(torch.float64).tiny)
        return (1.0 - error / variance).mean(-1)


_FLOATS = "floats, of shape [n] or [n, k]"


def _given(values: NDArray[Any] | None, task: str, kinds: str, expected: str) -> NDArray[Any]:
    """Return the targets of a data set; refuse a data set without targets of this kind."""
    if values is None or values.dtype.kind not in kinds:
        has = "has class labels alone" if values is None else f"has targets of type {values.dtype}"
        raise _unsuited(task, has, expected)
    return values


def _unsuited(task: str, has: str, expected: str) -> ConfigError:
    return ConfigError(
        f"task.name = {task!r}, but the data set {has}; expected {expected} "
        "('dystop list datasets' shows which task a data set is for)"
    )


CLASSIFICATION = Classification()
"""The task of the paper."""
