"""The four tables of an export, and the rows that a record gives them. Pure functions.

rounds    one row per round
workers   one row per round and worker of which the record says something
links     one row per round and transfer
tests     one row per evaluation
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from dystop.control.fairness import fairness_of
from dystop.record import SCORE, RoundRecord

Row = dict[str, Any]
Kind = type[int] | type[float] | type[bool] | type[str]
TableName = Literal["rounds", "workers", "links", "tests"]
TABLES: tuple[TableName, ...] = get_args(TableName)
NOTE = "notes."
"""Numbers of the mechanism are columns of `rounds` whose names begin with this."""


def _numbers() -> dict[str, Kind]:
    """Return the fields of a record that hold one number, with their kinds."""
    kinds: dict[Any, Kind] = {int: int, float: float, int | None: int, float | None: float}
    return {f.name: kinds[f.type] for f in fields(RoundRecord) if f.type in kinds}


_NUMBERS = _numbers()
_AT: dict[str, Kind] = {"round": int, "clock_s": float}

COLUMNS: Mapping[TableName, Mapping[str, Kind]] = {
    "rounds": {name: kind for name, kind in _NUMBERS.items() if name not in SCORE},
    "workers": {
        **_AT, "worker": int, "active": bool, "accuracy": float, "loss": float, "energy_j": float,
        "x_m": float, "y_m": float,
    },
    "links": {
        **_AT, "dst": int, "src": int, "stage": int, "seconds": float, "bytes": int, "lost": bool,
    },
    "tests": {
        **_AT, "wire_bytes_total": int, "epochs_total": float, "energy_j_total": float,
        **{name: _NUMBERS[name] for name in SCORE if name in _NUMBERS},
        "accuracy_worst": float, "accuracy_jain": float,
    },
}  # fmt: skip
"""The columns of each table, without those that name the run."""


@dataclass(frozen=True)
class RoundRows:
    """The rows of one round; a later one of the same round replaces it."""

    round: int
    clock_s: float
    rounds: Row
    workers: list[Row] = field(default_factory=list)
    links: list[Row] = field(default_factory=list)
    tests: list[Row] = field(default_factory=list)  # one row, or none

    def of(self, table: TableName) -> list[Row]:
        """Return the rows of one table."""
        if table == "rounds":
            return [self.rounds]
        rows: list[Row] = getattr(self, table)
        return rows


def rows_of(
    record: RoundRecord,
    links: Mapping[str, Sequence[Any]] | None = None,
    energy_j_total: float | None = None,
) -> RoundRows:
    """Return the rows of one round.

    Args:
        record: Its record.
        links: What the trace of a testbed says about its links: columns `dst`, `src`, `stage`,
            `seconds`, `bytes` and `lost`. None: the record itself names those that arrived.
        energy_j_total: Joules of all rounds so far.
    """
    at = {"round": record.round, "clock_s": record.clock_s}
    return RoundRows(
        round=record.round,
        clock_s=record.clock_s,
        rounds=_round_row(record),
        workers=[at | row for row in _worker_rows(record)],
        links=[at | row for row in _link_rows(record, links)],
        tests=[at | row for row in _test_rows(record, energy_j_total)],
    )


def _round_row(record: RoundRecord) -> Row:
    notes = {f"{NOTE}{key}": float(value) for key, value in record.notes.items()}
    return {name: getattr(record, name) for name in COLUMNS["rounds"]} | notes


def _worker_rows(record: RoundRecord) -> Iterator[Row]:
    """Yield what is known of single workers: activity, results, energy, position."""
    active = set(record.active_ids or ())
    columns = {
        "accuracy": record.worker_accuracy or (),
        "loss": record.worker_loss or (),
        "energy_j": record.worker_energy_j or (),
    }
    places = record.positions or ()
    count = max(len(places), max(active, default=-1) + 1, *map(len, columns.values()))
    for worker in range(count):
        values = {name: _entry(column, worker) for name, column in columns.items()}
        place = places[worker] if worker < len(places) else (None, None)
        if worker in active or any(value is not None for value in (*values.values(), *place)):
            is_active = None if record.active_ids is None else worker in active
            yield {"worker": worker, "active": is_active, **values} | {
                "x_m": place[0],
                "y_m": place[1],
            }


def _entry(column: Sequence[Any], worker: int) -> Any:
    return column[worker] if worker < len(column) else None


def _link_rows(record: RoundRecord, traced: Mapping[str, Sequence[Any]] | None) -> Iterator[Row]:
    """Yield the transfers of a round: as a trace measured them, or those that arrived."""
    if traced is None:
        for dst, src in record.link_pairs or ():
            yield {"dst": dst, "src": src, "lost": False}
        return
    names = ("dst", "src", "stage", "seconds", "bytes", "lost")
    for values in zip(*(traced[name] for name in names), strict=True):
        yield dict(zip(names, values, strict=True))


def _test_rows(record: RoundRecord, energy_j_total: float | None) -> Iterator[Row]:
    """Yield the evaluation of a round, if there was one."""
    if record.accuracy is None:
        return
    fairness = fairness_of(record.worker_accuracy)
    yield {
        **{name: getattr(record, name) for name in COLUMNS["tests"] if hasattr(record, name)},
        "energy_j_total": energy_j_total,
        "accuracy_worst": fairness.worst_decile if fairness else None,
        "accuracy_jain": fairness.jain if fairness else None,
    }
