"""Samples and their targets on the device, and which worker owns which of them.

Bytes stay bytes on the device. They are normalised when a mini-batch is taken. Other integers are
token ids: they are stored in 32 bits and never normalised.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystop.errors import DataError
from dystop.sparse import Ints


class Source(Protocol):
    """What the trainer reads of a data set: a `dystop.data.Dataset`, or `Arrays`."""

    @property
    def x_train(self) -> NDArray[Any]:
        """Training inputs [n, ...]: uint8, float32, or token ids of another integer type."""

    @property
    def y_train(self) -> NDArray[Any]:
        """What is learned of each sample, [n, ...]: integers such as labels, or floats."""

    @property
    def x_test(self) -> NDArray[Any]:
        """Test inputs."""

    @property
    def y_test(self) -> NDArray[Any]:
        """What is right for each test input."""

    @property
    def mean(self) -> float | Sequence[float]:
        """Mean of all channels, or of each channel; bytes count as 0..1."""

    @property
    def std(self) -> float | Sequence[float]:
        """Standard deviation of all channels, or of each channel; bytes count as 0..1."""


@dataclass(frozen=True)
class Arrays:
    """A data set given as arrays."""

    x_train: NDArray[Any]  # [n, C, H, W] or [n, F], uint8 or float32; or token ids [n, T]
    y_train: NDArray[Any]  # [n], or more numbers for each sample
    x_test: NDArray[Any]
    y_test: NDArray[Any]
    mean: float | Sequence[float]  # one number, or one for each channel; uint8 counts as 0..1
    std: float | Sequence[float]


@dataclass(frozen=True)
class Samples:
    """Inputs and targets on a device, with the scale and the shift that normalise the inputs."""

    x: Tensor  # [n, ...], uint8, float32, or int32 for token ids
    y: Tensor  # [n, ...], int64 or float32
    scale: Tensor
    shift: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.x.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        """Type of a model's inputs: float32, or int64 for token ids."""
        return torch.int64 if self.x.dtype == torch.int32 else torch.float32

    @property
    def nbytes(self) -> int:
        """Bytes that the samples occupy."""
        return self.x.nbytes + self.y.nbytes

    def take(
        self, index: Tensor, change: Callable[[Tensor], Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return normalised inputs [..., *shape] and targets [...] of the samples index [...].

        `change` is applied to the inputs [n, *shape] before they are normalised.
        """
        flat = index.reshape(-1)
        raw, y = self.x.index_select(0, flat), self.y.index_select(0, flat)
        x = (raw if change is None else change(raw)).to(self.dtype)
        if self.dtype == torch.float32:
            x = x.mul_(self.scale).add_(self.shift)
        return x.view(*index.shape, *self.shape), y.view(*index.shape, *self.y.shape[1:])


def samples_of(
    x: NDArray[Any], y: NDArray[Any], mean: Any, std: Any, device: torch.device, where: str
) -> Samples:
    """Put samples on a device: bytes stay bytes, other integers are token ids, floats float32.

    Bytes are normalised as (x / 255 - mean) / std, floats as (x - mean) / std, token ids never.
    """
    if len(x) != len(y) or len(y) == 0:
        raise DataError(
            f"{where}: {len(x)} inputs and {len(y)} labels; expected one label for each input, "
            f"and at least one input"
        )
    scale, shift = normaliser(x.dtype == np.uint8, mean, std, x.ndim)
    if x.dtype != np.uint8:
        x = x.astype(np.int32 if x.dtype.kind in "iu" else np.float32, copy=False)
    is_float = np.asarray(y).dtype.kind == "f"
    return Samples(
        torch.tensor(x, device=device),
        torch.tensor(np.asarray(y, np.float32 if is_float else np.int64), device=device),
        scale.to(device),
        shift.to(device),
    )


def normaliser(is_bytes: bool, mean: Any, std: Any, ndim: int) -> tuple[Tensor, Tensor]:
    """Return the scale and the shift that normalise inputs with `ndim` dimensions."""
    spread = _per_channel(std, ndim)
    return 1.0 / ((255.0 if is_bytes else 1.0) * spread), -_per_channel(mean, ndim) / spread


def strata(y: NDArray[Any]) -> Ints:
    """Return the labels by which a subset of samples is balanced; one label if y has none.

    >>> strata(np.array([2, 0])).tolist(), strata(np.array([0.5, 0.1])).tolist()
    ([2, 0], [0, 0])
    """
    has_labels = y.ndim == 1 and y.dtype.kind in "iu"
    return np.asarray(y if has_labels else np.zeros(len(y)), np.int64)


def both_samples(data: Source, device: torch.device) -> tuple[Samples, Samples]:
    """Put training and test samples on a device."""
    how = (data.mean, data.std, device)
    return (
        samples_of(data.x_train, data.y_train, *how, "training set"),
        samples_of(data.x_test, data.y_test, *how, "test set"),
    )


def _per_channel(value: Any, ndim: int) -> Tensor:
    """Return one number for each channel, shaped to broadcast over [n, C, ...]."""
    numbers = torch.tensor(value, dtype=torch.float64).reshape(-1).float()
    return numbers.reshape(-1, *(1 for _ in range(ndim - 2)))


@dataclass(frozen=True)
class Shards:
    """The training samples of every worker, all lists joined into one."""

    samples: Ints  # [sum of D_i]
    start: Ints  # [N + 1]

    @cached_property
    def sizes(self) -> Ints:
        """Number of samples of every worker, D_i, [N]."""
        return np.diff(self.start)

    def of(self, worker: int) -> Ints:
        """Return the samples of one worker."""
        return self.samples[self.start[worker] : self.start[worker + 1]]

    def lookup(self, workers: Ints, positions: Ints) -> Ints:
        """Return the sample numbers of positions [A, ...] inside the shards of workers [A].

        Padding (-1) becomes the first position of the same mini-batch. Its weight is zero, but an
        infinite number in a sample of another worker could still turn the loss into NaN.
        """
        padded = np.where(positions < 0, positions[..., :1], positions)
        first = self.start[workers].reshape(-1, *(1 for _ in range(positions.ndim - 1)))
        # A step that is not taken has no position at all; any sample will do.
        return self.samples[np.minimum(np.maximum(padded, 0) + first, len(self.samples) - 1)]


def shards_of(parts: Sequence[Ints], available: int) -> Shards:
    """Join the sample lists of all workers; check that every sample exists."""
    none = np.zeros(0, np.int64)
    samples = np.concatenate([none, *(np.asarray(part, np.int64) for part in parts)])
    if not len(samples):
        raise DataError("shards: no worker has any data")
    if samples.min() < 0 or samples.max() >= available:
        raise DataError(
            f"shards: sample {samples.min() if samples.min() < 0 else samples.max()} does not "
            f"exist; the training set has samples 0 to {available - 1}"
        )
    return Shards(samples, np.cumsum([0, *(len(part) for part in parts)]))
