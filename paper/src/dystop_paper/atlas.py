"""The runs of `dystop atlas`: mechanisms at every point of a slice through the space of networks.

An axis has a name of the field and maps its values to configuration keys, or it is a key itself.
All points together are one sweep, so that they share one driver and one `--jobs`.
"""

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dystop.config import Experiment, read_experiment
from dystop.config.experiment import every_key
from dystop.errors import ConfigError, RunFolderError, nearest
from dystop.folders.folder_kinds import POINTS, writing
from dystop.storage import try_read_json, write_atomic
from dystop.studies.compare import Comparison, experiments
from dystop.studies.trials import horizon_s, shortened
from dystop.studies.worlds import AXES

TURNS = 80  # of every run
SEEDS = 1
_LONGEST = 80


_LAST = "communication"  # its keys depend on those of the other axis


@dataclass(frozen=True)
class MapAxis:
    """One axis of a map: a name or a key, and its values as text."""

    name: str
    values: tuple[str, ...]

    @property
    def meaning(self) -> str:
        """What the values are."""
        return AXES[self.name].meaning if self.name in AXES else self.name


def read_axis(option: str, word: str) -> MapAxis:
    """Read an axis.

    >>> read_axis("--x", "spread=0,0.4,0.8")
    MapAxis(name='spread', values=('0', '0.4', '0.8'))
    """
    name, equals, text = (part.strip() for part in word.partition("="))
    values = tuple(value.strip() for value in text.split(","))
    if not (name and equals and all(values)):
        raise ConfigError(
            f"command line: {option} {word}: expected NAME=VALUE,VALUE,..., as in spread=0,0.4,0.8"
        )
    if len(set(values)) < len(values):
        raise ConfigError(f"command line: {option} {word}: a value is there twice")
    if name in AXES:
        for value in values:
            _check_value(option, name, value)
    elif name not in {key.name for key in every_key()} or name.startswith("mechanism."):
        known = ", ".join(AXES)
        close = nearest(name, [*AXES, *(key.name for key in every_key())])
        raise ConfigError(
            f"command line: {option} {word}: no axis {name!r}; choose from {known}, or a key of "
            f"'dystop list keys' that is not of the mechanism{close}"
        )
    return MapAxis(name, values)


def _check_value(option: str, name: str, value: str) -> None:
    try:
        good = math.isfinite(float(value)) and AXES[name].accepts(float(value))
    except ValueError:
        good = False
    if not good:
        raise ConfigError(
            f"command line: {option} {name}: {value!r} is no value; expected {AXES[name].allowed}"
        )


@dataclass(frozen=True)
class Atlas:
    """An atlas as the command line asks for it."""

    file: Path | None
    words: Sequence[str]  # key=value, for all runs
    x: MapAxis
    y: MapAxis
    mechanisms: Sequence[str]
    seeds: int = SEEDS
    turns: float = TURNS
    settings: Sequence[str] = ()  # MECHANISM.KEY=VALUE


@dataclass(frozen=True)
class Chart:
    """The runs of an atlas, and what is needed to draw it."""

    experiments: tuple[Experiment, ...]
    over: tuple[str, ...]  # keys that differ between runs
    content: dict[str, Any]  # of `atlas.json`


def chart(asked: Atlas) -> Chart:
    """Return every run of the atlas, ordered by seed, so that the maps of a seed finish together.

    Raises:
        ConfigError: If an axis, a mechanism or a setting cannot be used.
    """
    _check(asked)
    every: list[Experiment] = []
    points: dict[str, tuple[int, int]] = {}
    keys: dict[str, None] = {}
    for (i, x), (j, y) in itertools.product(enumerate(asked.x.values), enumerate(asked.y.values)):
        words = _point_words(asked, x, y)
        keys |= dict.fromkeys(word.partition("=")[0] for word in words)
        for experiment in _point(asked, words):
            name = f"{_short(asked.x, x)}-{_short(asked.y, y)}-{experiment.name}"
            every.append(replace(experiment, name=name))
            points[name] = (i, j)
    every.sort(key=lambda experiment: experiment.seed)
    content = {
        "x": {"name": asked.x.name, "values": asked.x.values},
        "y": {"name": asked.y.name, "values": asked.y.values},
        "turns": asked.turns,
        "points": points,
    }
    return Chart(tuple(every), (*keys, "mechanism.name"), content)


def _check(asked: Atlas) -> None:
    if asked.x.name == asked.y.name:
        raise ConfigError(f"command line: --x and --y are both {asked.x.name}; choose two axes")
    if not (math.isfinite(asked.turns) and asked.turns > 0):
        raise ConfigError(f"command line: --turns {asked.turns:g}; expected a number above 0")
    if not read_experiment(asked.file, asked.words).engine.train:
        raise ConfigError(
            "engine.train = false is planning only and trains no model, but a map shows who "
            "reaches an accuracy; set engine.train=true"
        )


def _point_words(asked: Atlas, x: str, y: str) -> list[str]:
    """Return the keys of one point."""
    found: list[str] = []
    axes = sorted([(asked.x, x), (asked.y, y)], key=lambda pair: pair[0].name == _LAST)
    for axis, value in axes:
        if axis.name not in AXES:
            found.append(f"{axis.name}={value}")
            continue
        base = read_experiment(asked.file, [*asked.words, *found])
        found += AXES[axis.name].words(base, float(value))
    return found


def _point(asked: Atlas, words: Sequence[str]) -> list[Experiment]:
    """Return the runs of one point; all last equally long."""
    comparison = Comparison(
        asked.file,
        [*asked.words, *words],
        asked.mechanisms,
        asked.seeds,
        settings=asked.settings,
    )
    every = experiments(comparison)
    limit_s = horizon_s(every[0], asked.turns)
    return [shortened(experiment, limit_s) for experiment in every]


def _short(axis: MapAxis, value: str) -> str:
    """Return the part of a folder name that says where a run is on one axis."""
    name = axis.name.rpartition(".")[2]
    return re.sub(r"[^A-Za-z0-9._]+", "-", f"{name}{value}").strip("-")[: _LONGEST // 4]


def default_name(x: MapAxis, y: MapAxis) -> str:
    """Return a name for an atlas without one."""
    return f"atlas-{x.name.rpartition('.')[2]}-{y.name.rpartition('.')[2]}"[:_LONGEST]


def write_points(folder: Path, content: dict[str, Any]) -> None:
    """Write `atlas.json` beside `study.json`."""
    with writing(folder):
        write_atomic(folder / POINTS, (json.dumps(content, indent=2) + "\n").encode())


@dataclass(frozen=True)
class Points:
    """What `atlas.json` holds."""

    x: MapAxis
    y: MapAxis
    runs: dict[str, tuple[int, int]]  # name of a run -> index on x, index on y
    turns: float


def read_points(folder: Path) -> Points:
    """Read `atlas.json`; refuse a folder without a valid one."""
    content = try_read_json(folder / POINTS)
    try:
        x, y = (MapAxis(content[k]["name"], tuple(content[k]["values"])) for k in ("x", "y"))
        runs = {str(name): (int(i), int(j)) for name, (i, j) in content["points"].items()}
        return Points(x, y, runs, float(content["turns"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise RunFolderError(
            f"{folder}: not an atlas; its folder would hold a valid {POINTS}. The command that "
            "began it writes the file again"
        ) from None
