"""Callbacks of a simulation: a progress bar, early stopping, metrics of your own.

`simulate(..., callbacks=[...])` takes objects of subclasses of `Callback`. They see every round,
and the models where they were tested. They change no record.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dystop.control.stopping import NO_LIMIT, Stop
from dystop.errors import ConfigError, nearest
from dystop.record import RoundRecord
from dystop.recorders import number_fields
from dystop.runs.progress_text import status_line

if TYPE_CHECKING:
    from dystop.data.dataset import Dataset
    from dystop.runs.simulation import Simulation
    from dystop.training.saved import LoadedModel
    from dystop.training.tasks.task import Task

_MEASURES = list(number_fields())
_LESS_IS_BETTER = ("loss", "test_loss", "test_loss_global")
_SHOW_EVERY_S = 0.1


@dataclass
class Evaluation:
    """The models after a round that was tested, and its record."""

    record: RoundRecord
    workers: int
    _load: "Callable[[int | None], LoadedModel]" = field(repr=False)
    _data: "Callable[[], Dataset]" = field(repr=False)
    _task: "Task" = field(repr=False)
    stop_reason: str = ""  # why a callback ends the run; empty: it goes on

    def model(self, worker: int | None = None) -> "LoadedModel":
        """Return the global model, or the model of one worker, as it was tested."""
        return self._load(worker)

    @property
    def data(self) -> "Dataset":
        """The data set of the run."""
        return self._data()

    @property
    def targets(self) -> NDArray[Any]:
        """What the task learns of each test sample: its label, or other targets."""
        data = self.data
        values = None if data.targets is None else data.targets[1]
        return self._task.targets(data.y_test, values)

    def stop(self, reason: str) -> None:
        """End the run after this round. The models stay as they are now."""
        self.stop_reason = self.stop_reason or reason


class Callback:
    """What a simulation calls while it runs. Override what you need."""

    def on_start(self, simulation: "Simulation") -> None:
        """Handle the start, before the first round."""

    def on_round(self, record: RoundRecord) -> None:
        """Handle a closed round."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Handle a round whose models were tested."""

    def on_end(self, simulation: "Simulation") -> None:
        """Handle the end, also that of a run that was stopped or has failed."""


class OnRound(Callback):
    """Calls a function with each record."""

    def __init__(self, call: Callable[[RoundRecord], object]) -> None:
        self._call = call

    def on_round(self, record: RoundRecord) -> None:
        """Call the function."""
        self._call(record)


class EarlyStopping(Callback):
    """Ends a run when a number of its record has not improved for some tests.

    Args:
        measure: Field of `RoundRecord`, such as "accuracy", "accuracy_global" or "test_loss".
        patience: Tests in a row without improvement that end the run.
        min_change: Smallest change that counts as an improvement.

    >>> EarlyStopping("test_loss", patience=3).less_is_better
    True
    """

    def __init__(
        self, measure: str = "accuracy", *, patience: int = 5, min_change: float = 0.0
    ) -> None:
        if measure not in _MEASURES:
            raise ConfigError(
                f"EarlyStopping: measure = {measure!r}; expected a number of a record"
                f"{nearest(measure, _MEASURES)}"
            )
        if patience < 1 or not min_change >= 0:
            raise ConfigError(
                f"EarlyStopping: patience = {patience}, min_change = {min_change}; expected "
                "at least 1 test, and at least 0"
            )
        self.measure, self.patience, self.min_change = measure, patience, min_change
        self.less_is_better = measure in _LESS_IS_BETTER
        self.best, self.best_round, self._tests = float("nan"), 0, 0

    def on_start(self, simulation: "Simulation") -> None:
        """Forget an earlier run."""
        self.best, self.best_round, self._tests = float("nan"), 0, 0

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Compare with the best test so far."""
        record = evaluation.record
        found = record.get(self.measure)
        value = float("nan") if found is None else float(found)
        gain = self.best - value if self.less_is_better else value - self.best
        if gain > self.min_change or (np.isnan(self.best) and not np.isnan(value)):
            self.best, self.best_round, self._tests = value, record.round, 0
            return
        self._tests += 1
        if self._tests >= self.patience:
            evaluation.stop(
                f"{self.measure} has not improved for {self.patience} tests; the best was "
                f"{self.best:.4g} in round {self.best_round}"
            )


class WorkerMetrics(Callback):
    """Computes numbers of your own for the model of every worker, at every test.

    Args:
        **metrics: Functions of the outputs of a model for all test samples, as NumPy array [n, K],
            and of what is learned of them, for classes their labels [n]; each returns a number.

    `values["NAME"]` has a row for each test and a column for each worker; `rounds` are the rounds
    of the tests.
    """

    def __init__(self, **metrics: Callable[[NDArray[np.float32], NDArray[Any]], float]) -> None:
        if not metrics or not all(map(callable, metrics.values())):
            raise ConfigError("WorkerMetrics: expected functions by name, as in recall=function")
        self._metrics = metrics
        self.rounds: list[int] = []
        self._rows: dict[str, list[list[float]]] = {name: [] for name in metrics}

    @property
    def values(self) -> dict[str, NDArray[np.float64]]:
        """The numbers by name, each [tests, workers]."""
        return {name: np.array(rows, np.float64) for name, rows in self._rows.items()}

    def on_start(self, simulation: "Simulation") -> None:
        """Forget an earlier run."""
        self.rounds, self._rows = [], {name: [] for name in self._metrics}

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Compute a row of each metric."""
        samples, targets = evaluation.data.x_test, evaluation.targets
        outputs = [
            evaluation.model(worker)(samples).numpy() for worker in range(evaluation.workers)
        ]
        self.rounds.append(evaluation.record.round)
        for name, metric in self._metrics.items():
            self._rows[name].append([float(metric(out, targets)) for out in outputs])


