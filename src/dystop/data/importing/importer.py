"""`import_data`: make a data set of a folder of images, a table, or an object of another library.

`save_data` writes it as an .npz file, which `data.name` reads. A run then needs no other package.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.data.dataset import Columns, Dataset, Labels, kept_samples
from dystop.data.importing.features import Targets, check_columns, features_of, scaled, targets_of
from dystop.data.importing.images import Size, class_folders, read_folders
from dystop.data.importing.objects import (
    class_names_of,
    columns_of,
    is_pairs,
    is_table_object,
    pairs_of,
)
from dystop.data.npz import COLUMN, from_arrays, to_arrays, write_npz
from dystop.data.table_files import TABLE_KINDS, Table, read_table
from dystop.errors import ConfigError, DataError
from dystop.sparse import Ints

_TRAIN, _TEST = "train", ("test", "validation", "valid", "val")  # names of splits
_KINDS = (
    "a folder of images with a sub-folder for each class, a .csv or .parquet file, a torch data "
    "set, or a data set of Hugging Face"
)


@dataclass(frozen=True)
class ImportOptions:
    """How foreign data are read; `import_data` explains each option."""

    target: str
    groups: tuple[str, ...]
    drop: tuple[str, ...]
    task: str
    size: Size | None
    share: float
    scale: bool
    seed: int


@dataclass(frozen=True)
class _Samples:
    """All samples, training samples first."""

    inputs: NDArray[Any]  # [n, ...]; float64 numbers are features that may be scaled
    targets: Targets
    columns: Columns
    training: int | None  # how many are for training; None: not divided yet


def import_data(  # noqa: PLR0913 (what foreign data may need)
    source: Any,
    *,
    test: Any = None,
    name: str = "",
    target: str = "",
    groups: Sequence[str] = (),
    drop: Sequence[str] = (),
    task: str = "auto",
    size: Size | None = None,
    share: float = 0.2,
    scale: bool = True,
    seed: int = 0,
) -> Dataset:
    """Make a data set of foreign data.

    Args:
        source: A folder of images with a sub-folder for each class; a .csv or .parquet file; a
            torch data set of pairs (input, target); a data set of Hugging Face, or a dict of its
            splits.
        test: The same for the test set. By default the folder or the split "test", or a share of
            the samples.
        name: Name of the data set; by default that of the file, or "imported".
        target: Column of a table that is learned.
        groups: Columns that are kept, for `data.partition = "column"`.
        drop: Columns that are left out; all others are features.
        task: "classification", "regression", or "auto": a target with decimals is a regression.
        size: Height and width to which images are scaled; by default all must have the same.
        share: Share of the samples that become the test set, if there is none.
        scale: Whether features and numbers to predict get mean 0 and deviation 1 over the training
            samples.
        seed: Seed of the division into training and test set.

    Raises:
        DataError: The source cannot be used, or lacks a column.

    >>> pairs = [([k / 9, k % 2], k % 2) for k in range(10)]
    >>> import_data(pairs, test=pairs[:4]).x_train.shape
    (10, 2)
    """
    if task not in ("auto", "classification", "regression"):
        raise ConfigError(f"task = {task!r}; expected 'auto', 'classification' or 'regression'")
    how = ImportOptions(target, tuple(groups), tuple(drop), task, size, share, scale, seed)
    where = str(source) if isinstance(source, (str, os.PathLike)) else type(source).__name__
    samples = _read(where, *_divided(source, test), how)
    return _assembled(where, name or _name(source), samples, how)


def _name(source: Any) -> str:
    return Path(source).stem if isinstance(source, (str, os.PathLike)) else "imported"


def _divided(source: Any, test: Any) -> tuple[Any, Any]:
    """Return training and test source; a folder or a dict may hold both."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source).expanduser()
        if test is None and path.is_dir() and (path / _TRAIN).is_dir():
            tests = [path / split for split in _TEST if (path / split).is_dir()]
            return path / _TRAIN, tests[0] if tests else None
        return path, None if test is None else Path(test).expanduser()
    if isinstance(source, Mapping):
        if _TRAIN not in source:
            raise DataError(f"no split {_TRAIN!r}; the data set has {', '.join(source)}")
        splits = [source[split] for split in _TEST if split in source]
        return source[_TRAIN], splits[0] if splits and test is None else test
    return source, test


