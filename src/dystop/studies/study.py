"""The folder of a study, which is a comparison or a sweep, and the progress of its runs.

runs/NAME/
  study.json      the runs, with mechanism, seed and timing law; the keys that a sweep varies
  plan/           one fully resolved configuration per run, written before the first one starts
  MECH-sSEED/     an ordinary run folder each; in a sweep KEYVALUE-...-sSEED
  report/         the page and its figures
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dystop.config import (
    Experiment,
    read_experiment,
    to_toml,
    to_tree,
)
from dystop.config.tables import load_file
from dystop.config.write import toml_value
from dystop.errors import RunFolderError
from dystop.folders.folder_kinds import COMPARISON, SWEEP, study_kind
from dystop.folders.run_folder import (
    CONFIG,
    INFO,
    STUDY,
    check_format,
    check_name,
    is_study,
    name_problem,
    not_created,
)
from dystop.folders.trust import PLAN, signature_of, trusts
from dystop.foreign_files import JSON_BYTES, folder_within, refuse_links
from dystop.format import FORMAT
from dystop.params import flatten
from dystop.storage import file_sha256, read_json, write_atomic
from dystop.training.tasks.catalogue import OWN_MODEL
from dystop.types import provenance_of

_MOST_DIFFERENCES = 4
_NOTED_BY_RUNS = {"model.base", "model.base_sha256"}  # a run notes which file its base is


@dataclass(frozen=True)
class StudyOutline:
    """The runs of a study without their configurations; needs no mechanism to be installed."""

    path: Path
    folders: tuple[Path, ...]  # of all runs, whether or not they exist yet
    over: tuple[str, ...] = ()  # the keys that a sweep varies

    @property
    def resume_command(self) -> str:
        """The command that resumes it."""
        return _resume_command(self.path, self.over)

    @property
    def begun(self) -> list[Path]:
        """The run folders that exist, in order."""
        return [folder for folder in self.folders if os.path.exists(folder)]

    @property
    def done(self) -> bool:
        """Whether nothing is left to run."""
        return all(map(finished, self.folders))


@dataclass(frozen=True)
class Study:
    """Runs that are compared with each other."""

    path: Path
    experiments: tuple[Experiment, ...]  # each named after its run folder
    over: tuple[str, ...] = ()  # the keys that a sweep varies
    accepted: bool = False  # its children get `--trust`: the user gave it, or this process wrote it

    @property
    def resume_command(self) -> str:
        """The command that resumes it."""
        return _resume_command(self.path, self.over)

    def folder(self, experiment: Experiment) -> Path:
        """Return the run folder of one experiment, whether or not it exists yet."""
        return self.path / experiment.name

    def plan(self, experiment: Experiment) -> Path:
        """Return the configuration file of one experiment."""
        return self.path / PLAN / f"{experiment.name}.toml"

    def todo(self) -> list[Experiment]:
        """Return the experiments that are not finished, in order."""
        return [e for e in self.experiments if not finished(self.folder(e))]


def _resume_command(path: Path, over: Sequence[str]) -> str:
    kind = study_kind(path) or (SWEEP if over else COMPARISON)
    return kind.resume_command(path)


def finished(folder: Path) -> bool:
    """Return whether this run has finished."""
    return (folder / INFO).is_file() and read_json(folder / INFO).get("status") == "finished"


def default_name(experiments: Sequence[Experiment]) -> str:
    """Return a name for a comparison without one."""
    data = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(experiments[0].data.name).stem)
    return f"compare-{data[:60]}"


def find_study(out: Path, name: str, experiments: Sequence[Experiment]) -> Study | None:
    """Return the study of this name if it exists; refuse one that has other settings."""
    check_name(name)
    path = out / name
    if not os.path.lexists(path):
        return None
    if not is_study(path):
        raise RunFolderError(f"{path}: exists and is not a study; choose another --name or --out")
    study = open_study(path)
    if differences := list(_differences(study.experiments, experiments)):
        shown = "; ".join(differences[:_MOST_DIFFERENCES])
        more = len(differences) - _MOST_DIFFERENCES
        raise RunFolderError(
            f"{path}: this study exists with other settings: {shown}"
            f"{f'; and {more} more' if more > 0 else ''}. Choose another --name or --out, or "
            f"resume it as it is with: {study.resume_command}"
        )
    return study


def grow_study(out: Path, name: str, experiments: Sequence[Experiment]) -> Study:
    """Return a study of these experiments; create it, or add those that the existing one lacks.

    An experiment that it has with other settings is refused. The plans of new ones are written
    before `study.json` names them.
    """
    check_name(name)
    path = out / name
    if not is_study(path):
        return create_study(out, name, experiments)
    known = open_study(path)
    if changed := list(_changed_settings(known.experiments, experiments)):
        shown = "; ".join(changed[:_MOST_DIFFERENCES])
        raise RunFolderError(f"{path}: has these runs with other settings: {shown}. Choose --out")
    there = {experiment.name for experiment in known.experiments}
    new = [experiment for experiment in experiments if experiment.name not in there]
    if new:
        _write(replace(known, experiments=(*known.experiments, *new)), name, new)
    return Study(path, tuple(experiments), accepted=True)


def open_study(path: Path) -> Study:
    """Read a study with everything that is needed to resume it.

    Raises:
        TrustError: Somebody else created it, and it names code.
    """
    known = outline(path)
    with suppress(FileNotFoundError), folder_within(path, PLAN):  # it is no link itself
        refuse_links(path / PLAN)
    plans = [path / PLAN / f"{folder.name}.toml" for folder in known.folders]
    every = tuple(read_experiment(plan) for plan in plans)
    return Study(path, every, known.over, trusts())


def outline(path: Path) -> StudyOutline:
    """Read what is needed to report a study; parse no plan.

    Raises:
        RunFolderError: It is no study, or a folder in it is not the run that was planned.
    """
    if not is_study(path):
        raise RunFolderError(f"{path}: not a study; its folder would hold {STUDY}")
    names, over = [row["folder"] for row in rows_of(path)], read_json(path / STUDY).get("over")
    if not names:
        raise RunFolderError(f"{path / STUDY}: names no runs; the file is damaged")
    keys = tuple(map(str, over)) if isinstance(over, list) else ()
    found = StudyOutline(path, tuple(path / name for name in names), keys)
    for name in names:
        _check_planned(found, path / PLAN / f"{name}.toml", path / name / CONFIG)
    return found


def _check_planned(study: StudyOutline, plan: Path, config: Path) -> None:
    """Refuse a run whose settings are not those that the study has planned for its folder."""
    if not config.is_file():
        return
    if not plan.is_file():
        raise RunFolderError(
            f"{plan}: missing, so nothing says whether {config.parent} is the planned run; put the "
            "file back"
        )
    if file_sha256(plan, JSON_BYTES) == file_sha256(config, JSON_BYTES):
        return
    planned, ran = map(_settings, (plan, config))
    if differences := sorted(_other_settings(planned, ran)):
        shown = "; ".join(differences[:_MOST_DIFFERENCES])
        raise RunFolderError(
            f"{config.parent}: not the run that {plan} asks for: {shown}. Move this folder away, "
            f"then run it again with: {study.resume_command}"
        )


def _settings(file: Path) -> dict[str, Any]:
    """Return the values of a file by their dotted keys; import nothing."""
    return dict(flatten(load_file(file, imports=False)))


def _other_settings(planned: Mapping[str, Any], ran: Mapping[str, Any]) -> Iterator[str]:
    """Yield in words which settings of a run are not the planned ones."""
    for key in (planned.keys() | ran.keys()) - _NOTED_BY_RUNS:
        was = planned.get(key)
        if (key, was) == ("model.name", OWN_MODEL):
            continue  # a run notes which model it is
        if was != ran.get(key) and json.dumps(was) != json.dumps(ran.get(key)):
            yield f"{key} is {_shown(ran.get(key))} here, {_shown(was)} in the plan"


def rows_of(path: Path) -> list[dict[str, Any]]:
    """Return the entries of `study.json`, one per run; empty if the file is damaged.

    Raises:
        RunFolderError: An entry names a folder that cannot be one of this study's runs.
    """
    content = read_json(path / STUDY)
    check_format(path / STUDY, content)
    rows = content.get("runs")
    good = isinstance(rows, list) and all(
        isinstance(row, dict) and isinstance(row.get("folder"), str) for row in rows
    )
    rows = rows if good and rows else []
    for name in (row["folder"] for row in rows):
        if problem := name_problem(name):
            raise RunFolderError(
                f"{path / STUDY}: {name[:100]!r} cannot be the folder of a run; expected {problem}"
            )
    return rows


def create_study(
    out: Path, name: str, experiments: Sequence[Experiment], over: Sequence[str] = ()
) -> Study:
    """Create the folder of a new study, under a hidden name first, so that it appears complete."""
    check_name(name)
    path = out / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        hidden = Path(tempfile.mkdtemp(prefix=f".{path.name}.tmp-", dir=path.parent))
        try:
            _fill(Study(hidden, tuple(experiments), tuple(over)), path.name)
            hidden.rename(path)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
    except OSError as error:
        raise not_created(path, error) from error
    return Study(path, tuple(experiments), tuple(over), accepted=True)


def _fill(study: Study, name: str) -> None:
    study.path.chmod(0o755)
    _write(study, name, study.experiments)


def _write(study: Study, name: str, new: Sequence[Experiment]) -> None:
    """Write the plans of new experiments, then the list of all."""
    with folder_within(study.path, PLAN, create=True) as plans:
        for experiment in new:
            write_atomic(plans / study.plan(experiment).name, to_toml(experiment).encode())
    content: dict[str, Any] = {"format": FORMAT, "name": name}
    content |= {"over": study.over} if study.over else {}
    content["runs"] = [_row(experiment) for experiment in study.experiments]
    write_atomic(study.path / STUDY, (json.dumps(content, indent=2) + "\n").encode())


def _row(experiment: Experiment) -> dict[str, Any]:
    return {
        "folder": experiment.name,
        "mechanism": experiment.mechanism.name,
        "provenance": provenance_of(experiment.mechanism),
        "seed": experiment.seed,
        "timing": experiment.engine.timing,
        **signature_of(to_toml(experiment).encode(), to_tree(experiment)),
    }


def _differences(there: Sequence[Experiment], asked: Sequence[Experiment]) -> Iterator[str]:
    """Yield the differences between two lists of experiments in words, each difference once."""
    old, new = ({e.name for e in every} for every in (there, asked))
    if only := [e.name for e in there if e.name not in new]:
        yield f"it also has {', '.join(only)}"
    if only := [e.name for e in asked if e.name not in old]:
        yield f"it has no {', '.join(only)}"
    yield from _changed_settings(there, asked)


def _changed_settings(there: Sequence[Experiment], asked: Sequence[Experiment]) -> Iterator[str]:
    """Yield what differs between experiments of the same name."""
    old, new = ({e.name: dict(flatten(to_tree(e))) for e in every} for every in (there, asked))
    found: set[str] = set()
    for name in old.keys() & new.keys():
        for key in old[name] | new[name]:
            was, now = old[name].get(key), new[name].get(key)
            if json.dumps(was) != json.dumps(now):
                who = f"{name}: " if key.startswith("mechanism.") else ""
                found.add(f"{who}{key} is {_shown(was)} there, {_shown(now)} here")
    yield from sorted(found)


def _shown(value: Any) -> str:
    return "unset" if value is None else toml_value(value)
