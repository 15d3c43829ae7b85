"""The runs of `dystop sweep`: one experiment with every combination of some values, and seeds.

Every random draw has an address (`dystop.rng`), so two runs of one seed differ only in what the
varied keys change: the fleet differs only if the sweep varies the fleet.
"""

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dystop.config import Experiment, read_experiment, to_tree
from dystop.config.read import mechanism_name
from dystop.errors import ConfigError
from dystop.mechanisms import MECHANISMS
from dystop.params import short_names
from dystop.studies.compare import check_own_key, check_shared, mechanism_of

MECHANISM = "mechanism.name"
_OWN = "mechanism."
_ELSEWHERE = {"seed": "--seeds N, and seed=FIRST", "name": "--name NAME"}
_NAMED = ("mechanism.name", "data.name", "model.name")
"""Keys whose values appear in a folder name without the key."""
_VALUE = re.compile(r'(?:"[^"]*"|\[[^\]]*\]|[^,])+')
_LONGEST = 80


@dataclass(frozen=True)
class Axis:
    """A key that the sweep varies and its values, as text."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Sweep:
    """A sweep as the command line asks for it."""

    file: Path | None
    words: Sequence[str]  # key=value, for all runs
    axes: Sequence[Axis]
    seeds: int = 1  # seed, seed + 1, ...


def read_axes(over: Sequence[str]) -> list[Axis]:
    """Read the axes of a sweep.

    >>> read_axes(["mechanism.V=1,10", "data.phi=0.4"])[0]
    Axis(key='mechanism.V', values=('1', '10'))
    """
    axes = [_axis(word) for word in over]
    for key, times in Counter(axis.key for axis in axes).items():
        if times > 1:
            raise ConfigError(f"command line: --over names {key} twice; give all values at once")
    return axes


def _axis(word: str) -> Axis:
    key, equals, text = (part.strip() for part in word.partition("="))
    values = tuple(value.strip() for value in _VALUE.findall(text))
    if not (key and equals and values):
        raise ConfigError(
            f"command line: --over {word}: expected KEY=VALUE,VALUE,..., as in mechanism.V=1,10,50"
        )
    if not all(values) or ",".join(_VALUE.findall(text)) != text:
        raise ConfigError(f"command line: --over {word}: a value between two commas is missing")
    if key in _ELSEWHERE:
        raise ConfigError(f"command line: --over {word}: set by {_ELSEWHERE[key]}")
    return Axis(key, values)


def grid(asked: Sweep) -> list[Experiment]:
    """Return every run of the sweep, ordered by seed, so that seeds finish one by one.

    Raises:
        ConfigError: If a key, a value or a combination cannot be used.
    """
    _check_words(asked.words, asked.axes)
    combinations = list(itertools.product(*(axis.values for axis in asked.axes)))
    settings = [_setting(asked, values) for values in combinations]
    for setting in settings:
        check_shared(setting, asked.seeds)
    names = _names(asked.axes, combinations)
    _check_distinct(settings, names)
    return [
        replace(s, seed=s.seed + offset, name=f"{name}-s{s.seed + offset}")
        for offset in range(asked.seeds)
        for s, name in zip(settings, names, strict=True)
    ]


def default_name(axes: Sequence[Axis]) -> str:
    """Return a name for a sweep without one.

    >>> default_name(read_axes(["mechanism.V=1,10", "data.phi=0.4,1"]))
    'sweep-V-phi'
    """
    return "-".join(["sweep", *short_names(axis.key for axis in axes).values()])[:_LONGEST]


def _check_words(words: Sequence[str], axes: Sequence[Axis]) -> None:
    given = {word.partition("=")[0].strip() for word in words}
    for axis in axes:
        if axis.key in given:
            raise ConfigError(
                f"command line: {axis.key}= is given, and --over varies it; leave one out"
            )
    if "name" in given:
        raise ConfigError(f"command line: name= is set by {_ELSEWHERE['name']} in a sweep")


def _setting(asked: Sweep, values: Sequence[str]) -> Experiment:
    """Return one point of the grid; the `[mechanism]` section is for the mechanism it names."""
    chosen = {axis.key: value for axis, value in zip(asked.axes, values, strict=True)}
    name = chosen.pop(MECHANISM, None)
    words = [*asked.words, *(f"{key}={value}" for key, value in chosen.items())]
    if name is None:
        return read_experiment(asked.file, words)
    own = [word for word in words if word.startswith(_OWN)]
    shared = [word for word in words if not word.startswith(_OWN)]
    base = read_experiment(asked.file, shared)
    name = mechanism_name(name)
    if name in MECHANISMS:
        for word in own:
            key = word.partition("=")[0].strip().removeprefix(_OWN)
            check_own_key(f"--over {MECHANISM} with {word}", name, key)
    return replace(base, mechanism=mechanism_of(asked.file, shared, base, name, own))


def _names(axes: Sequence[Axis], combinations: Sequence[Sequence[str]]) -> list[str]:
    """Return a folder name per point, such as V10-phi0.4, numbered if two would be equal."""
    short = short_names(axis.key for axis in axes)
    heads = ["" if axis.key in _NAMED else short[axis.key] for axis in axes]
    names = [
        "-".join(head + _plain(value) for head, value in zip(heads, values, strict=True))
        for values in combinations
    ]
    plain = all(len(name) <= _LONGEST for name in names) and len(set(names)) == len(names)
    return names if plain else [f"{k:03d}-{name[:_LONGEST]}" for k, name in enumerate(names)]


def _plain(value: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", value).strip("-")


def _check_distinct(settings: Sequence[Experiment], names: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for setting, name in zip(settings, names, strict=True):
        other = seen.setdefault(str(to_tree(replace(setting, name="run"))), name)
        if other != name:
            raise ConfigError(f"command line: --over: {other} and {name} are the same setting")