def _read(where: str, train: Any, test: Any, how: ImportOptions) -> _Samples:
    """Read both sources."""
    if isinstance(train, Path):
        paths = [path for path in (train, test) if path is not None]
        if train.is_dir():
            return _read_images(train, test, how)
        for path in paths:
            if path.suffix.lower() not in TABLE_KINDS or path.is_dir():
                missing = "" if path.exists() else "no such file or folder; "
                raise DataError(f"{path}: {missing}expected {_KINDS}")
        if how.size is not None:
            raise ConfigError(f"{where}: size is for images, but this is a table; leave it out")
        return _from_tables(where, [read_table(path) for path in paths], how)
    sources = [source for source in (train, test) if source is not None]
    if all(map(is_table_object, sources)):
        return _read_objects(where, sources, how)
    if all(map(is_pairs, sources)):
        return _read_pairs(where, sources, how)
    raise DataError(f"{where}: cannot be imported; expected {_KINDS}")


def _read_images(train: Path, test: Path | None, how: ImportOptions) -> _Samples:
    folders = [train] if test is None else [train, test]
    for folder in folders:
        if not folder.is_dir() or not class_folders(folder):
            raise DataError(f"{folder}: holds no folder with images; expected one for each class")
    unused = {"target": how.target, "groups": how.groups, "drop": how.drop}
    for option, value in {**unused, "task": how.task == "regression"}.items():
        if value:
            raise ConfigError(
                f"{train}: {option} is for tables, but this is a folder of images; leave it out"
            )
    classes = sorted({path.name for folder in folders for path in class_folders(folder)})
    if len(classes) < 2:
        raise DataError(
            f"{train}: only the folder {classes[0]!r} holds images; expected a folder for each of "
            "at least two classes"
        )
    inputs, labels = read_folders(folders, classes, how.size)
    training = None if test is None else len(labels[0])
    return _Samples(inputs, Targets(np.concatenate(labels), tuple(classes)), {}, training)


def _from_tables(where: str, tables: Sequence[Table], how: ImportOptions) -> _Samples:
    """Return the rows of one table, or of a training and a test table."""
    table = _joined_tables(where, tables)
    if not how.target:
        raise DataError(
            f"{where}: which column is learned? Name it with --target (target= in Python); it has "
            f"{', '.join(table)}"
        )
    check_columns(where, table, (how.target, *how.groups, *how.drop))
    targets = targets_of(where, how.target, table[how.target], how.task)
    inputs = features_of(where, table, (how.target, *how.groups, *how.drop))
    columns = {group: table[group] for group in how.groups}
    return _Samples(inputs, targets, columns, _training(tables))


def _training(tables: Sequence[Table]) -> int | None:
    return None if len(tables) == 1 else len(next(iter(tables[0].values())))


def _joined_tables(where: str, tables: Sequence[Table]) -> Table:
    """Return the rows of all tables as one; categories and classes are those of all rows."""
    first, *others = tables
    for other in others:
        if set(other) != set(first):
            differs = sorted(set(other) ^ set(first))
            raise DataError(f"{where}: training and test table differ in column {differs[0]!r}")
    for column in first:
        texts = {table[column].dtype.kind == "U" for table in tables}
        if len(texts) > 1:
            raise DataError(
                f"{where}: column {column!r} is text in one table and numbers in the other; "
                "training and test table need the same"
            )
    return {column: _joined(where, [table[column] for table in tables]) for column in first}


