"""Readings of the paper: keys that it leaves open, and presets that set several of them at once.

`reading = "literal"` sets every key of that preset that is not given explicitly. The keys are
resolved when a configuration is read, so that `config.toml` of a run holds their values (ADR 0044).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from dystop.mechanisms import MECHANISMS

ReadingName = Literal["none", "literal", "physical"]
NAMES: tuple[ReadingName, ...] = get_args(ReadingName)
PRESETS: tuple[ReadingName, ...] = ("literal", "physical")


@dataclass(frozen=True)
class OpenReading:
    """A key whose value the paper leaves open."""

    key: str
    label: str  # what reports call it
    values: tuple[Any, ...]  # plausible ones
    literal: Any = None  # the letter of the paper; None: this preset leaves the key alone
    physical: Any = None  # what a real network could do


OPEN_READINGS = (
    OpenReading("world.channel.noise", "noise", ("power", "squared"), "squared", "power"),
    OpenReading("world.channel.coherence_blocks", "fading draws", (8, 1), 1, 8),
    OpenReading("engine.timing", "timing law", ("paper", "overlap"), "paper", "overlap"),
    OpenReading(
        "engine.publish", "publish rule", ("eager", "on_completion"), "eager", "on_completion"
    ),
    OpenReading("world.budget.binds", "budgets bind", ("mechanism", "everybody", "nobody")),
    OpenReading("evaluate.model", "tested models", ("trained", "aggregated")),
    OpenReading("mechanism.wakes", "who wakes", ("all", "one"), "one"),
    OpenReading("mechanism.drift", "drift", ("sum", "mean"), "sum"),
    OpenReading("mechanism.base", "base graph", ("geometric", "fastest", "reach")),
    OpenReading("mechanism.background", "background pushes", (False, True)),
    OpenReading("world.range_m", "range in m", (30.0, 40.0, 55.0, 70.0)),
    OpenReading("world.compute.batch_s", "seconds per batch", (0.005, 0.01, 0.02, 0.04, 0.08)),
    OpenReading("world.compute.spread", "spread of speeds", (0.2, 0.4, 0.8)),
    OpenReading("training.learning_rate", "learning rate", (0.01, 0.02, 0.05, 0.1)),
)


def preset(name: str, mechanism: str) -> dict[str, Any]:
    """Return the keys that a preset sets for a mechanism; none for a name that is no preset.

    >>> preset("physical", "dystop")["engine.timing"]
    'overlap'
    >>> preset("literal", "asydfl")["mechanism.wakes"]
    'one'
    """
    if name not in PRESETS:
        return {}
    values = {reading.key: getattr(reading, name) for reading in OPEN_READINGS}
    return {
        key: value for key, value in values.items() if value is not None and has_key(mechanism, key)
    }


def set_by(name: str, mechanism: str, key: str) -> str:
    """Return the end of a message about a key that a preset sets; empty where it sets others."""
    if key not in preset(name, mechanism):
        return ""
    return f" (reading = '{name}' sets this key unless it is given)"


def has_key(mechanism: str, key: str) -> bool:
    """Return whether a key exists: those of a mechanism belong to some mechanisms only."""
    section, _, own = key.partition(".")
    if section != "mechanism":
        return True
    return mechanism in MECHANISMS and any(f.name == own for f in fields(MECHANISMS[mechanism]))


def reading_values(config: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the open readings in a configuration, by their labels.

    Args:
        config: The tables of a run's configuration.
        defaults: Value of each key that the configuration does not hold, because its mechanism
            does not have it. A key that is in neither is left out.
    """
    found = {}
    for reading in OPEN_READINGS:
        value: Any = config
        for part in reading.key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        value = defaults.get(reading.key) if value is None else value
        if value is not None:
            found[reading.label] = value
    return found
