"""MLflow: one of its runs for each run, with parameters and with metrics over rounds.

The tracking server is that of `MLFLOW_TRACKING_URI`; without one, a folder `mlruns` is written.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dystop.errors import ConfigError
from dystop.export.rows import RoundRows
from dystop.export.sources import RunLabel
from dystop.export.writer import Curves, needed
from dystop.foreign_files import folder_within, refuse_links

EXPERIMENT = "dystop"
TAG = "dystop.id"  # tells an earlier export of the same run
_MOST_METRICS, _MOST_PARAMS = 1000, 100  # that one call takes
_LONGEST = 500  # characters of a parameter


class MlflowRuns:
    """Logs every run anew; an earlier export of the same run is deleted when this one ends.

    Args:
        out: Folder of `mlruns`, where no tracking server is set.
    """

    def __init__(self, out: Path) -> None:
        self._mlflow = needed("mlflow", "mlflow")
        self._folder = out / "mlruns"
        given = os.environ.get("MLFLOW_TRACKING_URI")
        self._uri = given or self._folder.resolve().as_uri()
        with suppress(FileNotFoundError), folder_within(out, self._folder.name):  # it is no link
            refuse_links(self._folder)
        if not given:  # MLflow 3 recommends a database, and refuses a folder without this
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = self._call(lambda: self._mlflow.MlflowClient(tracking_uri=self._uri))
        self._experiment = self._call(self._experiment_id)
        self._runs: dict[str, str] = {}
        self._older: list[str] = []
        self._curves = Curves()

    def add(self, label: RunLabel, rows: Sequence[RoundRows]) -> None:
        """Log new rounds; of a round that comes again, what is new in it."""
        run = self._runs.get(label.run) or self._call(lambda: self._begin(label))
        metrics = [metric for row in rows for metric in self._metrics(label.run, row)]
        for first in range(0, len(metrics), _MOST_METRICS):
            self._client.log_batch(run, metrics=metrics[first : first + _MOST_METRICS])

    def flush(self) -> None:
        """Do nothing: every call is visible at once."""

    def close(self) -> list[Path]:
        """End all runs and delete earlier exports of them."""
        for run in self._runs.values():
            self._client.set_terminated(run)
        for run in self._older:
            self._client.delete_run(run)
        return [self._folder] if self._folder.exists() else []

    def _metrics(self, run: str, row: RoundRows) -> Iterator[Any]:
        at = int(1000 * row.clock_s)  # milliseconds of the run's clock
        for name, value in self._curves.new(run, row).items():
            yield self._mlflow.entities.Metric(name, value, at, row.round)

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(EXPERIMENT)
        return str(found.experiment_id if found else self._client.create_experiment(EXPERIMENT))

    def _begin(self, label: RunLabel) -> str:
        older = self._client.search_runs([self._experiment], f"tags.`{TAG}` = '{label.id}'")
        self._older += [run.info.run_id for run in older]
        run = self._client.create_run(
            self._experiment, run_name=label.run, tags={TAG: label.id}
        ).info.run_id
        param = self._mlflow.entities.Param
        params = [param(key, str(value)[:_LONGEST]) for key, value in label.config.items()]
        for first in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(run, params=params[first : first + _MOST_PARAMS])
        self._runs[label.run] = run
        return str(run)

    def _call(self, ask: Any) -> Any:
        """Call MLflow; say which server did not answer."""
        try:
            return ask()
        except self._mlflow.exceptions.MlflowException as error:
            raise ConfigError(
                f"--to mlflow: {self._uri}: {error}. Set MLFLOW_TRACKING_URI to a server that "
                "answers, or unset it to write a folder"
            ) from error
