"""Reuse of finished runs: a study copies a run that another study has finished.

Runs with the same settings and seed have the same records, so no run is computed twice. For
example, every ablation of the paper contains the run with the default settings.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dystop.config import Experiment, read_experiment, to_toml
from dystop.errors import DystopError
from dystop.folders.run_folder import (
    CHECKPOINTS,
    CONFIG,
    config_facts,
    is_study,
    not_created,
    update_info,
)
from dystop.folders.trust import PLAN
from dystop.storage import write_atomic
from dystop.studies.study import Study, finished, rows_of

_LEFT_OUT = (CHECKPOINTS, "report", ".lock")


def reuse_finished(study: Study, wanted: Sequence[Experiment]) -> list[tuple[Experiment, Path]]:
    """Copy equal runs that other studies have finished; return each experiment and its source."""
    found = []
    for experiment in wanted:
        folder = study.folder(experiment)
        if not folder.exists() and (source := _equal_run(study, experiment)):
            _copy(source, folder, experiment)
            found.append((experiment, source))
    return found


def _equal_run(study: Study, experiment: Experiment) -> Path | None:
    """Return a finished run with the same settings in another study; None if there is none."""
    settings = _settings(experiment)
    for path in _candidates(study, experiment):
        with suppress(DystopError):  # skip a plan that this version cannot read
            plan = read_experiment(path.parent / PLAN / f"{path.name}.toml")
            if finished(path) and _settings(plan) == settings:
                return path
    return None


def _settings(experiment: Experiment) -> str:
    return to_toml(replace(experiment, name="run"))


def _candidates(study: Study, experiment: Experiment) -> Iterator[Path]:
    """Yield the runs of this mechanism and seed in the neighbouring studies; read no plan."""
    wanted = experiment.mechanism.name, experiment.seed
    for other in sorted(study.path.parent.iterdir()):
        rows: list[dict[str, Any]] = []
        with suppress(DystopError):  # skip a study that cannot be read
            rows = rows_of(other) if other != study.path and is_study(other) else []
        for row in rows:
            if (row.get("mechanism"), row.get("seed")) == wanted:
                yield other / row["folder"]


def _copy(source: Path, target: Path, experiment: Experiment) -> None:
    """Copy a run under the name of the experiment; an error leaves no folder behind."""
    try:
        hidden = Path(tempfile.mkdtemp(prefix=f".{target.name}.tmp-", dir=target.parent))
        try:
            leave_out = shutil.ignore_patterns(*_LEFT_OUT)
            shutil.copytree(source, hidden, dirs_exist_ok=True, ignore=leave_out)
            config = to_toml(experiment)
            write_atomic(hidden / CONFIG, config.encode())
            origin = f"{source.parent.name}/{source.name}"
            update_info(hidden, name=experiment.name, same_as=origin, **config_facts(config))
            os.rename(hidden, target)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
    except OSError as error:
        raise not_created(target, error) from error
