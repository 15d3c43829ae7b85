"""Features and targets of a table: numbers become float32 inputs, texts become categories."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.data.table_files import Table
from dystop.errors import DataError, nearest
from dystop.sparse import Ints, ints

_MOST_CATEGORIES = 1000
_BINS = 10  # classes of a number to predict, by which samples are divided over workers
_CORRECT = "correct it or remove the row"
_DROP = "or leave the column out with --drop (drop= in Python)"
_MOST = float(np.finfo(np.float32).max)  # samples are 32-bit floats


@dataclass(frozen=True)
class Targets:
    """What is learned of every sample: its class, or a number."""

    labels: Ints  # [n]; of a number the tenth of all samples to which it belongs
    names: tuple[str, ...]  # of the classes
    numbers: NDArray[np.float64] | None = None  # [n, 1], for a regression


def check_columns(where: str, table: Table, names: Sequence[str]) -> None:
    """Refuse the names of columns that a table does not have."""
    for name in names:
        if name not in table:
            raise DataError(
                f"{where}: no column {name!r}{nearest(name, table)}; it has {', '.join(table)}"
            )


def features_of(where: str, table: Table, left_out: Sequence[str]) -> NDArray[np.float64]:
    """Return the inputs of every row, [n, F]: numbers as they are, a 0 or 1 for each category.

    Args:
        where: What errors call the table.
        table: Its columns.
        left_out: Columns that are no features.

    Raises:
        DataError: A cell is empty, a column is neither numbers nor text, or none is left.
    """
    parts = [_feature(where, name, table[name]) for name in table if name not in left_out]
    if not parts:
        raise DataError(f"{where}: no column is left for the features; it has {', '.join(table)}")
    return np.concatenate(parts, axis=1)


def _feature(where: str, name: str, values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the inputs that one column gives, [n, f]."""
    if values.dtype.kind in "iufb":
        numbers = values.astype(np.float64).reshape(len(values), -1)
        _check_numbers(where, f"column {name!r}", numbers, f"{_CORRECT}, {_DROP}")
        return numbers
    if values.dtype.kind != "U":
        raise DataError(
            f"{where}: column {name!r} holds {_kind(values)}, neither numbers nor text; convert it,"
            f" {_DROP}"
        )
    _check_texts(where, f"column {name!r}", values, f"{_CORRECT}, {_DROP}")
    categories, which = np.unique(values, return_inverse=True)
    if len(categories) > _MOST_CATEGORIES:
        raise DataError(
            f"{where}: column {name!r} has {len(categories):,} different texts, too many for"
            f" categories (at most {_MOST_CATEGORIES:,}); leave it out with --drop, or keep it with"
            " --group (drop=, groups= in Python)"
        )
    return np.eye(len(categories))[which]


def _kind(values: NDArray[Any]) -> str:
    """Return what a column holds, in a word."""
    return type(values[0]).__name__ if values.dtype.kind == "O" else str(values.dtype)


def _check_numbers(where: str, what: str, numbers: NDArray[np.float64], todo: str) -> None:
    """Refuse numbers [n, ...] that are missing, or that a 32-bit float cannot hold."""
    rows = numbers.reshape(len(numbers), -1)
    is_good = np.abs(rows) <= _MOST
    if len(bad := np.flatnonzero(~is_good.all(axis=1))):
        found = rows[bad[0]][~is_good[bad[0]]][0]
        wrong = "is empty or NaN" if np.isnan(found) else f"holds {found:g}"
        raise DataError(
            f"{where}: data row {bad[0] + 1} of {what} {wrong}; expected a number from {-_MOST:.1e}"
            f" to {_MOST:.1e}; {todo}"
        )


def _check_texts(where: str, what: str, values: NDArray[Any], todo: str) -> None:
    """Refuse texts that are missing, and a few texts among numbers, such as NA."""
    if len(empty := np.flatnonzero(values == "")):
        raise DataError(f"{where}: data row {empty[0] + 1} of {what} is empty; {todo}")
    is_number = np.array([_is_number(value) for value in values.tolist()])
    if is_number.mean() > 0.5 and not is_number.all():
        row = int(np.flatnonzero(~is_number)[0])
        raise DataError(
            f"{where}: data row {row + 1} of {what} holds {str(values[row])[:40]!r}, but most other"
            f" rows hold numbers; {todo}"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def scaled(values: NDArray[np.float64], training: Ints) -> NDArray[np.float32]:
    """Return columns with mean 0 and deviation 1 over the training rows; a constant becomes 0.

    >>> scaled(np.array([[1.0, 5.0], [3.0, 5.0], [5.0, 5.0]]), ints([0, 1])).tolist()
    [[-1.0, 0.0], [1.0, 0.0], [3.0, 0.0]]
    """
    mean, std = values[training].mean(axis=0), values[training].std(axis=0)
    out: NDArray[np.float32] = ((values - mean) / np.where(std > 0, std, 1.0)).astype(np.float32)
    return out


def targets_of(where: str, name: str, values: NDArray[Any], task: str) -> Targets:
    """Return what is learned of every sample.

    Args:
        where: What errors call the source.
        name: The target column, for messages.
        values: Its values, [n]: numbers for a regression, otherwise the classes.
        task: "classification", "regression", or "auto": numbers with decimals are a regression.
    """
    if values.ndim != 1 or values.dtype.kind not in "iufbU":
        raise DataError(f"{where}: target {name!r} holds {_kind(values)}, not numbers or text")
    what, is_text = f"target {name!r}", values.dtype.kind == "U"
    if is_text:
        _check_texts(where, what, values, _CORRECT)
    else:
        _check_numbers(where, what, values.astype(np.float64), _CORRECT)
    if task == "regression" or (task == "auto" and values.dtype.kind == "f"):
        if is_text:
            raise DataError(f"{where}: {what} holds {str(values[0])[:40]!r}, which is no number")
        numbers = values.astype(np.float64)
        edges = np.quantile(numbers, np.arange(1, _BINS) / _BINS)
        labels = ints(np.searchsorted(edges, numbers, side="right"))
        return Targets(labels, _tenths(), numbers[:, None])
    classes, labels = np.unique(values, return_inverse=True)
    if not 1 < len(classes) < max(len(values), 3):
        same = f"the same value {classes[0]}" if len(classes) < 2 else "another value"
        raise DataError(
            f"{where}: {what} has {same} in every row, so there are no classes to learn; name "
            "another column, or learn numbers with --task regression (task= in Python)"
        )
    return Targets(ints(labels), tuple(map(str, classes.tolist())))


def _tenths() -> tuple[str, ...]:
    return tuple(f"tenth {k + 1}" for k in range(_BINS))
