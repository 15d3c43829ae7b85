"""Which runs there are: folders are looked for, never named by who asks."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dystop.dashboard.files import is_file, read_json
from dystop.experiments.run_folder import INFO, STUDY

MOST_RUNS = 2000


@dataclass(frozen=True)
class Place:
    """A run folder; `key` is what it is called in addresses."""

    key: str
    folder: Path
    group: str = ""

    @property
    def name(self) -> str:
        """Name of the run."""
        return self.folder.name


@dataclass(frozen=True)
class Group:
    """Runs of one folder: a comparison, or any other folder of runs."""

    name: str
    planned: tuple[dict[str, Any], ...] = ()  # rows of `study.json`, in its order


@dataclass
class Discovery:
    """All runs that were found."""

    places: dict[str, Place] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    left_out: int = 0

    def put(self, place: Place) -> None:
        """Add a run, unless there are too many."""
        if len(self.places) < MOST_RUNS:
            self.places[place.key] = place
        else:
            self.left_out += 1


def scan(root: Path) -> Discovery:
    """The runs of a folder, and of folders in it; the folder may be a run itself."""
    shelf = Discovery()
    inside = os.path.realpath(root)
    base = Path(inside)
    if is_file(base / INFO):
        shelf.put(Place(base.name, base))
    elif is_file(base / STUDY):
        _scan_group(shelf, base, inside, "")
    else:
        for folder in _folders(base, inside):
            if is_file(folder / INFO):
                shelf.put(Place(folder.name, folder))
            else:
                _scan_group(shelf, folder, inside, f"{folder.name}/")
    return shelf


def _scan_group(shelf: Discovery, folder: Path, inside: str, prefix: str) -> None:
    planned = _planned(folder)
    runs = [f for f in _folders(folder, inside) if is_file(f / INFO)]
    if runs or planned:
        shelf.groups[folder.name] = Group(folder.name, planned)
    for run in runs:
        shelf.put(Place(prefix + run.name, run, folder.name))


def _planned(folder: Path) -> tuple[dict[str, Any], ...]:
    """What a comparison is going to run."""
    rows = (read_json(folder / STUDY) or {}).get("runs")
    found = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return tuple(row for row in found if isinstance(row.get("folder"), str))


def _folders(folder: Path, inside: str) -> list[Path]:
    """Folders in a folder, by name; hidden ones are not ready, and links may not lead outside."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return []
    paths = [folder / name for name in names if not name.startswith(".") and _is_plain(name)]
    return [path for path in paths if os.path.isdir(path) and _is_inside(path, inside)]


def _is_plain(name: str) -> bool:
    """Whether a name can be written in an address."""
    return name.isprintable() and name.encode(errors="replace").decode() == name


def _is_inside(path: Path, inside: str) -> bool:
    return os.path.realpath(path).startswith(inside.rstrip(os.sep) + os.sep)
