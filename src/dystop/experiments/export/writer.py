"""What every writer of an export does, and the packages that some of them need."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from dystop.errors import ConfigError
from dystop.experiments.export.rows import RoundRows
from dystop.experiments.export.sources import RunLabel


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


def curves(rows: RoundRows) -> dict[str, float]:
    """Return the numbers of a round and of its evaluation, as points of curves by name.

    >>> found = RoundRows(3, 1.5, {"round": 3, "clock_s": 1.5, "loss": 0.5, "energy_j": None})
    >>> curves(found)
    {'rounds/clock_s': 1.5, 'rounds/loss': 0.5}
    """
    both = {"rounds": rows.rounds, "tests": rows.tests[0] if rows.tests else {}}
    return {
        f"{table}/{name}": float(value)
        for table, row in both.items()
        for name, value in row.items()
        if value is not None and name != "round" and not (table == "tests" and name == "clock_s")
    }
