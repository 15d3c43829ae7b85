"""Runs that two studies ask for: what one has finished the other takes over, as a copy.

Same settings and same seed are the same records, so nothing is computed twice. The paper's
ablations, say, all contain the run with its default settings.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dystop.errors import RunFolderError
from dystop.experiments.durable import file_sha256, write_atomic
from dystop.experiments.spec import Experiment, read_experiment, to_toml
from dystop.experiments.store import CHECKPOINTS, CONFIG, STUDY, is_study, update_info
from dystop.experiments.study import PLAN, Study, finished

_LEFT_OUT = (CHECKPOINTS, "report", ".lock")


def take_over(study: Study, wanted: Sequence[Experiment]) -> list[tuple[Experiment, Path]]:
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
        plan = path.parent / PLAN / f"{path.name}.toml"
        if finished(path) and plan.is_file() and _settings(read_experiment(plan)) == settings:
            return path
    return None


def _settings(experiment: Experiment) -> str:
    return to_toml(replace(experiment, name="run"))


def _candidates(study: Study, experiment: Experiment) -> Iterator[Path]:
    """Runs of this mechanism and seed in the studies beside; no plan is read for the others."""
    for beside in sorted(study.path.parent.iterdir()):
        if beside == study.path or not is_study(beside):
            continue
        for row in json.loads((beside / STUDY).read_bytes())["runs"]:
            if (row["mechanism"], row["seed"]) == (experiment.mechanism.name, experiment.seed):
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
