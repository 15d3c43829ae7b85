"""The runs of `dystop atlas`: mechanisms at every point of a slice through the space of networks.

An axis has a name of the field and maps its values to configuration keys, or it is a key itself.
All points together are one sweep, so that they share one driver and one `--jobs`.
"""

import itertools
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dystop.errors import ConfigError, RunFolderError, nearest
from dystop.experiments.config import Experiment, read_experiment
from dystop.experiments.config.experiment import every_key
from dystop.experiments.folders.folder_kinds import POINTS, writing
from dystop.experiments.studies.compare import Comparison, experiments
from dystop.experiments.studies.trials import horizon_s, pace_of, shortened
from dystop.rng import stream
from dystop.storage import try_read_json, write_atomic

TURNS = 80  # of every run
SEEDS = 1
_PAIRS = 20_000  # drawn to turn a degree into a range
_LONGEST = 80


@dataclass(frozen=True)
class NamedAxis:
    """A property of networks that an axis can vary."""

    meaning: str
    allowed: str
    accepts: Callable[[float], bool]
    words: Callable[[Experiment, float], list[str]]  # the keys that give a network this value


def _spread(_: Experiment, value: float) -> list[str]:
    return [f"world.compute.spread={value:g}"]


def _communication(base: Experiment, value: float) -> list[str]:
    """Choose the bandwidth: the time of a transfer is inversely proportional to it."""
    pace = pace_of(base)
    if not pace.link_s:
        raise ConfigError(
            "axis communication: no two workers are in reach when the first round opens, so there "
            "is no link to make slower; enlarge world.range_m"
        )
    bandwidth = base.world.channel.bandwidth_hz * pace.ratio / value
    return [f"world.channel.bandwidth_hz={bandwidth:.6g}"]


def _skew(_: Experiment, value: float) -> list[str]:
    return [f"data.phi={value:g}"]


def _density(base: Experiment, value: float) -> list[str]:
    """Choose the range within which a worker has so many others, on average."""
    width_m, height_m = base.world.area_m
    range_m = range_for(value, base.fleet.workers, base.world.area_m)
    return [f"world.area_m=[{width_m!r}, {height_m!r}]", f"world.range_m={range_m:.4g}"]


def range_for(degree: float, workers: int, area_m: tuple[float, float]) -> float:
    """Return the range in metres at which workers placed at random have this mean degree."""
    if not 0 < degree <= workers - 1:
        raise ConfigError(
            f"axis density: {degree:g} neighbours of {workers} workers; expected a number above 0 "
            f"and at most {workers - 1}"
        )
    pairs = stream(0, "density").random((_PAIRS, 2, 2)) * np.asarray(area_m)
    distance = np.linalg.norm(pairs[:, 0] - pairs[:, 1], axis=1)
    return float(np.quantile(distance, degree / (workers - 1)))


def _churn(base: Experiment, value: float) -> list[str]:
    """Choose how long workers stay; how long they are away is a key of the configuration."""
    if value == 0:
        return ["world.churn.enabled=false"]
    up_s = base.world.churn.mean_down_s * (1 - value) / value
    return ["world.churn.enabled=true", f"world.churn.mean_up_s={up_s:.6g}"]


AXES = {
    "spread": NamedAxis(
        "compute spread: standard deviation of the workers' factors on the time of a mini-batch",
        "a number >= 0", lambda v: v >= 0, _spread,
    ),
    "communication": NamedAxis(
        "seconds of one transfer over the median link, for one second of local training",
        "a number > 0", lambda v: v > 0, _communication,
    ),
    "skew": NamedAxis(
        "phi: concentration of labels; small is more skewed, from 1 on there is no skew",
        "a number > 0", lambda v: v > 0, _skew,
    ),
    "density": NamedAxis(
        "workers in reach of a worker, on average", "a number > 0", lambda v: v > 0, _density,
    ),
    "churn": NamedAxis(
        "share of the time that a worker is absent", "a number >= 0 and < 1",
        lambda v: 0 <= v < 1, _churn,
    ),
}  # fmt: skip
"""The named axes. Any configuration key can be an axis, too."""

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