def _joined(where: str, parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    if len({part.shape[1:] for part in parts}) > 1:
        shapes = " and ".join(str(part.shape[1:]) for part in parts)
        raise DataError(f"{where}: training and test samples have the shapes {shapes}")
    return np.concatenate(parts)


def _read_objects(where: str, sources: Sequence[Any], how: ImportOptions) -> _Samples:
    """Return the samples of Hugging Face data sets: their images, or all columns as a table."""
    target = how.target or ("label" if "label" in sources[0].column_names else "")
    how = replace(how, target=target)
    tables = [columns_of(where, source, how.size) for source in sources]
    images = [name for name, values in tables[0].items() if values.ndim == 4]
    if not images:
        samples = _from_tables(where, tables, how)
    else:
        table = _joined_tables(where, tables)
        check_columns(where, table, (target, *how.groups))
        targets = targets_of(where, target, table[target], how.task)
        columns = {group: table[group] for group in how.groups}
        samples = _Samples(table[images[0]], targets, columns, _training(tables))
    return _in_own_order(samples, class_names_of(sources[0], target))


def _in_own_order(samples: _Samples, names: tuple[str, ...]) -> _Samples:
    """Number the classes as the source does, also those without a sample."""
    if not names:
        return samples
    number = np.array([names.index(name) for name in samples.targets.names])
    return replace(samples, targets=Targets(number[samples.targets.labels], names))


def _read_pairs(where: str, sources: Sequence[Any], how: ImportOptions) -> _Samples:
    read = [pairs_of(where, source, how.size) for source in sources]
    inputs = _joined(where, [x for x, _ in read])
    values = np.concatenate([y for _, y in read])
    if inputs.ndim == 2 and inputs.dtype.kind in "fiu" and inputs.dtype != np.uint8:
        inputs = inputs.astype(np.float64)
    training = None if len(read) == 1 else len(read[0][1])
    return _Samples(inputs, targets_of(where, "target", values, how.task), {}, training)


def _assembled(where: str, name: str, samples: _Samples, how: ImportOptions) -> Dataset:
    """Divide the samples into training and test set, and check them."""
    train, test = _split(where, samples, how)
    inputs, targets = samples.inputs, samples.targets
    if inputs.dtype == np.float64 and inputs.ndim == 2:
        inputs = scaled(inputs, train) if how.scale else inputs.astype(np.float32)
    arrays: dict[str, Any] = {
        "x_train": inputs[train],
        "y_train": targets.labels[train],
        "x_test": inputs[test],
        "y_test": targets.labels[test],
        "class_names": targets.names,
        **{COLUMN + column: values[train] for column, values in samples.columns.items()},
    }
    if targets.numbers is not None:
        numbers = scaled(targets.numbers, train) if how.scale else targets.numbers
        arrays |= {"target_train": numbers[train], "target_test": numbers[test]}
    return from_arrays(arrays, where, name)


def _split(where: str, samples: _Samples, how: ImportOptions) -> tuple[Ints, Ints]:
    """Return the indices of training and test samples."""
    count = len(samples.inputs)
    if samples.training is not None:
        return np.arange(samples.training), np.arange(samples.training, count)
    wanted = round(how.share * count) if 0 < how.share < 1 else 0
    if not 0 < wanted < count:
        raise DataError(
            f"{where}: a share of {how.share:g} of {count} samples leaves no sample for the "
            "training or the test set; give another --share, or --test (share=, test= in Python)"
        )
    classes, names = samples.targets.labels, samples.targets.names
    labels = Labels(where, classes, len(names), names, where, samples.inputs.shape[1:])
    train = kept_samples(labels, count - wanted, seed=how.seed)
    return train, np.setdiff1d(np.arange(count), train)


def check_out(path: Path) -> None:
    """Refuse a file that a data set cannot become, before anything is read."""
    if path.suffix != ".npz":
        raise ConfigError(f"{path}: expected a file that ends in .npz")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: there is no folder {path.parent}; create it, or name another")


def save_data(data: Dataset, path: Path) -> None:
    """Write a data set as an .npz file that `data.name` reads."""
    check_out(path)
    write_npz(path, to_arrays(data))
