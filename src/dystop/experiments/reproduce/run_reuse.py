"""Runs that two studies ask for: what one has finished the other takes over, as a copy.

Same settings and same seed are the same records, so nothing is computed twice. The paper's
ablations, say, all contain the run with its default settings.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from dystop.errors import DystopError, RunFolderError
from dystop.experiments.config import Experiment, read_experiment, to_toml
from dystop.experiments.run_folder import CHECKPOINTS, CONFIG, is_study, update_info
from dystop.experiments.study import PLAN, Study, finished, rows_of
from dystop.storage import file_sha256, write_atomic

_LEFT_OUT = (CHECKPOINTS, "report", ".lock")


def reuse_finished(study: Study, wanted: Sequence[Experiment]) -> list[tuple[Experiment, Path]]:
    """Copy what other studies beside this one have finished; returns what came from where."""
    found = []
    for experiment in wanted:
        folder = study.folder(experiment)
        if not folder.exists() and (twin := _twin(study, experiment)):
            _copy(twin, folder, experiment)
            found.append((experiment, twin))
    return found


def _twin(study: Study, experiment: Experiment) -> Path | None:
    """A finished run of the same settings in another study."""
    settings = _settings(experiment)
    for path in _candidates(study, experiment):
        with suppress(DystopError):  # a plan that this version cannot read is no twin
            plan = read_experiment(path.parent / PLAN / f"{path.name}.toml")
            if finished(path) and _settings(plan) == settings:
                return path
    return None


def _settings(experiment: Experiment) -> str:
    return to_toml(replace(experiment, name="run"))


def _candidates(study: Study, experiment: Experiment) -> Iterator[Path]:
    """Runs of this mechanism and seed in the studies beside; no plan is read for the others."""
    wanted = experiment.mechanism.name, experiment.seed
    for beside in sorted(study.path.parent.iterdir()):
        rows: list[dict[str, Any]] = []
        with suppress(DystopError):  # a study that cannot be read has nothing to give
            rows = rows_of(beside) if beside != study.path and is_study(beside) else []
        for row in rows:
            if (row.get("mechanism"), row.get("seed")) == wanted:
                yield beside / row["folder"]


def _copy(source: Path, target: Path, experiment: Experiment) -> None:
    """All of a run but its name, which is its own; there as a whole or not at all."""
    try:
        hidden = Path(tempfile.mkdtemp(prefix=f".{target.name}.tmp-", dir=target.parent))
        try:
            leave_out = shutil.ignore_patterns(*_LEFT_OUT)
            shutil.copytree(source, hidden, dirs_exist_ok=True, ignore=leave_out)
            write_atomic(hidden / CONFIG, to_toml(experiment).encode())
            origin = f"{source.parent.name}/{source.name}"
            told = {"name": experiment.name, "same_as": origin}
            update_info(hidden, **told, config_sha256=file_sha256(hidden / CONFIG))
            os.rename(hidden, target)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
    except OSError as error:
        raise RunFolderError(
            f"{target}: cannot be copied from {source}: {error.strerror or error}"
        ) from error
