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
_DROP = "fill the gaps, or leave the column out with --drop (drop= in Python)"


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
        bad = np.flatnonzero(~np.isfinite(numbers).all(axis=1))
        if len(bad):
            wrong = f"sample {bad[0]} of column {name!r} is empty or not finite"
            raise DataError(f"{where}: {wrong}; {_DROP}")
        return numbers
    if values.dtype.kind != "U":
        raise DataError(
            f"{where}: column {name!r} holds {values.dtype}, neither numbers nor text; convert it,"
            " or leave it out with --drop (drop= in Python)"
        )
    categories, which = np.unique(values, return_inverse=True)
    if "" in categories:
        row = int(np.flatnonzero(values == "")[0])
        raise DataError(f"{where}: sample {row} of column {name!r} is empty; {_DROP}")
    if len(categories) > _MOST_CATEGORIES:
        raise DataError(
            f"{where}: column {name!r} has {len(categories):,} different texts, too many for"
            f" categories (at most {_MOST_CATEGORIES:,}); leave it out with --drop, or keep it with"
            " --group (drop=, groups= in Python)"
        )
    return np.eye(len(categories))[which]


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
        raise DataError(f"{where}: target {name!r} holds {values.dtype}, not numbers or text")
    if task == "regression" or (task == "auto" and values.dtype.kind == "f"):
        if values.dtype.kind == "U" or not np.isfinite(values.astype(float)).all():
            raise DataError(f"{where}: target {name!r} is no number in every sample; {_DROP}")
        numbers = values.astype(np.float64)
        edges = np.quantile(numbers, np.arange(1, _BINS) / _BINS)
        labels = ints(np.searchsorted(edges, numbers, side="right"))
        return Targets(labels, _tenths(), numbers[:, None])
    if "" in values if values.dtype.kind == "U" else not np.isfinite(values.astype(float)).all():
        raise DataError(f"{where}: target {name!r} is empty in some sample; fill or remove it")
    classes, labels = np.unique(values, return_inverse=True)
    return Targets(ints(labels), tuple(map(str, classes.tolist())))


def _tenths() -> tuple[str, ...]:
    return tuple(f"tenth {k + 1}" for k in range(_BINS))
