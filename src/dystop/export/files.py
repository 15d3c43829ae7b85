"""Tables as files: CSV, Parquet and Arrow. One file per table, for all runs of an export.

A file is written as a whole and appears in one step. A reader never sees a part of it, also while a
run is followed.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from dystop.export.rows import COLUMNS, NOTE, TABLES, Kind, RoundRows, Row, TableName
from dystop.export.sources import RunLabel
from dystop.export.writer import needed
from dystop.storage import remove_temporary_files, write_atomic


class WriteTable(Protocol):
    """Writes one table into a file."""

    def __call__(self, path: Path, columns: Mapping[str, Kind], rows: Iterable[Row]) -> None:
        """Write these columns of these rows."""


_BATCH = 50_000  # rows that are converted at once
_LABEL: dict[str, Kind] = {"run": str, "mechanism": str, "timing": str, "seed": int}


class TableFiles:
    """Writes the four tables as files of one format.

    Args:
        out: Folder of the files.
        suffix: End of their names, such as ".csv".
        write: Writes one table into a file.
    """

    def __init__(self, out: Path, suffix: str, write: WriteTable) -> None:
        self._write = write
        self._rounds: dict[str, dict[int, RoundRows]] = {}
        self._labels: dict[str, RunLabel] = {}
        self.paths = {table: out / f"{table}{suffix}" for table in TABLES}
        for path in self.paths.values():
            remove_temporary_files(out, path.name)

    def add(self, label: RunLabel, rows: Sequence[RoundRows]) -> None:
        """Add rounds of a run; a round that is there already is replaced."""
        self._labels[label.run] = label
        self._rounds.setdefault(label.run, {}).update((row.round, row) for row in rows)

    def flush(self) -> None:
        """Write all tables."""
        for table, path in self.paths.items():
            columns, rows = self._columns(table), self._rows(table)
            write_atomic(path, partial(self._write, columns=columns, rows=rows))

    def close(self) -> list[Path]:
        """Return the files."""
        return list(self.paths.values())

    def _rows(self, table: TableName) -> Iterator[Row]:
        for name, rounds in self._rounds.items():
            label = self._labels[name].columns()
            for round_ in sorted(rounds):
                yield from (label | row for row in rounds[round_].of(table))

    def _columns(self, table: TableName) -> dict[str, Kind]:
        """Return the columns: the run, the keys of a sweep, the table's own, the mechanism's."""
        swept: dict[str, Kind] = {}
        for key in dict.fromkeys(key for label in self._labels.values() for key in label.swept):
            swept[key] = _kind([label.swept.get(key) for label in self._labels.values()])
        return {**_LABEL, **swept, **COLUMNS[table], **self._notes(table)}

    def _notes(self, table: TableName) -> dict[str, Kind]:
        if table != "rounds":
            return {}
        every = (row.record for rounds in self._rounds.values() for row in rounds.values())
        return dict.fromkeys((f"{NOTE}{key}" for record in every for key in record.notes), float)


def _kind(values: Sequence[Any]) -> Kind:
    """Return the narrowest kind of column that holds these values."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) == 1:
        found: Kind = kinds.pop()
        return found
    return float if kinds and kinds <= {int, float} else str


def write_csv(path: Path, columns: Mapping[str, Kind], rows: Iterable[Row]) -> None:
    """Write comma-separated values with a heading; empty means that there is no value."""
    with path.open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow(columns)
        lines.writerows([_cell(row.get(name)) for name in columns] for row in rows)


def _cell(value: Any) -> Any:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else value


def write_parquet(path: Path, columns: Mapping[str, Kind], rows: Iterable[Row]) -> None:
    """Write a Parquet file."""
    schema = _schema(columns)
    with needed("pyarrow.parquet", "parquet").ParquetWriter(path, schema) as file:
        for batch in _batches(rows):
            file.write_table(_arrow_table(columns, schema, batch))


def write_arrow(path: Path, columns: Mapping[str, Kind], rows: Iterable[Row]) -> None:
    """Write an Arrow file (IPC, also called Feather version 2)."""
    schema = _schema(columns)
    with needed("pyarrow.ipc", "parquet").new_file(path, schema) as file:
        for batch in _batches(rows):
            file.write_table(_arrow_table(columns, schema, batch))


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield rows in lists of bounded length: a large run need not fit into memory twice."""
    remaining = iter(rows)
    while batch := list(islice(remaining, _BATCH)):
        yield batch


def _schema(columns: Mapping[str, Kind]) -> Any:
    arrow = needed("pyarrow", "parquet")
    kinds = {int: arrow.int64(), float: arrow.float64(), bool: arrow.bool_(), str: arrow.string()}
    return arrow.schema([(name, kinds[kind]) for name, kind in columns.items()])


def _arrow_table(columns: Mapping[str, Kind], schema: Any, rows: Sequence[Row]) -> Any:
    values = [[_as(kind, row.get(name)) for row in rows] for name, kind in columns.items()]
    return needed("pyarrow", "parquet").table(values, schema=schema)


def _as(kind: Kind, value: Any) -> Any:
    return None if value is None else kind(value)
