"""A data set in one `.npz` file with x_train, y_train, x_test, y_test (and class_names).

Images: uint8 (0..255), or float32 / float64, which become float32. Shapes: [n, H, W],
[n, C, H, W] or [n, H, W, C].
Tables: the same types, [n, F].
Labels: integers from 0, [n] or [n, 1].
Token ids: integers of any other type, [n, T].
Further arrays are optional. `target_train` and `target_test` are what is learned in place of the
labels: floats [n] or [n, k], or the token ids that follow, [n, T]; they may also stand in y. `task`
names the task, `tokens` is the size of the vocabulary. `mean` and `std` normalise the channels of
bytes. An array `column.NAME` says something else about each training sample, as in `column.writer`.
"""

import math
import os
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from dystop.data.dataset import Dataset, Images, Splits, Targets, assemble
from dystop.data.readers import refusal
from dystop.errors import DataError
from dystop.sparse import Floats, Ints, ints
from dystop.storage import write_atomic

_KEYS = ("x_train", "y_train", "x_test", "y_test")
_FACTS = ("class_names", "target_train", "target_test", "task", "tokens", "mean", "std")
COLUMN = "column."
"""Stands before the name of an array that is a column of the training samples."""

_FEW = 4  # an axis of at most so many entries is the channel axis
_MOST_CLASSES = 100_000
_MOST_TOKENS = 2**15  # of a vocabulary
_BINS = 10  # labels of a number to predict, by which samples are divided over workers
_HEADERS: Mapping[tuple[int, int], Callable[[Any], Any]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
_UNREADABLE = (
    OSError, EOFError, ValueError, TypeError, NotImplementedError, RuntimeError, MemoryError,
    zipfile.BadZipFile, zlib.error, SyntaxError, tokenize.TokenError,
)  # fmt: skip
IF_TABLE = "if this is a table, convert it to float"
"""Advice where integers [n, T] may be features of a table."""
_ADVICE = "Save it again with numpy.savez_compressed"


def read_npz(
    path: Path,
    name: str | None = None,
    classes: int | None = None,
    class_names: Sequence[str] = (),
) -> Dataset:
    """Read a data set from an .npz file; never unpickle.

    Args:
        path: The file.
        name: Name of the data set; by default that of the file.
        classes: Number of classes; by default that of the names, or the largest label + 1.
        class_names: Names to use if the file has none.

    Raises:
        DataError: The file is missing, corrupt, lacks a key or holds unusable data.
    """
    raw = with_labels(_load(path, _KEYS, _FACTS))
    columns = _columns(path, raw)
    names = tuple(str(n) for n in np.ravel(raw.get("class_names", ()))) or tuple(class_names)
    splits = _splits(path, raw)
    classes = _count_classes(splits, names) if classes is None else classes
    made = assemble(
        name or path.stem,
        splits,
        classes=classes,
        class_names=names,
        source=str(path),
        columns=columns,
    )
    return _with_facts(path, made, raw)


def from_arrays(arrays: Mapping[str, Any], where: str, name: str = "arrays") -> Dataset:
    """Make a data set of the arrays x_train, y_train, x_test, y_test and, if given, class_names
    and column.NAME.

    Args:
        arrays: Anything that NumPy turns into arrays of the kinds that an .npz may hold.
        where: What errors call the source of the arrays.
        name: Name of the set.

    Raises:
        DataError: an array is missing, unknown or unusable.

    >>> x, y = np.zeros((4, 2, 2), np.uint8), np.array([0, 1, 0, 1])
    >>> from_arrays({"x_train": x, "y_train": y, "x_test": x, "y_test": y}, "example").shape
    (1, 2, 2)
    """
    for key in (*_KEYS, *arrays):
        known = key in (*_KEYS, *_FACTS) or key.startswith(COLUMN)
        if key not in arrays or not known:
            wrong = f"has no {key}" if key not in arrays else f"has an unknown key {key!r}"
            raise DataError(
                f"{where}: {wrong}; expected {', '.join(_KEYS)} and perhaps "
                f"{', '.join(_FACTS)}, {COLUMN}NAME"
            )
    raw = with_labels({key: np.asarray(value) for key, value in arrays.items()})
    splits = _splits(where, raw)
    names = tuple(map(str, arrays.get("class_names", ())))
    classes = _count_classes(splits, names)
    columns = _columns(where, raw)
    made = assemble(name, splits, classes=classes, class_names=names, source=where, columns=columns)
    return _with_facts(where, made, raw)


def to_arrays(data: Dataset) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file from which `read_npz` makes the same data set."""
    arrays = {
        **{key: getattr(data, key) for key in _KEYS},
        "class_names": np.array(data.class_names, np.str_),
        "task": np.array(data.task, np.str_),
        "tokens": np.array(data.tokens),
        **{COLUMN + name: values for name, values in data.columns.items()},
    }
    if data.x_train.dtype == np.uint8:
        arrays |= {"mean": np.array(data.mean), "std": np.array(data.std)}
    if data.targets is not None:
        arrays |= dict(zip(("target_train", "target_test"), data.targets, strict=True))
    return arrays


def _with_facts(where: Path | str, made: Dataset, raw: Mapping[str, NDArray[Any]]) -> Dataset:
    """Return a data set with the optional facts of its arrays."""
    targets = _targets(where, made, raw)
    is_text = _are_tokens(made.x_train)
    ids = (made.x_train, made.x_test, *(targets or ())) if is_text else ()
    if targets is None and made.classes < 2:
        raise _unusable(where, "all labels are 0", "samples of at least two classes")
    largest = 1 + max((int(part.max()) for part in ids if part.dtype.kind == "i"), default=-1)
    usual = "classification" if targets is None else "next-token" if is_text else "regression"
    made = replace(
        made,
        targets=targets,
        task=str(raw.get("task", usual)),
        tokens=max(largest, _vocabulary(where, raw)) if is_text else 0,
    )
    if made.x_train.dtype == np.uint8 and "mean" in raw and "std" in raw:
        mean, std = (_numbers(where, raw, key) for key in ("mean", "std"))
        if len(mean) != len(made.mean) or len(std) != len(made.std) or not min(std) > 0:
            wrong = f"mean and std are {mean} and {std}"
            raise _unusable(where, wrong, "a number for each channel, std above 0")
        made = replace(made, mean=mean, std=std)
    return made


def _vocabulary(where: Path | str, raw: Mapping[str, NDArray[Any]]) -> int:
    """Return the size of the vocabulary that some arrays name; 0: none."""
    named = raw.get("tokens", np.zeros((), np.int64))
    if named.size != 1 or named.dtype.kind not in "iu" or not 0 <= named.item() <= _MOST_TOKENS:
        expected = f"an integer up to {_MOST_TOKENS:,}"
        raise _unusable(where, f"tokens is {named.dtype} {str(named)[:40]}", expected)
    return int(named.item())


def _numbers(where: Path | str, raw: Mapping[str, NDArray[Any]], key: str) -> tuple[float, ...]:
    """Return an array as plain numbers."""
    if raw[key].dtype.kind not in "iuf" or not np.isfinite(raw[key]).all():
        wrong = f"{key} is {raw[key].dtype} {str(raw[key])[:40]}"
        raise _unusable(where, wrong, "finite numbers")
    return tuple(np.ravel(raw[key]).astype(float).tolist())


def _targets(where: Path | str, made: Dataset, raw: Mapping[str, NDArray[Any]]) -> Targets | None:
    """Return what is learned in place of the labels; None if it is the labels."""
    keys = [key for key in ("target_train", "target_test") if key in raw]
    if not keys:
        return None
    if len(keys) < 2:
        raise _unusable(where, f"has {keys[0]} alone", "target_train and target_test")
    found = []
    for key, labels in zip(keys, (made.y_train, made.y_test), strict=True):
        given = raw[key]
        fits = given.ndim and given.size and len(given) == len(labels)
        if not fits or given.dtype.kind not in "iuf":
            wrong = f"{key} is {given.dtype} of shape {given.shape}"
            raise _unusable(where, wrong, f"{len(labels)} rows of floats or token ids")
        values = given.reshape(len(given), -1)
        is_float = values.dtype.kind == "f"
        found.append((_floats if is_float else _token_ids)(where, key, values))
    train, test = found
    if train.shape[1:] != test.shape[1:] or train.dtype != test.dtype or not train.shape[1]:
        wrong, other = (f"{part.dtype} of shape {part.shape}" for part in found)
        wrong = f"target_train is {wrong}, target_test {other}"
        raise _unusable(where, wrong, "the same type, and as many numbers for each sample")
    return train, test


def _columns(where: Path | str, raw: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the columns among some arrays, by name."""
    found = {k.removeprefix(COLUMN): v for k, v in raw.items() if k.startswith(COLUMN)}
    for name, values in found.items():
        if values.dtype.kind not in "iuU":
            wrong = f"{COLUMN}{name} is {values.dtype}"
            raise _unusable(where, wrong, "integers or text")
    return found


def _splits(where: Path | str, raw: Mapping[str, NDArray[Any]]) -> Splits:
    x_train, x_test = (_images(where, k, raw[k]) for k in ("x_train", "x_test"))
    y_train, y_test = (_labels(where, k, raw[k]) for k in ("y_train", "y_test"))
    return Splits(x_train, y_train, x_test, y_test)


def _count_classes(splits: Splits, names: Sequence[str]) -> int:
    """Return the number of class names, or the largest label plus one where there are none."""
    seen = [int(y.max()) + 1 for y in (splits.y_train, splits.y_test) if len(y)]
    return len(names) or max(seen, default=1)


def read_samples(path: Path) -> tuple[Images, Ints]:
    """Read images and labels of one host from an .npz file: x_train and y_train, or x and y.

    Raises:
        DataError: The file is missing, corrupt, lacks a key or holds unusable data.
    """
    raw = _load(path, (), (*_KEYS[:2], "x", "y"))
    first, second = _KEYS[:2] if _KEYS[0] in raw else ("x", "y")
    if first not in raw or second not in raw:
        raise _unusable(path, f"has no {first}, {second}", "x_train and y_train, or x and y")
    x, y = _images(path, first, raw[first]), _labels(path, second, raw[second])
    if len(x) != len(y) or not x.size or y.min() < 0:
        wrong = f"{len(x)} samples, {len(y)} labels, the smallest {y.min(initial=0)}"
        raise _unusable(path, wrong, "one label from 0 on for each sample")
    return x, y


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays into a compressed .npz file, whole or not at all."""
    named: dict[str, Any] = dict(arrays)

    def write(to: Path) -> None:
        with to.open("wb") as file:  # given a path, NumPy would append .npz to it
            np.savez_compressed(file, **named)

    write_atomic(path, write)


def _load(path: Path, keys: Sequence[str], also: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Load arrays of an .npz file: all of `keys`, those of `also` that it has, and columns."""
    if not path.is_file():
        names = ", ".join(keys) or "x and y, or x_train and y_train"
        where = "" if path.is_absolute() else f" in {Path.cwd()}"
        wrong = "not a file" if path.exists() else f"no such file{where}"
        raise DataError(f"{path}: {wrong}; give the path of an .npz with {names}")
    try:
        _check_sizes(path, (*keys, *also))
        # np.load does not close a file that it opened and could not read: open it here.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            also = [*also, *(key for key in archive if key.startswith(COLUMN))]
            missing = [k for k in keys if k not in archive]
            if not missing:
                return {k: archive[k] for k in (*keys, *also) if k in archive}
    except _UNREADABLE as error:
        wrong = "corrupt, truncated, or holds Python objects, which are never read"
        raise refusal(path, wrong, "an .npz of plain number arrays", _ADVICE) from error
    raise _unusable(path, f"has no {', '.join(missing)}", f"the arrays {', '.join(keys)}")


def _check_sizes(path: Path, keys: Sequence[str]) -> None:
    """Refuse arrays that claim more than the file holds or than this machine holds; read none."""
    total, memory = 0, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            key = name.removesuffix(".npy")  # NumPy reads a member with this ending and without
            if key not in keys and not key.startswith(COLUMN):
                continue
            with archive.open(name) as member:
                claimed = _claimed_bytes(member)
                if claimed + member.tell() != archive.getinfo(name).file_size:
                    raise ValueError(f"{name} claims {claimed} bytes, but does not have them")
            total += claimed
    if total > memory:
        wrong = f"its arrays have {total / 1e9:,.0f} GB, this machine has {memory / 1e9:,.0f} GB"
        raise _unusable(path, wrong, "arrays that fit into memory")


def _claimed_bytes(member: IO[bytes]) -> int:
    """Read the header of an array; return the bytes that it claims."""
    version = np.lib.format.read_magic(member)
    if version not in _HEADERS:
        raise ValueError(f"version {version} of the format is not for plain numbers")
    shape, _, kind = _HEADERS[version](member)
    size: int = math.prod(shape) * kind.itemsize
    return size


def _images(where: Path | str, key: str, x: NDArray[Any]) -> Images:
    if _are_tokens(x):
        return _token_ids(where, key, x)
    x = _channels_first(where, key, x)
    if x.dtype == np.uint8:
        return np.ascontiguousarray(x)
    if x.dtype not in (np.float32, np.float64):
        raise _unusable(where, f"{key} is {x.dtype}", "uint8 (0..255), float32 or float64")
    return _floats(where, key, x)


def _floats(where: Path | str, key: str, values: NDArray[Any]) -> NDArray[np.float32]:
    """Return numbers as 32-bit floats; refuse those that are missing or do not fit."""
    with np.errstate(over="ignore"):
        found: NDArray[np.float32] = np.ascontiguousarray(values, np.float32)
    if not np.isfinite(found).all():
        wrong = f"{key} holds NaN, infinite values, or numbers too large for 32-bit floats"
        raise _unusable(where, wrong, "finite numbers")
    return found


def _are_tokens(x: NDArray[Any]) -> bool:
    """Return whether samples are token ids: integers [n, T], where bytes are features."""
    return x.ndim == 2 and x.dtype.kind in "iu" and x.dtype != np.uint8


def _token_ids(where: Path | str, key: str, x: NDArray[Any]) -> NDArray[np.int16]:
    if x.size and not 0 <= int(x.min()) <= int(x.max()) < _MOST_TOKENS:
        wrong = f"{key} holds integers from {x.min()} to {x.max()}, which are taken for token ids"
        raise _unusable(where, wrong, f"0 to 32767; {IF_TABLE}")
    return np.ascontiguousarray(x, np.int16)


def _unusable(where: Path | str, wrong: str, expected: str) -> DataError:
    return DataError(f"{where}: {wrong}; expected {expected}")


def _channels_first(where: Path | str, key: str, x: NDArray[Any]) -> NDArray[Any]:
    """Return images as [n, C, H, W]; the rules below, in order, find the channel axis.

    A table stays [n, F].
    """
    if x.ndim == 2:
        return x
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4:
        _, a, b, c = x.shape
        if a <= _FEW:  # [n, C, H, W] with few channels
            return x
        if c <= _FEW < b:  # [n, H, W, C] with few channels
            return x.transpose(0, 3, 1, 2)
        if b == c:  # [n, C, H, W], many channels, square
            return x
        if a == b:  # [n, H, W, C], many channels, square
            return x.transpose(0, 3, 1, 2)
    unclear = ", whose channel axis is ambiguous" if x.ndim == 4 else ""
    expected = "[n, F] for a table, [n, H, W], [n, C, H, W] or [n, H, W, C] for images"
    raise _unusable(where, f"{key} has shape {x.shape}{unclear}", expected)


def _labels(where: Path | str, key: str, y: NDArray[Any]) -> Ints:
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1 or y.dtype.kind not in "iu":
        wrong = f"{key} is {y.dtype} of shape {y.shape}"
        raise _unusable(where, wrong, "integers of shape [n]")
    if y.size and (largest := int(y.max())) >= _MOST_CLASSES:
        wrong = f"{key} holds the label {largest}"
        raise _unusable(where, wrong, f"labels from 0 on, in at most {_MOST_CLASSES:,} classes")
    return ints(y)


def with_labels(arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    """Return the arrays with labels in y, and in `target_train` and `target_test` what y held.

    Floats are the targets of a regression. Integers of the shape of token ids are the tokens that
    follow. Samples are still divided by labels: those of a regression are ten bins of equal size,
    and samples of a text without labels have all the same one. Labels in y stay as they are.

    >>> y = np.linspace(0.0, 1.0, 20)
    >>> found = with_labels({"x_train": y[:, None], "y_train": y, "y_test": y[:2]})
    >>> found["y_train"][:5].tolist(), found["target_test"].shape
    ([0, 0, 1, 1, 2], (2,))
    """
    x, train, test = (arrays[key] for key in ("x_train", "y_train", "y_test"))
    targets = {"target_train": train, "target_test": test}
    is_table = {train.ndim, test.ndim} <= {1, 2} and train.size and test.size
    if {train.dtype.kind, test.dtype.kind} == {"f"} and is_table:
        shares = np.arange(1, _BINS) / _BINS
        edges = np.quantile(train.reshape(len(train), -1)[:, :1].astype(float), shares)
        labels = {"y_train": _bin_of(train, edges), "y_test": _bin_of(test, edges)}
        return {**arrays, **labels, **targets}
    if _are_tokens(x) and train.shape == x.shape:
        same = {key: np.zeros(len(arrays[key]), np.int64) for key in ("y_train", "y_test")}
        return {**arrays, **same, **targets}
    return arrays


def _bin_of(values: NDArray[Any], edges: Floats) -> Ints:
    return ints(np.searchsorted(edges, values.reshape(len(values), -1)[:, 0], side="left"))
