"""The space of readings: every open key with its plausible values, the presets, and samples."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dystop.config import every_key
from dystop.config.readings import OPEN_READINGS, has_key
from dystop.config.readings import PRESETS as BUILT_IN
from dystop.config.write import toml_value
from dystop.errors import ConfigError
from dystop_paper.reproduce.campaigns import RIVALS
from dystop_paper.reproduce.presets import CHOSEN, NEAREST, preset, sampled_values

PRESETS = (*BUILT_IN, NEAREST, CHOSEN)


@dataclass(frozen=True)
class Reading:
    """One reading of the paper: a value for every open key."""

    name: str
    values: Mapping[str, Any]

    @property
    def is_preset(self) -> bool:
        """Whether it has a name that says what it is."""
        return self.name in PRESETS

    def words(self, mechanism: str) -> list[str]:
        """Return the `key=value` words that give a mechanism this reading."""
        known = [f"{k}={toml_value(v)}" for k, v in self.values.items() if has_key(mechanism, k)]
        return [f"reading={self.name if self.name in BUILT_IN else CHOSEN}", *known]


def presets() -> list[Reading]:
    """Return the readings that have a name."""
    defaults = {key.name: key.default for name in RIVALS for key in every_key(name)}
    chosen = {reading.key: defaults[reading.key] for reading in OPEN_READINGS}
    return [
        Reading(name, chosen | {k: v for m in RIVALS for k, v in preset(name, m).items()})
        for name in PRESETS
    ]


def sample(number: int) -> Reading:
    """Return one reading at random: each key has each of its plausible values equally often.

    >>> sample(3).name, sample(3) == sample(3)
    ('r003', True)
    """
    return Reading(f"r{number:03d}", sampled_values(number))


def reading_named(name: str) -> Reading:
    """Return the preset or sample with this name."""
    found = next((reading for reading in presets() if reading.name == name), None)
    if found is not None:
        return found
    if name[:1] == "r" and name[1:].isdigit():
        return sample(int(name[1:]))
    raise ConfigError(f"no reading {name!r}; there are {', '.join(PRESETS)} and samples like r001")


def check_words(words: Sequence[str]) -> None:
    """Refuse a word that sets what a reading sets."""
    taken = {reading.key for reading in OPEN_READINGS} | {"reading", "name", "seed"}
    for key in (word.partition("=")[0] for word in words):
        if key in taken:
            raise ConfigError(
                f"command line: {key} belongs to the readings that are searched and cannot be set"
            )
