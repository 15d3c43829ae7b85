"""Weights & Biases: one of its runs for each run, with curves over rounds.

Where the data go is wandb's own affair: its login, `WANDB_MODE=offline`, `WANDB_PROJECT`.
"""

import hashlib
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from dystop.errors import ConfigError
from dystop.export.rows import RoundRows
from dystop.export.sources import RunLabel
from dystop.export.writer import Curves, needed
from dystop.foreign_files import folder_within

PROJECT = "dystop"


class WandbRuns:
    """Logs every run under an id of its own, so that a repeated export replaces it.

    Args:
        out: Folder in which wandb keeps its files.
    """

    def __init__(self, out: Path) -> None:
        self._out, self._wandb = out, needed("wandb", "wandb")
        self._runs: dict[str, Any] = {}
        self._curves, self._older = Curves(), list[Path]()
        with suppress(FileNotFoundError), folder_within(out, "wandb") as inside:  # it is no link
            self._older = sorted(inside.resolve().glob("offline-run-*"))

    def add(self, label: RunLabel, rows: Sequence[RoundRows]) -> None:
        """Log new rounds; of a round that comes again, what is new in it."""
        run = self._runs.get(label.run) or self._begin(label)
        for row in rows:
            if points := self._curves.new(label.run, row):
                run.log({"round": row.round, **points})

    def flush(self) -> None:
        """Do nothing: wandb sends what it has on its own."""

    def close(self) -> list[Path]:
        """Finish all runs; remove what earlier exports of them left in offline mode."""
        for run in self._runs.values():
            run.finish()
        ends = tuple(f"-{run.id}" for run in self._runs.values())
        folders = [Path(run.dir).parent for run in self._runs.values()]
        for folder in self._older:
            if folder.name.endswith(ends) and folder.name not in {f.name for f in folders}:
                shutil.rmtree(folder, ignore_errors=True)
        return folders

    def _begin(self, label: RunLabel) -> Any:
        wandb = self._wandb
        try:
            run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=hashlib.sha256(label.id.encode()).hexdigest()[:16],
                name=label.run,
                group=label.mechanism,
                config=dict(label.config),
                dir=str(self._out),
                reinit="create_new",
                settings=wandb.Settings(silent=True, x_disable_stats=True, console="off"),
            )
        except wandb.errors.Error as error:
            raise ConfigError(
                f"--to wandb: {error}; run 'wandb login', or set WANDB_MODE=offline and send the "
                "folder later with 'wandb sync'"
            ) from error
        run.define_metric("*", step_metric="round")
        self._runs[label.run] = run
        return run
