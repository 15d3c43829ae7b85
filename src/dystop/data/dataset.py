"""`Dataset`, the checks of its data, and stratified subsets."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dystop.errors import DataError
from dystop.rng import stream
from dystop.sparse import Ints, ints

Images = NDArray[np.uint8] | NDArray[np.float32] | NDArray[np.int16] | NDArray[np.int32]
Columns = Mapping[str, NDArray[Any]]
"""Further facts about the training samples by name, each [n]; a partition may go by one."""
Targets = tuple[NDArray[Any], NDArray[Any]]
"""What is learned of each training and test sample beside its label: floats, or token ids."""

_CHUNK = 128  # images summed at a time: few enough to stay in the caches


class Splits(NamedTuple):
    """Samples [n, ...] and labels [n] of both splits, as a reader found them."""

    x_train: Images
    y_train: Ints
    x_test: Images
    y_test: Ints


@dataclass(frozen=True)
class Dataset:
    """A labelled data set, ready to be partitioned over workers.

    The samples are uint8 in 0..255, which a trainer reads as `(x / 255 - mean) / std`, or float32,
    which it reads unchanged (`mean` is 0 and `std` is 1 for every channel), or token ids of another
    integer type. Labels divide the samples over workers. A task learns them, or the targets.
    """

    name: str
    x_train: Images  # [n, C, H, W], features of a table [n, F], or token ids [n, T]
    y_train: Ints  # [n]
    x_test: Images
    y_test: Ints
    classes: int  # K
    class_names: tuple[str, ...]
    source: str  # where it was found
    mean: tuple[float, ...]  # per channel
    std: tuple[float, ...]
    columns: Columns = field(default_factory=dict)
    task: str = "classification"  # that it is made for
    targets: Targets | None = None  # of both splits, where the labels are not all there is to learn
    tokens: int = 0  # size of the vocabulary; 0: samples are numbers

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: channels, height and width, or the number of features or tokens."""
        return self.x_train.shape[1:]

    @property
    def values(self) -> int:
        """Numbers that the target of one sample has; 0 without targets."""
        return 0 if self.targets is None else math.prod(self.targets[0].shape[1:])


@dataclass(frozen=True)
class Labels:
    """What planning needs of a data set: the labels of its training samples, not the samples."""

    name: str
    y_train: Ints  # [n]
    classes: int  # K
    class_names: tuple[str, ...]
    source: str  # where it was found
    shape: tuple[int, ...]  # of one sample
    columns: Columns = field(default_factory=dict)
    task: str = "classification"  # that it is made for
    tokens: int = 0  # size of the vocabulary; 0: samples are numbers
    values: int = 0  # numbers that the target of one sample has


def labels_of(dataset: Dataset) -> Labels:
    """Return the training labels of a data set."""
    return Labels(
        dataset.name,
        dataset.y_train,
        dataset.classes,
        dataset.class_names,
        dataset.source,
        dataset.shape,
        dataset.columns,
        task=dataset.task,
        tokens=dataset.tokens,
        values=dataset.values,
    )


def assemble(
    name: str,
    splits: Splits,
    *,
    classes: int,
    class_names: Sequence[str] = (),
    source: str,
    columns: Columns | None = None,
) -> Dataset:
    """Check what a reader found and return it as a `Dataset`.

    Raises:
        DataError: A split is empty, images and labels do not pair up, the two splits disagree in
            shape or type, a label is outside 0..classes-1, or a column has another length.
    """
    _check_split(source, "train", splits.x_train, splits.y_train, classes)
    _check_split(source, "test", splits.x_test, splits.y_test, classes)
    _check_alike(source, splits.x_train, splits.x_test)
    names = tuple(class_names) or tuple(str(k) for k in range(classes))
    if len(names) != classes:
        raise DataError(f"{source}: {len(names)} class names for {classes} classes; give one each")
    mean, std = channel_stats(splits.x_train)
    for column, values in (columns or {}).items():
        if values.shape != splits.y_train.shape:
            raise DataError(
                f"{source}: column {column!r} has shape {values.shape}; expected one value for "
                f"each of the {len(splits.y_train)} training samples"
            )
    return Dataset(name, *splits, classes, names, source, mean, std, dict(columns or {}))


def _check_split(source: str, split: str, x: Images, y: Ints, classes: int) -> None:
    if len(x) != len(y):
        raise DataError(
            f"{source}: {len(x)} {split} samples but {len(y)} {split} labels; "
            "expected one label for each"
        )
    if not x.size:
        raise DataError(f"{source}: the {split} split is empty; expected at least one sample")
    if y.min() < 0 or y.max() >= classes:
        wrong = y.min() if y.min() < 0 else y.max()
        raise DataError(
            f"{source}: {split} label {wrong} is out of range; "
            f"labels must be integers from 0 to {classes - 1}"
        )


