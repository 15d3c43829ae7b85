"""What every writer of an export does, and the packages that some of them need."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from dystop.errors import ConfigError
from dystop.export.rows import RoundRows
from dystop.export.sources import RunLabel
from dystop.record import ACCURACY


class Writer(Protocol):
    """Takes the rows of runs to where another tool finds them."""

    def add(self, label: RunLabel, rows: Sequence[RoundRows]) -> None:
        """Take rounds of a run; one that was taken before may come again with more."""

    def flush(self) -> None:
        """Make everything visible that was taken so far."""

    def close(self) -> list[Path]:
        """End; return what was written."""


def needed(module: str, extra: str) -> Any:
    """Import a package that only one format needs; say how to install it where it is missing."""
    try:
        return import_module(module)
    except ImportError:
        package = module.partition(".")[0]
        raise ConfigError(
            f"--to needs {package}, which is not installed; install it by: "
            f"pip install 'dystop[{extra}]'"
        ) from None


class Curves:
    """Gives every point of a run's curves once, also if a round comes again."""

    def __init__(self) -> None:
        self._given: dict[str, set[tuple[str, int]]] = {}  # table and round, by run

    def new(self, run: str, rows: RoundRows) -> dict[str, float]:
        """Return the points of a round that were not given before, by the name of their curve."""
        given = self._given.setdefault(run, set())
        points = curves(rows)
        found = {name: y for name, y in points.items() if (_table(name), rows.round) not in given}
        given.update((_table(name), rows.round) for name in found)
        return found


def _table(curve: str) -> str:
    return curve.partition("/")[0]


_X_AXES = ("round", "clock_s")


def curves(rows: RoundRows) -> dict[str, float]:
    """Return the numbers of a round and of its evaluation, as points of curves by name.

    A round gives `rounds/loss`, an evaluation `tests/accuracy`, and so on. Where a task has another
    score, its name stands in place of the accuracy, as in `tests/r2`.
    """
    points = {f"rounds/{name}": y for row in rows.of("rounds") for name, y in row.items()}
    for row in rows.of("tests"):
        score = row["score_name"]
        points |= {f"tests/{name.replace(ACCURACY, score)}": y for name, y in row.items()}
    return {
        name: float(y)
        for name, y in points.items()
        if isinstance(y, int | float) and name.partition("/")[2] not in _X_AXES
    }