class ProgressBar(Callback):
    """Shows the progress of a run: a bar in a notebook or on a terminal, nothing in a log."""

    def __init__(self) -> None:
        self._name, self._stop, self._shown_s = "", Stop(), 0.0
        self._last: RoundRecord | None = None
        self._scored: RoundRecord | None = None
        self._show: Callable[[str], None] | None = None  # in a notebook
        self._bar: Any = None  # on a terminal
        self._task: Any = None

    def on_start(self, simulation: "Simulation") -> None:
        """Show an empty bar."""
        self._name = simulation.experiment.name
        self._stop, self._last, self._scored = simulation.experiment.stop, None, None
        self._show = _notebook_output()
        if self._show is None and sys.stdout.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            status = TextColumn("{task.fields[status]}")
            self._bar = Progress(TextColumn(self._name), MofNCompleteColumn(), BarColumn(), status)
            self._task = self._bar.add_task("", total=self._total, status="")
            self._bar.start()

    def on_round(self, record: RoundRecord) -> None:
        """Move the bar, at most ten times a second."""
        self._last = record
        self._scored = record if record.accuracy is not None else self._scored
        now = time.monotonic()
        if now - self._shown_s >= _SHOW_EVERY_S:
            self._shown_s = now
            self._draw()

    def on_end(self, simulation: "Simulation") -> None:
        """Show the last round."""
        self._draw()
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @property
    def _by_time(self) -> bool:
        """Whether seconds end the run, not rounds."""
        return self._stop.rounds == NO_LIMIT

    @property
    def _total(self) -> float:
        """Where the bar ends."""
        return self._stop.seconds if self._by_time else self._stop.rounds

    def _draw(self) -> None:
        last, total = self._last, self._total
        at = (round(last.clock_s, 1) if self._by_time else last.round) if last else 0
        done = min(at, total)
        status = status_line(last, self._scored) if last else ""
        if self._show is not None:
            shown = f"{done:g}/{total:g} s" if self._by_time else f"{done}/{total}"
            self._show(
                f'{escape(self._name)} <progress value="{done}" max="{total}"></progress> '
                f"{shown} {escape(status)}"
            )
        elif self._bar is not None:
            self._bar.update(self._task, completed=done, status=status)


def _notebook_output() -> Callable[[str], None] | None:
    """Return a function that shows HTML in one place of a notebook; None outside of notebooks."""
    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return None
    shown: Any = import_module("IPython.display")
    handle = shown.display(shown.HTML(""), display_id=True)
    return lambda text: handle.update(shown.HTML(text))