def _check_alike(source: str, train: Images, test: Images) -> None:
    for what, a, b in (
        ("shape", train.shape[1:], test.shape[1:]),
        ("type", train.dtype, test.dtype),
    ):
        if a != b:
            raise DataError(
                f"{source}: train samples have {what} {a} but test samples {b}; they must agree"
            )


def channel_stats(x: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and the standard deviation of each channel of bytes, in units of 255.

    A feature of a table is a channel. Sums are integers, so the result is the same on every
    machine. A constant channel gets a deviation of 1, so that nobody divides by zero. Floats get
    mean 0 and deviation 1.

    >>> channel_stats(np.full((2, 1, 2, 2), 51, np.uint8))
    ((0.2,), (1.0,))
    """
    mean, std = moments(x)
    return mean, tuple(s if s > 0 else 1.0 for s in std)


def moments(x: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of each channel, also those of a constant channel (0).

    >>> moments(np.full((2, 1, 2, 2), 51, np.uint8))
    ((0.2,), (0.0,))
    """
    channels = x.shape[1]
    if x.dtype != np.uint8:
        return (0.0,) * channels, (1.0,) * channels
    others = (0, *range(2, x.ndim))  # all axes but that of the channels
    total, squares = np.zeros(channels, np.int64), np.zeros(channels, np.int64)
    for start in range(0, len(x), _CHUNK):
        part = x[start : start + _CHUNK].astype(np.int64)
        total += part.sum(axis=others)
        squares += np.square(part).sum(axis=others)
    count = x.size // channels
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0.0))
    return tuple((mean / 255).tolist()), tuple((std / 255).tolist())


def take(
    dataset: Dataset, train: int | None = None, test: int | None = None, *, seed: int = 0
) -> Dataset:
    """Return a stratified subset, which keeps the class shares; `None` keeps a whole split.

    `mean` and `std` stay those of the whole data set, so that runs with subsets of different sizes
    are comparable.
    """
    kept_train = kept_samples(dataset, train, seed=seed)
    kept_test = _stratified(dataset, "test", dataset.y_test, test, seed)
    return replace(
        dataset,
        x_train=dataset.x_train[kept_train],
        y_train=dataset.y_train[kept_train],
        x_test=dataset.x_test[kept_test],
        y_test=dataset.y_test[kept_test],
        columns=_taken(dataset.columns, kept_train),
        targets=taken(dataset.targets, kept_train, kept_test),
    )


def taken(targets: Targets | None, train: Ints | slice, test: Ints | slice) -> Targets | None:
    """Return the targets of some samples of both splits; None if there are none."""
    return None if targets is None else (targets[0][train], targets[1][test])


def take_labels(labels: Labels, train: int | None = None, *, seed: int = 0) -> Labels:
    """Return the labels of the subset that `take` returns."""
    kept = kept_samples(labels, train, seed=seed)
    return replace(labels, y_train=labels.y_train[kept], columns=_taken(labels.columns, kept))


def kept_samples(dataset: Dataset | Labels, train: int | None = None, *, seed: int = 0) -> Ints:
    """Return which training samples `take` keeps, ascending."""
    return _stratified(dataset, "train", dataset.y_train, train, seed)


def _taken(columns: Columns, kept: Ints) -> Columns:
    return {name: values[kept] for name, values in columns.items()}


def _stratified(
    dataset: Dataset | Labels, split: str, labels: Ints, wanted: int | None, seed: int
) -> Ints:
    if wanted is None or wanted == len(labels):
        return np.arange(len(labels))
    if not 0 < wanted < len(labels):
        raise DataError(
            f"cannot take {wanted} {split} samples of {dataset.name!r}: "
            f"it has {len(labels)}; ask for 1 to {len(labels)}"
        )
    quota = _quotas(np.bincount(labels, minlength=dataset.classes), wanted)
    parts = [
        stream(seed, "take", split, k).permutation(np.flatnonzero(labels == k))[:q]
        for k, q in enumerate(quota.tolist())
    ]
    return np.sort(np.concatenate(parts))


def _quotas(counts: Ints, wanted: int) -> Ints:
    """Split `wanted` in proportion to `counts`, by largest remainders."""
    exact = counts * wanted
    quota = exact // counts.sum()
    order = np.argsort(-(exact % counts.sum()), kind="stable")
    quota[order[: wanted - quota.sum()]] += 1
    return ints(quota)
