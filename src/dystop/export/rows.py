"""The four tables of an export, and the rows that a record gives them. Pure functions.

rounds    one row per round
workers   one row per round and worker of which the record says something
links     one row per round and transfer
tests     one row per evaluation
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dystop.control.fairness import fairness_of
from dystop.record import ACCURACY, SCORE, RoundRecord
from dystop.recorders import number_fields

Row = dict[str, Any]
Kind = type[int] | type[float] | type[bool] | type[str]
TableName = Literal["rounds", "workers", "links", "tests"]
TABLES: tuple[TableName, ...] = get_args(TableName)
TracedLinks = Mapping[str, Sequence[Any]]
"""What the trace of a testbed says about links: dst, src, stage, seconds, bytes, lost, each [L]."""

LINK_COLUMNS = ("dst", "src", "stage", "seconds", "bytes", "lost")
NOTE = "notes."
"""Numbers of the mechanism are columns of `rounds` whose names begin with this."""


_NUMBERS = number_fields()
_AT: dict[str, Kind] = {"round": int, "clock_s": float}

COLUMNS: Mapping[TableName, Mapping[str, Kind]] = {
    "rounds": {name: kind for name, kind in _NUMBERS.items() if name not in SCORE},
    "workers": {
        **_AT, "worker": int, "active": bool, "accuracy": float, "loss": float, "energy_j": float,
        "epsilon": float, "not_finite": bool, "x_m": float, "y_m": float,
    },
    "links": {
        **_AT, "dst": int, "src": int, "stage": int, "seconds": float, "bytes": int, "lost": bool,
    },
    "tests": {
        **_AT, "wire_bytes_total": int, "epochs_total": float, "energy_j_total": float,
        "score_name": str, **{name: _NUMBERS[name] for name in SCORE if name in _NUMBERS},
        "accuracy_worst": float, "accuracy_jain": float,
    },
}  # fmt: skip
"""The columns of each table, without those that name the run."""


@dataclass(frozen=True)
class RoundRows:
    """What is known of one round, and the rows that it gives; rows are made when they are read.

    A later one of the same round replaces it.
    """

    record: RoundRecord
    traced: TracedLinks | None = None  # None: the record itself names the links that arrived
    energy_j_total: float | None = None  # joules of all rounds so far

    @property
    def round(self) -> int:
        """Number of the round."""
        return self.record.round

    @property
    def clock_s(self) -> float:
        """When it closed."""
        return self.record.clock_s

    def of(self, table: TableName) -> Iterator[Row]:
        """Yield the rows of one table."""
        record = self.record
        if table == "rounds":
            yield _round_row(record)
            return
        at = {"round": record.round, "clock_s": record.clock_s}
        if table == "workers":
            rows = _worker_rows(record)
        elif table == "links":
            rows = _link_rows(record, self.traced)
        else:
            rows = _test_rows(record, self.energy_j_total)
        yield from (at | row for row in rows)


def _round_row(record: RoundRecord) -> Row:
    notes = {f"{NOTE}{key}": float(value) for key, value in record.notes.items()}
    return {name: record.get(name) for name in COLUMNS["rounds"]} | notes


def _worker_rows(record: RoundRecord) -> Iterator[Row]:
    """Yield what is known of single workers: activity, results, costs, position."""
    active, bad = set(record.get("active_ids") or ()), set(record.get("not_finite") or ())
    columns = {
        "accuracy": record.get("worker_accuracy") or (),
        "loss": record.get("worker_loss") or (),
        "energy_j": record.get("worker_energy_j") or (),
        "epsilon": record.get("worker_epsilon") or (),
        "x_m": [place[0] for place in record.get("positions") or ()],
        "y_m": [place[1] for place in record.get("positions") or ()],
    }
    named = active | bad
    for worker in sorted(named.union(range(max(map(len, columns.values()))))):
        values = {name: _entry(column, worker) for name, column in columns.items()}
        if worker in named or any(value is not None for value in values.values()):
            is_active = None if record.get("active_ids") is None else worker in active
            yield {"worker": worker, "active": is_active, "not_finite": worker in bad, **values}


def _entry(column: Sequence[Any], worker: int) -> Any:
    return column[worker] if worker < len(column) else None


def _link_rows(record: RoundRecord, traced: TracedLinks | None) -> Iterator[Row]:
    """Yield the transfers of a round: as a trace measured them, or those that arrived."""
    if traced is None:
        for dst, src in record.get("link_pairs") or ():
            yield {"dst": dst, "src": src, "lost": False}
        return
    for values in zip(*(traced[name] for name in LINK_COLUMNS), strict=True):
        yield dict(zip(LINK_COLUMNS, values, strict=True))


def _test_rows(record: RoundRecord, energy_j_total: float | None) -> Iterator[Row]:
    """Yield the evaluation of a round, if there was one."""
    if record.accuracy is None:
        return
    fairness = fairness_of(record.get("worker_accuracy"))
    yield {
        **{name: record.get(name) for name in COLUMNS["tests"]},
        "score_name": record.get("score_name") or ACCURACY,
        "energy_j_total": energy_j_total,
        "accuracy_worst": fairness.worst_decile if fairness else None,
        "accuracy_jain": fairness.jain if fairness else None,
    }
