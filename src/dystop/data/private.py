"""Samples that exist on one host only: what is told about them, and what they have in common."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt

from dystop.data.dataset import Dataset, Images, moments
from dystop.data.npz import read_samples
from dystop.errors import DataError
from dystop.params import param
from dystop.sparse import Ints

_MAKE = "make it with: dystop data describe FILE.npz"


@dataclass(frozen=True)
class PrivateData:
    """What the files have in common that the workers of a testbed bring along."""

    classes: Annotated[int, Ge(0)] = param(0, "number of classes; 0: nobody brings data along")
    shape: tuple[Annotated[int, Ge(1)], ...] = param((), "channels, height, width of an image")
    mean: tuple[float, ...] = param((), "mean of each channel over all workers, bytes as 0..1")
    std: tuple[Annotated[float, Gt(0)], ...] = param((), "standard deviation of each channel")


@dataclass(frozen=True)
class Facts:
    """What a host tells about its samples, and no more."""

    data_size: int
    label_counts: tuple[int, ...]
    shape: tuple[int, ...]  # channels, height, width
    pixels: str  # uint8, or float32 where images are used as they are
    mean: tuple[float, ...]  # per channel, bytes counted as 0..1
    std: tuple[float, ...]


def describe(path: Path, classes: int = 0) -> Facts:
    """What is to be told about a file of samples.

    Args:
        path: An .npz with x_train and y_train, or x and y.
        classes: Number of classes, if some of the last ones have no sample here.

    Raises:
        DataError: The file cannot be used, or has a label beyond the classes.
    """
    x, y = read_samples(path)
    if classes and (largest := int(y.max())) >= classes:
        raise DataError(f"{path}: has label {largest}; {classes} classes have 0 to {classes - 1}")
    counts = np.bincount(y, minlength=classes)
    return Facts(len(y), tuple(counts.tolist()), x.shape[1:], str(x.dtype), *moments(x))


def to_line(facts: Facts) -> str:
    """One line of JSON, to be sent to the operator."""
    return json.dumps(asdict(facts))


def read_facts(path: Path) -> Facts:
    """Read what `to_line` wrote."""
    try:
        raw: dict[str, Any] = json.loads(path.read_bytes())
        facts = Facts(
            data_size=int(raw["data_size"]),
            label_counts=tuple(int(n) for n in raw["label_counts"]),
            shape=tuple(int(n) for n in raw["shape"]),
            pixels=str(raw["pixels"]),
            mean=tuple(float(a) for a in raw["mean"]),
            std=tuple(float(a) for a in raw["std"]),
        )
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}; {_MAKE}") from None
    except (ValueError, TypeError, KeyError) as error:
        raise DataError(f"{path}: not the description of a data file: {error}; {_MAKE}") from None
    if facts.data_size != sum(facts.label_counts) or facts.data_size < 1:
        raise DataError(f"{path}: data_size is not the sum of label_counts; {_MAKE}")
    return facts


def common(told: Sequence[Facts]) -> PrivateData:
    """What all hosts have in common; mean and deviation are those of all samples together."""
    first = told[0]
    for facts in told:
        if (facts.shape, facts.pixels) != (first.shape, first.pixels):
            raise DataError(
                f"images of shape {facts.shape} and type {facts.pixels} beside {first.shape} and "
                f"{first.pixels}; all workers need the same"
            )
    share = np.array([facts.data_size for facts in told], float)
    share /= share.sum()
    means, stds = np.array([f.mean for f in told]), np.array([f.std for f in told])
    mean = share @ means
    std = np.sqrt(np.maximum(share @ (stds**2 + means**2) - mean**2, 0.0))
    std = np.where(std > 0, std, 1.0)  # as `dataset.channel_stats`
    classes = max(len(facts.label_counts) for facts in told)
    return PrivateData(classes, first.shape, tuple(mean.tolist()), tuple(std.tolist()))


def own_samples(path: Path, agreed: PrivateData) -> Dataset:
    """A worker's own file as a data set of which nobody looks at the test image."""
    x, y = read_samples(path)
    if x.shape[1:] != agreed.shape:
        raise DataError(
            f"{path}: images have shape {x.shape[1:]} (channels, height, width); data.private.shape"
            f" is {agreed.shape}"
        )
    if y.max() >= agreed.classes:
        raise DataError(
            f"{path}: label {y.max()} is out of range; data.private.classes is {agreed.classes}, "
            f"labels go from 0 to {agreed.classes - 1}"
        )
    return _dataset(agreed, x, y, str(path))


def no_samples(agreed: PrivateData, count: int) -> Dataset:
    """Black images in the place of private ones, for whoever needs the model and no data."""
    x: Images = np.zeros((count, *agreed.shape), np.uint8)
    return _dataset(agreed, x, np.zeros(count, np.int64), "private data of the workers")


def _dataset(agreed: PrivateData, x: Images, y: Ints, source: str) -> Dataset:
    names = tuple(str(k) for k in range(agreed.classes))
    return Dataset(
        "private", x, y, x[:1], y[:1], agreed.classes, names, source, agreed.mean, agreed.std
    )
