"""Tables: columns of a CSV or Parquet file as arrays, and back into a file."""

import csv
import io
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.data.readers import refusal
from dystop.errors import DataError, nearest
from dystop.storage import write_atomic

Table = Mapping[str, NDArray[Any]]  # columns by name, equally long

TABLE_KINDS = (".csv", ".parquet")
_CSV_ADVICE = "Save it again as UTF-8 text with commas, and a first line with the column names"
_PARQUET_ADVICE = "Write it again as a Parquet file"


def read_table(path: Path) -> dict[str, NDArray[Any]]:
    """Read a CSV or Parquet file.

    A column of a CSV file is a column of integers, numbers or text, by what all its cells are. An
    empty cell is "" in a column of text, and NaN in a column of numbers.

    Raises:
        DataError: The file is missing, or not such a table.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; give the path of a table, .csv or .parquet")
    table = _read_parquet(path) if path.suffix == ".parquet" else _read_csv(path)
    if not table or not len(next(iter(table.values()))):
        raise refusal(path, "the table has no row", "a table with rows", "Fill it")
    return table


def write_table(path: Path, table: Table) -> None:
    """Write a CSV or Parquet file, whole or not at all."""
    if path.suffix == ".parquet":
        parquet = _pyarrow("parquet")
        write_atomic(path, lambda to: parquet.write_table(_pyarrow().table(dict(table)), to))
        return
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(table)
    rows.writerows(zip(*(values.tolist() for values in table.values()), strict=True))
    write_atomic(path, out.getvalue().encode())


def column_of(path: Path, table: Table, name: str) -> NDArray[Any]:
    """Return a column; refuse the name of one that is not there."""
    if name not in table:
        wrong = f"has no column {name!r}{nearest(name, table)}"
        raise refusal(path, wrong, f"one of its columns: {', '.join(table)}", "Name the column")
    return table[name]


def typed(cells: list[str]) -> NDArray[Any]:
    """Return texts as integers, else as numbers, else as they are; an empty number is NaN.

    >>> typed(["1", "2"]), typed(["1", ""]), typed(["a", ""])
    (array([1, 2]), array([ 1., nan]), array(['a', ''], dtype='<U1'))
    """
    for kind, filled in ((np.int64, cells), (np.float64, [cell or "nan" for cell in cells])):
        try:
            return np.array(filled, np.str_).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(cells, np.str_)


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            head, *rows = list(csv.reader(file, strict=True)) or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise refusal(path, f"cannot be read: {error}", "a CSV file", _CSV_ADVICE) from error
    rows = [row for row in rows if row]  # an empty line
    if len(set(head)) < len(head) or not all(head):
        wrong = "its first line names a column twice, or has an empty name"
        raise refusal(path, wrong, "the names of all columns", _CSV_ADVICE)
    for number, row in enumerate(rows, start=2):
        if len(row) != len(head):
            wrong = f"row {number} has {len(row)} cells, the first line {len(head)} names"
            raise refusal(path, wrong, "a cell for each column", _CSV_ADVICE)
    return {
        name: typed(list(cells)) for name, cells in zip(head, zip(*rows, strict=True), strict=False)
    }


def _read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    parquet, arrow = _pyarrow("parquet"), _pyarrow()
    try:
        table = parquet.read_table(path)
        return {name: _values(arrow, table[name]) for name in table.column_names}
    except (OSError, arrow.ArrowException) as error:
        what = str(error).splitlines()[0]
        raise refusal(path, f"cannot be read: {what}", "a Parquet file", _PARQUET_ADVICE) from error


def _values(arrow: Any, column: Any) -> NDArray[Any]:
    """Return one column; text that is missing is ""; lists and dates stay objects."""
    kinds = arrow.types
    kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return np.array([value or "" for value in column.to_pylist()], np.str_)
    found: NDArray[Any] = column.to_numpy()
    return found


def _pyarrow(module: str = "") -> Any:
    try:
        return import_module(f"pyarrow.{module}" if module else "pyarrow")
    except ImportError:
        raise DataError(
            "a .parquet file needs pyarrow, which is not installed; pip install 'dystop[parquet]',"
            " or use .csv"
        ) from None
