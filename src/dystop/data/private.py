"""Private data: samples that stay on one worker's host.

A host tells the operator only the facts of `Facts`. The operator combines those of all hosts into
the section `data.private` of the configuration.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt

from dystop.data.dataset import Dataset, Images, moments
from dystop.data.npz import IF_TABLE, read_samples
from dystop.errors import DataError
from dystop.foreign_files import JSON_BYTES, read_bounded
from dystop.params import param
from dystop.sparse import Ints
from dystop.strict_json import parse_json

_MAKE = "make it with: dystop data describe FILE.npz"


@dataclass(frozen=True)
class PrivateData:
    """The section `data.private`: what the data files of all workers have in common."""

    classes: Annotated[int, Ge(0)] = param(0, "number of classes; 0: no worker brings its own data")
    shape: tuple[Annotated[int, Ge(1)], ...] = param(
        (), "channels, height, width of an image; or features of a row"
    )
    mean: tuple[float, ...] = param(
        (), "mean of each channel over all workers; bytes count as 0..1"
    )
    std: tuple[Annotated[float, Gt(0)], ...] = param((), "standard deviation of each channel")


@dataclass(frozen=True)
class Facts:
    """All that a host tells about its samples."""

    data_size: int
    label_counts: tuple[int, ...]
    shape: tuple[int, ...]  # channels, height, width; or the features of a table
    pixels: str  # uint8, or float32 for samples that are read unchanged
    mean: tuple[float, ...]  # of each channel; bytes count as 0..1
    std: tuple[float, ...]


def describe(path: Path, classes: int = 0) -> Facts:
    """Return the facts of a file of samples.

    Args:
        path: An .npz with x_train and y_train, or x and y.
        classes: Number of classes, if the last classes have no sample in this file.

    Raises:
        DataError: The file cannot be used, or a label is not below `classes`.
    """
    x, y = _numbers(path)
    if classes and (largest := int(y.max())) >= classes:
        raise DataError(
            f"{path}: label {largest} is out of range; {classes} classes have labels 0 to "
            f"{classes - 1}"
        )
    counts = np.bincount(y, minlength=classes)
    return Facts(len(y), tuple(counts.tolist()), x.shape[1:], str(x.dtype), *moments(x))


def _numbers(path: Path) -> tuple[Images, Ints]:
    """Read the samples of a host; refuse token ids, whose vocabulary nobody knows."""
    x, y = read_samples(path)
    if x.dtype.kind == "i":
        raise DataError(
            f"{path}: the samples are integers, which are taken for token ids; private data are "
            f"images or tables; {IF_TABLE}"
        )
    return x, y


def to_line(facts: Facts) -> str:
    """Return facts as one line of JSON, which a host sends to the operator."""
    return json.dumps(asdict(facts))


def read_facts(path: Path) -> Facts:
    """Read the facts that `to_line` wrote."""
    try:
        raw: dict[str, Any] = parse_json(read_bounded(path, JSON_BYTES, follow=True))
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


def combine(hosts: Sequence[Facts]) -> PrivateData:
    """Combine the facts of all hosts; mean and deviation are those of all samples together."""
    first = hosts[0]
    for facts in hosts:
        if (facts.shape, facts.pixels) != (first.shape, first.pixels):
            raise DataError(
                f"one host has samples of shape {facts.shape} and type {facts.pixels}, another of "
                f"shape {first.shape} and type {first.pixels}; all workers need the same"
            )
    share = np.array([facts.data_size for facts in hosts], float)
    share /= share.sum()
    means, stds = np.array([f.mean for f in hosts]), np.array([f.std for f in hosts])
    mean = share @ means
    std = np.sqrt(np.maximum(share @ (stds**2 + means**2) - mean**2, 0.0))
    std = np.where(std > 0, std, 1.0)  # as `dataset.channel_stats`
    classes = max(len(facts.label_counts) for facts in hosts)
    return PrivateData(classes, first.shape, tuple(mean.tolist()), tuple(std.tolist()))


def own_samples(path: Path, private: PrivateData) -> Dataset:
    """Read a worker's own file. The data set has one test image, which nobody uses."""
    x, y = _numbers(path)
    if x.shape[1:] != private.shape:
        raise DataError(
            f"{path}: a sample has shape {x.shape[1:]} (channels, height, width, or features); "
            f"data.private.shape is {private.shape}"
        )
    if y.max() >= private.classes:
        raise DataError(
            f"{path}: label {y.max()} is out of range; data.private.classes is {private.classes}, "
            f"labels go from 0 to {private.classes - 1}"
        )
    return _dataset(private, x, y, str(path))


def placeholder_samples(private: PrivateData, count: int) -> Dataset:
    """Return black images in place of private ones, for a process that needs only the model."""
    x: Images = np.zeros((count, *private.shape), np.uint8)
    return _dataset(private, x, np.zeros(count, np.int64), "private data of the workers")


def _dataset(private: PrivateData, x: Images, y: Ints, source: str) -> Dataset:
    names = tuple(str(k) for k in range(private.classes))
    return Dataset(
        "private", x, y, x[:1], y[:1], private.classes, names, source, private.mean, private.std
    )
