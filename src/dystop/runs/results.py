"""Finished runs as Python values: records, arrays and data frames."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.control.stopping import diverged_round
from dystop.folders.run_folder import open_run
from dystop.record import ACCURACY, RoundRecord
from dystop.recorders import number_fields
from dystop.runs.common_time import (
    Evaluations,
    common_time_s,
    evaluations_of,
    tells_more,
    unequal_ends,
)
from dystop.units import data, number, seconds

_COLUMNS = list(number_fields())


@dataclass(frozen=True, repr=False)
class Run:
    """One run: its configuration and its history."""

    name: str
    config: Mapping[str, Any]  # tables by section, as in config.toml
    records: Sequence[RoundRecord]
    stop_reason: str = ""  # why a callback has ended it; empty: none has

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.config["seed"])

    @property
    def accuracy(self) -> float:
        """The last test accuracy, mean over the workers; NaN if no round was tested.

        Of a task with another score it is that score, such as R2 (`score_name`).
        """
        tested = [r.accuracy for r in self.records if r.accuracy is not None]
        return tested[-1] if tested else float("nan")

    @property
    def evaluations(self) -> Evaluations:
        """Times and scores of the tests."""
        limit = (self.config.get("stop") or {}).get("diverged", 0.0)
        lost = diverged_round(limit, self.records) is not None
        return evaluations_of(self.records, self.config, diverged=lost)

    @property
    def is_planned(self) -> bool:
        """Whether the run was planning only: no model was trained."""
        return not (self.config.get("engine") or {}).get("train", True)

    @property
    def score_name(self) -> str:
        """What `accuracy` is: "accuracy", or the name of another score of the task."""
        names = [r.get("score_name") for r in self.records if r.accuracy is not None]
        return (names[-1] if names else None) or ACCURACY

    def plot(self, what: str = "accuracy", *, target: float | None = None) -> Any:
        """Draw the run; a notebook shows the figure, and `figure` is that of matplotlib.

        Args:
            what: "accuracy" or "loss" over time, "accuracy-data" against the data sent, or "data"
                sent over time.
            target: Accuracy at which a line is drawn.
        """
        return _notebook().draw_run(self, what, target)

    def __repr__(self) -> str:
        return (
            f"Run({self.name!r}, {len(self.records)} rounds, {self.score_name} {self.accuracy:.4g})"
        )

    def _repr_html_(self) -> str:
        page: str = _notebook().run_html(self)
        return page

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return one array per field of `RoundRecord`, with one entry per round.

        A value that a round does not have is NaN, as `accuracy` in a round that was not tested.
        Notes of the mechanism are called `notes.KEY`. Fields that hold no numbers, such as
        `link_pairs`, are left out; read them from `records`.
        """
        columns = {name: _column([r.get(name) for r in self.records]) for name in _COLUMNS}
        keys = dict.fromkeys(key for r in self.records for key in r.notes)
        notes = {f"notes.{key}": _column([r.notes.get(key) for r in self.records]) for key in keys}
        return columns | notes

    def to_pandas(self) -> Any:
        """Return `to_arrays` as a pandas DataFrame; needs pandas."""
        return _pandas().DataFrame(self.to_arrays())


