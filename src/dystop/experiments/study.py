"""The folder of a comparison or a sweep: which runs belong together, and how far each one is.

runs/NAME/
  study.json      the runs, with mechanism, seed and timing law; the keys that a sweep is over
  plan/           one fully resolved configuration per run, written before the first one starts
  MECH-sSEED/     an ordinary run folder each; in a sweep KEYVALUE-...-sSEED
  report/         the page and its figures
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dystop.errors import RunFolderError, shell_command
from dystop.experiments.config import Experiment, read_experiment, to_toml, to_tree
from dystop.experiments.config.write import toml_value
from dystop.experiments.run_folder import INFO, STUDY, check_name, is_study
from dystop.params import flatten
from dystop.storage import read_json, write_atomic

PLAN = "plan"
_MOST_DIFFERENCES = 4


@dataclass(frozen=True)
class Outline:
    """What the folder of a study tells by itself: its mechanisms need not be installed."""

    path: Path
    folders: tuple[Path, ...]  # of every run, whether or not it is there yet
    over: tuple[str, ...] = ()  # the keys that a sweep is over

    @property
    def verb(self) -> str:
        """The command that goes on with it."""
        return "sweep" if self.over else "compare"

    @property
    def begun(self) -> list[Path]:
        """The run folders that are there, in order."""
        return [folder for folder in self.folders if os.path.exists(folder)]

    @property
    def done(self) -> bool:
        """Whether nothing is left to run."""
        return all(map(finished, self.folders))


@dataclass(frozen=True)
class Study:
    """Runs that belong together."""

    path: Path
    experiments: tuple[Experiment, ...]  # each named after its run folder
    over: tuple[str, ...] = ()  # the keys that a sweep is over

    @property
    def verb(self) -> str:
        """The command that goes on with it."""
        return "sweep" if self.over else "compare"

    def folder(self, experiment: Experiment) -> Path:
        """The run folder of one experiment, whether or not it is there yet."""
        return self.path / experiment.name

    def plan(self, experiment: Experiment) -> Path:
        """The configuration file of one experiment."""
        return self.path / PLAN / f"{experiment.name}.toml"

    def todo(self) -> list[Experiment]:
        """What is not finished, in order."""
        return [e for e in self.experiments if not finished(self.folder(e))]


def finished(folder: Path) -> bool:
    """Whether this run came to its end."""
    return (folder / INFO).is_file() and read_json(folder / INFO).get("status") == "finished"


def default_name(experiments: Sequence[Experiment]) -> str:
    """A name for a comparison that was given none."""
    data = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(experiments[0].data.name).stem)
    return f"compare-{data[:60]}"


def find_study(out: Path, name: str, experiments: Sequence[Experiment]) -> Study | None:
    """The study of this name if it is there; refuses one that has other settings."""
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
            f"{f'; and {more} more' if more > 0 else ''}. Choose another --name or --out, or go on "
            f"with it as it is by: {shell_command(study.verb, path)}"
        )
    return study


def open_study(path: Path) -> Study:
    """Read a study back, with everything that is needed to go on with it."""
    told = outline(path)
    plans = [path / PLAN / f"{folder.name}.toml" for folder in told.folders]
    return Study(path, tuple(map(read_experiment, plans)), told.over)


def outline(path: Path) -> Outline:
    """Read what is needed to report a study, and no plan."""
    if not is_study(path):
        raise RunFolderError(f"{path}: not a study; its folder would hold {STUDY}")
    names, over = [row["folder"] for row in rows_of(path)], read_json(path / STUDY).get("over")
    if not names:
        raise RunFolderError(f"{path / STUDY}: names no runs; the file is damaged")
    keys = tuple(map(str, over)) if isinstance(over, list) else ()
    return Outline(path, tuple(path / name for name in names), keys)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """What the file of a study says of each run; nothing where it is damaged."""
    rows = read_json(path / STUDY).get("runs")
    good = isinstance(rows, list) and all(
        isinstance(row, dict) and isinstance(row.get("folder"), str) for row in rows
    )
    return rows if good and rows else []


def create_study(
    out: Path, name: str, experiments: Sequence[Experiment], over: Sequence[str] = ()
) -> Study:
    """Make the folder of a new study; everything under a hidden name first, then under its own."""
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
        raise RunFolderError(
            f"{path}: cannot be made: {error.strerror or error}. "
            "Choose another folder with --out DIR"
        ) from error
    return Study(path, tuple(experiments), tuple(over))


def _fill(study: Study, name: str) -> None:
    study.path.chmod(0o755)
    (study.path / PLAN).mkdir()
    for experiment in study.experiments:
        write_atomic(study.plan(experiment), to_toml(experiment).encode())
    content: dict[str, Any] = {"format": 1, "name": name}
    content |= {"over": study.over} if study.over else {}
    content["runs"] = [_row(experiment) for experiment in study.experiments]
    write_atomic(study.path / STUDY, (json.dumps(content, indent=2) + "\n").encode())


def _row(experiment: Experiment) -> dict[str, Any]:
    return {
        "folder": experiment.name,
        "mechanism": experiment.mechanism.name,
        "provenance": experiment.mechanism.provenance,
        "seed": experiment.seed,
        "timing": experiment.engine.timing,
    }


def _differences(there: Sequence[Experiment], asked: Sequence[Experiment]) -> Iterator[str]:
    """What keeps two lists of experiments from being the same, in words, each thing once."""
    old, new = ({e.name: dict(flatten(to_tree(e))) for e in many} for many in (there, asked))
    if only := [name for name in old if name not in new]:
        yield f"it also has {', '.join(only)}"
    if only := [name for name in new if name not in old]:
        yield f"it has no {', '.join(only)}"
    told: set[str] = set()
    for name in old.keys() & new.keys():
        for key in old[name] | new[name]:
            was, now = old[name].get(key), new[name].get(key)
            if json.dumps(was) != json.dumps(now):
                who = f"{name}: " if key.startswith("mechanism.") else ""
                told.add(f"{who}{key} is {_shown(was)} there, {_shown(now)} here")
    yield from sorted(told)


def _shown(value: Any) -> str:
    return "unset" if value is None else toml_value(value)
