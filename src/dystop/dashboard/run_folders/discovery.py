"""Discovery of the runs under a folder; a request never names a path."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dystop.dashboard.run_folders.files import is_file, read_json
from dystop.folders.run_folder import INFO, STUDY

MAX_RUNS = 2000


@dataclass(frozen=True)
class RunLocation:
    """A run folder; `key` is its name in URLs."""

    key: str
    folder: Path
    group: str = ""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.name


@dataclass(frozen=True)
class RunGroup:
    """The runs of one folder: a study, or any other folder of runs."""

    name: str
    folder: Path
    planned: tuple[dict[str, Any], ...] = ()  # rows of `study.json`, at most `MAX_RUNS`
    over: tuple[str, ...] = ()  # the keys that a sweep varies


@dataclass
class FoundRuns:
    """All runs under a folder."""

    locations: dict[str, RunLocation] = field(default_factory=dict)
    groups: dict[str, RunGroup] = field(default_factory=dict)
    left_out: int = 0

    def add(self, location: RunLocation) -> None:
        """Add a run; beyond `MAX_RUNS`, only count it."""
        if len(self.locations) < MAX_RUNS:
            self.locations[location.key] = location
        else:
            self.left_out += 1


def find_runs(root: Path) -> FoundRuns:
    """Find the runs in a folder and in its folders; the folder may itself be a run."""
    found = FoundRuns()
    inside = os.path.realpath(root)
    base = Path(inside)
    if is_file(base / INFO):
        found.add(RunLocation(base.name, base))
    elif is_file(base / STUDY):
        _find_group(found, base, inside, "")
    else:
        for folder in _folders(base, inside):
            if is_file(folder / INFO):
                found.add(RunLocation(folder.name, folder))
            else:
                _find_group(found, folder, inside, f"{folder.name}/")
    return found


def _find_group(found: FoundRuns, folder: Path, inside: str, prefix: str) -> None:
    study = read_json(folder / STUDY) or {}
    planned = _planned(study)
    runs = [f for f in _folders(folder, inside) if is_file(f / INFO)]
    if runs or planned:
        shown = planned[:MAX_RUNS]
        found.groups[folder.name] = RunGroup(folder.name, folder, shown, _over(study))
    for run in runs:
        found.add(RunLocation(prefix + run.name, run, folder.name))
    begun = {run.name for run in runs}
    found.left_out += sum(row["folder"] not in begun for row in planned[MAX_RUNS:])


def _over(study: dict[str, Any]) -> tuple[str, ...]:
    """Return the keys that a sweep varies."""
    raw = study.get("over")
    return tuple(key for key in raw if isinstance(key, str)) if isinstance(raw, list) else ()


def _planned(study: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the planned runs of a study."""
    raw = study.get("runs")
    rows = [row for row in raw if isinstance(row, dict)] if isinstance(raw, list) else []
    return tuple(row for row in rows if isinstance(row.get("folder"), str))


def _folders(folder: Path, inside: str) -> list[Path]:
    """List folders by name; skip hidden ones (not ready) and links that lead outside."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    paths = [folder / name for name in names if not name.startswith(".") and _fits_url(name)]
    return [path for path in paths if os.path.isdir(path) and _is_inside(path, inside)]


def _fits_url(name: str) -> bool:
    """Return whether a name can be part of a URL."""
    return name.isprintable() and name.encode(errors="replace").decode() == name


def _is_inside(path: Path, inside: str) -> bool:
    return os.path.realpath(path).startswith(inside.rstrip(os.sep) + os.sep)