@dataclass(frozen=True, repr=False)
class Comparison:
    """Runs of several mechanisms on the same seeds. `print` shows a summary table."""

    runs: Mapping[str, Sequence[Run]]  # by mechanism, one run per seed

    def __iter__(self) -> Iterator[tuple[str, Run]]:
        """Yield every run with the name of its mechanism."""
        for name, runs in self.runs.items():
            for run in runs:
                yield name, run

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of all runs joined, with the columns `mechanism` and `seed` in front.

        A note that only some mechanisms write is NaN in the rounds of the others.
        """
        tables = [
            {
                "mechanism": np.full(len(run.records), name, object),
                "seed": np.full(len(run.records), run.seed),
                **run.to_arrays(),
            }
            for name, run in self
        ]
        return {
            key: np.concatenate([t[key] if key in t else _missing(len(t["seed"])) for t in tables])
            for key in dict.fromkeys(key for table in tables for key in table)
        }

    def to_pandas(self) -> Any:
        """Return `to_arrays` as a pandas DataFrame; needs pandas."""
        return _pandas().DataFrame(self.to_arrays())

    @property
    def common_time_s(self) -> float | None:
        """The last time at which the accuracies of all runs compare.

        None where there is none, or where it tells no more than the last accuracies.
        """
        tested = [run.evaluations for _, run in self]
        at_s = common_time_s(tested)
        return at_s if at_s is not None and tells_more(tested, at_s) else None

    @property
    def warning(self) -> str:
        """Why the numbers at the end of the runs do not compare; empty where they do."""
        if all(run.is_planned for _, run in self):
            return ""
        ends = {
            name: float(np.mean([_last(run, "clock_s") for run in runs]))
            for name, runs in self.runs.items()
        }
        what = unequal_ends(ends)
        return what and f'{what}. Give all of them the same time: stop={{"seconds": S}}'

    def summary(self) -> list[dict[str, Any]]:
        """Return one row per mechanism; means are taken over the seeds.

        The best accuracy at `common_time_s` comes first, or else the best last accuracy.
        `accuracy_std` is the sample standard deviation over the seeds.
        """
        at_s = self.common_time_s
        rows = [
            {
                "mechanism": name,
                "seeds": len(runs),
                **({} if at_s is None else {"accuracy_common": _mean_at(runs, at_s)}),
                "accuracy": float(np.mean([run.accuracy for run in runs])),
                "accuracy_std": _std([run.accuracy for run in runs]),
                "clock_s": float(np.mean([_last(run, "clock_s") for run in runs])),
                "wire_bytes": float(np.mean([_last(run, "wire_bytes_total") for run in runs])),
                "epochs": float(np.mean([_last(run, "epochs_total") for run in runs])),
            }
            for name, runs in self.runs.items()
        ]
        best = "accuracy" if at_s is None else "accuracy_common"
        return sorted(rows, key=lambda row: -np.nan_to_num(row[best], nan=-1.0))

    def plot(self, what: str = "accuracy", *, target: float | None = None) -> Any:
        """Draw the mean of each mechanism over its seeds; the arguments are those of `Run.plot`."""
        return _notebook().draw_comparison(self, what, target)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        page: str = _notebook().comparison_html(self)
        return page

    def cells(self) -> list[tuple[str, ...]]:
        """Return the rows of `summary` as text, after a row of titles."""
        scores = " / ".join(dict.fromkeys(run.score_name for _, run in self))
        name, at_s = scores or ACCURACY, self.common_time_s
        common = () if at_s is None else (f"{name} at {seconds(at_s)}",)
        head = ("mechanism", "seeds", *common, name, "time", "traffic", "epochs")
        return [head, *map(_cells, self.summary())]

    def __str__(self) -> str:
        table = self.cells()
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)
        return "\n".join([*lines, *([f"note: {self.warning}"] if self.warning else [])])


def load_run(folder: str | Path) -> Run:
    """Read a run folder, finished or not.

    Args:
        folder: Folder of a run, such as "runs/dystop-fmnist-mini-s0".

    Raises:
        RunFolderError: The folder is missing, incomplete or not a run.
    """
    read = open_run(Path(folder))
    reason = str(read.info.get("stop_reason") or "")
    is_stopped = read.info.get("status") == "interrupted"
    return Run(read.name, read.config, tuple(read.records), reason if is_stopped else "")


def _column(values: list[Any]) -> NDArray[Any]:
    """Return an array of numbers with NaN for None; whole numbers stay whole if none is missing."""
    if any(value is None for value in values):
        return np.array([np.nan if value is None else value for value in values], float)
    return np.array(values)


def _missing(rounds: int) -> NDArray[np.float64]:
    return np.full(rounds, np.nan)


def _last(run: Run, field: str) -> float:
    """Return a total after the last round; 0 if there was no round."""
    return float(run.records[-1].get(field)) if run.records else 0.0


def _mean_at(runs: Sequence[Run], clock_s: float) -> float:
    """Return the mean of what was known at a time; NaN if a run has no score by then."""
    scores = [run.evaluations.score_at(clock_s) for run in runs]
    return float(np.mean([float("nan") if score is None else score for score in scores]))


def _std(values: Sequence[float]) -> float:
    """Return the sample standard deviation; 0 for one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    spread = f" ± {row['accuracy_std']:.1%}" if row["seeds"] > 1 else ""
    return (
        row["mechanism"],
        str(row["seeds"]),
        *([f"{row['accuracy_common']:.1%}"] if "accuracy_common" in row else []),
        f"{row['accuracy']:.1%}{spread}",
        seconds(row["clock_s"]),
        data(row["wire_bytes"]),
        number(row["epochs"]),
    )


def _notebook() -> Any:
    """Return the module that draws; it belongs to the reports, which stand above this package."""
    return import_module("dystop.report.notebook")


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise ImportError(
            "to_pandas needs pandas; install it by 'pip install pandas', or use to_arrays()"
        ) from None
    return pandas
