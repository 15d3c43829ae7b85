"""Tables: columns of a CSV or Parquet file as arrays, and back into a file."""

import csv
import io
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.data.readers import check_memory, refusal
from dystop.errors import DataError, nearest
from dystop.foreign_files import open_regular
from dystop.storage import write_atomic

Table = Mapping[str, NDArray[Any]]  # columns by name, equally long

TABLE_KINDS = (".csv", ".parquet")
_CSV_ADVICE = "Save it again as UTF-8 text with commas, and a first line with the column names"
_OTHER_DIVIDERS = ";\t|"  # of columns, in place of commas
_FEWER = "Import fewer rows or columns"
_CSV_TIMES = 8  # bytes of the texts and numbers of a CSV file, for each of its own
_MOST_DIGITS = 400  # of a number
_TEXT_BYTES = 4  # of a character in an array
_TEXT_TIMES, _SPARE_BYTES = 256, 1 << 28  # memory of texts, by the size of their file
_CELL_BYTES = 32  # of a cell as it is decoded, converted and scaled
_PARQUET_ADVICE = "Write it again as a Parquet file"


def read_table(path: Path) -> dict[str, NDArray[Any]]:
    """Read a CSV or Parquet file.

    A column of a CSV file is a column of integers, numbers or text, by what all its cells are. An
    empty cell is "" in a column of text, and NaN in a column of numbers. Empty lines, and spaces
    around a cell, do not count.

    Raises:
        DataError: The file is missing, or not such a table.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; give the path of a table, .csv or .parquet")
    is_parquet = path.suffix.lower() == ".parquet"
    if not is_parquet:
        check_memory(path, "the table", _CSV_TIMES * path.stat().st_size, _FEWER)
    table = _read_parquet(path) if is_parquet else _read_csv(path)
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
    longest = max(map(len, cells), default=0)
    for kind, filled in ((np.int64, cells), (np.float64, [cell or "nan" for cell in cells])):
        if longest > _MOST_DIGITS:
            break
        try:
            return np.array(filled, np.str_).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(cells, np.str_)


def _read_csv(path: Path) -> dict[str, NDArray[Any]]:
    numbers, rows = [], []  # of lines, and their cells
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            for row in reader:
                if any(cells := [cell.strip() for cell in row]) or len(row) > 1:
                    numbers.append(reader.line_num)
                    rows.append(cells)
    except UnicodeDecodeError as error:
        wrong = f"byte {error.start} is not UTF-8 text"
        raise refusal(path, wrong, "a CSV file", _CSV_ADVICE) from error
    except (OSError, csv.Error) as error:
        raise refusal(path, f"cannot be read: {error}", "a CSV file", _CSV_ADVICE) from error
    head, *rows = rows or [[]]
    _check_head(path, head)
    for number, row in zip(numbers[1:], rows, strict=True):
        if len(row) != len(head) or any("\0" in cell for cell in row):
            wrong = f"line {number} has {len(row)} cells, the first line {len(head)} names"
            if len(row) == len(head):
                wrong = f"line {number} holds a byte 0, which is no text"
            raise refusal(path, wrong, "a cell for each column", _CSV_ADVICE)
    columns = list(zip(*rows, strict=True))
    _check_widths(path, head, columns)
    return {name: typed(list(cells)) for name, cells in zip(head, columns, strict=False)}


def _check_widths(path: Path, head: list[str], columns: list[tuple[str, ...]]) -> None:
    """Refuse a few long cells among many short ones: an array has room for the longest in each."""
    needed = [_TEXT_BYTES * len(cells) * max(map(len, cells)) for cells in columns]
    if sum(needed) > _SPARE_BYTES + _TEXT_TIMES * path.stat().st_size:
        k = max(range(len(needed)), key=needed.__getitem__)
        wrong = f"column {head[k]!r} has a cell of {max(map(len, columns[k])):,} characters"
        raise refusal(path, wrong, "texts of similar length", "Shorten it, or leave the column out")
    check_memory(path, "the table", sum(needed), _FEWER)


def _check_head(path: Path, names: list[str]) -> None:
    """Refuse names of columns that are empty, not different, or not divided by commas."""
    found = {
        "an empty name": "" in names,
        "a name twice: " + ", ".join({n for n in names if names.count(n) > 1}): (
            len(set(names)) < len(names)
        ),
        f"one name, {names[0][:60]!r}" if names else "": (
            len(names) == 1 and any(other in names[0] for other in _OTHER_DIVIDERS)
        ),
    }
    for wrong in (text for text, is_so in found.items() if is_so):
        advice = _PARQUET_ADVICE if path.suffix.lower() == ".parquet" else _CSV_ADVICE
        raise refusal(path, f"its columns have {wrong}", "a different name for each", advice)


def _read_parquet(path: Path) -> dict[str, NDArray[Any]]:
    parquet, arrow = _pyarrow("parquet"), _pyarrow()
    try:
        with open_regular(path, follow=True) as source, parquet.ParquetFile(source) as file:
            texts = _check_cells(path, file.metadata)
            _check_head(path, file.schema_arrow.names)
        table = parquet.read_table(path, read_dictionary=texts)
        return {name: _values(arrow, path, table[name]) for name in table.column_names}
    except (OSError, arrow.ArrowException) as error:
        what = str(error).splitlines()[0]
        raise refusal(path, f"cannot be read: {what}", "a Parquet file", _PARQUET_ADVICE) from error


def _check_cells(path: Path, metadata: Any) -> list[str]:
    """Refuse a table that does not fit into memory; return its columns of texts. Decode nothing."""
    groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
    columns = [group.column(k) for group in groups for k in range(group.num_columns)]
    cells = sum(column.num_values for column in columns)
    stored = sum(column.total_uncompressed_size for column in columns)
    check_memory(path, f"{cells:,} cells", cells * _CELL_BYTES + stored, _FEWER)
    return sorted({c.path_in_schema for c in columns if c.physical_type == "BYTE_ARRAY"})


def _values(arrow: Any, path: Path, column: Any) -> NDArray[Any]:
    """Return one column; text that is missing is ""; lists and dates stay objects."""
    kinds = arrow.types
    kind = column.type.value_type if kinds.is_dictionary(column.type) else column.type
    if kinds.is_string(kind) or kinds.is_large_string(kind):
        return _texts(
            path, column if kinds.is_dictionary(column.type) else column.dictionary_encode()
        )
    if kinds.is_decimal(kind) or kinds.is_boolean(kind) or kinds.is_null(kind):
        column = column.cast(arrow.int8() if kinds.is_boolean(kind) else arrow.float64())
    found: NDArray[Any] = column.to_numpy()
    return found


def _texts(path: Path, column: Any) -> NDArray[Any]:
    """Return a column of texts, each of which is stored once; an array has room for the longest."""
    words = [np.array([w or "" for w in (*c.dictionary.to_pylist(), "")]) for c in column.chunks]
    longest = max((w.itemsize for w in words), default=0)
    check_memory(path, "a column of texts", len(column) * longest, _FEWER)
    places = [c.indices.fill_null(len(c.dictionary)).to_numpy() for c in column.chunks]
    parts = [w[at] for w, at in zip(words, places, strict=True)]
    return np.concatenate(parts) if parts else np.array([], np.str_)


def _pyarrow(module: str = "") -> Any:
    try:
        return import_module(f"pyarrow.{module}" if module else "pyarrow")
    except ImportError:
        raise DataError(
            "a .parquet file needs pyarrow, which is not installed; pip install 'dystop[parquet]',"
            " or use .csv"
        ) from None
