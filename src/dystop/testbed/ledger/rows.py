"""Rows of the ledger in SQLite: how they are written, and how damage to them is found."""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import groupby
from typing import Any

from dystop.testbed.ledger.tables import (
    KEYS,
    LARGE_BYTES,
    LINES,
    KeptLine,
    Line,
    RoundLine,
    Row,
    checksum,
    values_of,
)

LARGE_ROUNDS = 100  # a large control state is kept for every so many rounds
_NUMBERED = ("rounds", "orders", "reports", "lates", "records")  # tables with numbers as keys

Keys = dict[str, Row]  # the largest key of a table, by name


def columns_of(table: str) -> list[str]:
    """Return the names of the columns of a table, without `sum`."""
    return [f.name for f in fields(LINES[table])]


def create_table(table: str) -> str:
    """Return the statement that creates a table."""
    columns = columns_of(table)
    keys = ", ".join(columns[: KEYS[table]])
    return f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)}, sum, PRIMARY KEY ({keys}))"


def _put(table: str) -> str:
    columns = columns_of(table)
    marks = ", ".join("?" * (len(columns) + 1))
    return f"INSERT OR REPLACE INTO {table} ({', '.join(columns)}, sum) VALUES ({marks})"


def _get_sum(table: str) -> str:
    keys = columns_of(table)[: KEYS[table]]
    return f"SELECT sum FROM {table} WHERE {' AND '.join(f'{key} = ?' for key in keys)}"


_PUT = {table: _put(table) for table in KEYS}
_GET_SUM = {table: _get_sum(table) for table in KEYS}


def newest_keys(base: sqlite3.Connection) -> Keys:
    """Return the largest key of each table whose keys are numbers."""
    newest = {}
    for table in _NUMBERED:
        keys = columns_of(table)[: KEYS[table]]
        order = ", ".join(f"{key} DESC" for key in keys)
        found = base.execute(f"SELECT {', '.join(keys)} FROM {table} ORDER BY {order}").fetchone()
        newest[table] = found or (-1,)
    return newest


def _write(base: sqlite3.Connection, lines: Iterable[Any], newest: Keys) -> int:
    """Write rows of one table; return by how much the sum of all checksums grows."""
    first, *rest = lines
    table, keys = first.table, KEYS[first.table]
    rows = {row[:keys]: row for row in map(values_of, (first, *rest))}  # the last of a key counts
    before, last = 0, newest.get(table)
    for key in rows:
        if last is not None and key > last:  # a new row replaces none
            last = newest[table] = key
        elif found := base.execute(_GET_SUM[table], key).fetchone():
            before += found[0]
    sums = list(map(checksum, rows.values()))
    base.executemany(_PUT[table], ((*row, s) for row, s in zip(rows.values(), sums, strict=True)))
    return sum(sums) - before


def _write_kept(base: sqlite3.Connection, lines: Iterable[KeptLine], newest: Keys) -> int:
    grown = 0
    for line in lines:
        if line.value is not None:
            grown += _write(base, [line], newest)
        elif found := base.execute(_GET_SUM["kept"], (line.key,)).fetchone():
            base.execute("DELETE FROM kept WHERE key = ?", (line.key,))
            grown -= found[0]
    return grown


def _write_rounds(base: sqlite3.Connection, lines: Iterable[RoundLine], newest: Keys) -> int:
    grown = 0
    for line in lines:
        grown += _write(base, [line], newest)
        if line.books is not None:
            grown += _drop_large_state(base, line.round - 1, newest)
    return grown


_WRITERS: dict[str, Callable[[sqlite3.Connection, Iterable[Any], Keys], int]] = {
    "kept": _write_kept,
    "rounds": _write_rounds,
}


def write_lines(base: sqlite3.Connection, lines: Sequence[Line], newest: Keys) -> int:
    """Write rows; return by how much the sum of all checksums grows.

    Args:
        base: The database, in a transaction.
        lines: What to write.
        newest: What `newest_keys` has returned; it is updated.
    """
    return sum(
        _WRITERS.get(table, _write)(base, some, newest)
        for table, some in groupby(lines, lambda line: line.table)
    )


def _drop_large_state(base: sqlite3.Connection, round_: int, newest: Keys) -> int:
    """Drop the large control state of a round that is no longer the newest."""
    if round_ % LARGE_ROUNDS == 0:
        return 0
    columns = ", ".join(columns_of("rounds"))
    found = base.execute(
        f"SELECT {columns} FROM rounds WHERE round = ? AND length(books) > ?",
        (round_, LARGE_BYTES),
    ).fetchone()
    return _write(base, [replace(RoundLine(*found), books=None)], newest) if found else 0


def select(base: sqlite3.Connection, table: str, where: str, *values: int) -> list[Any]:
    """Return the rows of a table, by key, that fulfil a condition."""
    columns = columns_of(table)
    order = ", ".join(columns[: KEYS[table]])
    query = f"SELECT {', '.join(columns)} FROM {table} WHERE {where} ORDER BY {order}"
    return [LINES[table](*row) for row in base.execute(query, values)]


def delete(base: sqlite3.Connection, table: str, where: str, *values: int) -> int:
    """Delete rows; return by how much the sum of all checksums shrinks."""
    query = f"SELECT ifnull(sum(sum), 0) FROM {table} WHERE {where}"
    shrunk: int = base.execute(query, values).fetchone()[0]
    base.execute(f"DELETE FROM {table} WHERE {where}", values)
    return shrunk


def verify_rows(base: sqlite3.Connection) -> int:
    """Return the sum of all checksums; raise ValueError if the database or a row is damaged."""
    found = base.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise ValueError(found)
    total = 0
    for table in KEYS:
        columns = ", ".join([*columns_of(table), "sum"])
        for row in base.execute(f"SELECT {columns} FROM {table}"):
            if checksum(row[:-1]) != row[-1]:
                raise ValueError(f"a row of {table} has changed since it was written: {row[0]!r}")
            total += row[-1]
    return total
