"""Samples of the open keys, and the preset that the search chose: `nearest`, which is sample 2.

A sample has an address: its number and the key. More samples, or another key, change no sample.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dystop.config.readings import OPEN_READINGS, has_key
from dystop.config.readings import preset as built_in
from dystop.config.write import toml_value
from dystop.rng import stream

SEED = 2025
"""Seed of all samples."""

CHOSEN = "none"
"""The reading without a preset: the defaults of all keys."""

NEAREST, _SAMPLE = "nearest", 2


def sampled_values(number: int) -> dict[str, Any]:
    """Return a value for each open key, each of its plausible values equally often."""
    return {
        reading.key: reading.values[
            int(stream(SEED, "reading", number, reading.key).integers(len(reading.values)))
        ]
        for reading in OPEN_READINGS
    }


def preset(name: str, mechanism: str) -> Mapping[str, Any]:
    """Return the keys that a preset of dystop or of this package sets for a mechanism."""
    if name != NEAREST:
        return built_in(name, mechanism)
    return {k: v for k, v in sampled_values(_SAMPLE).items() if has_key(mechanism, k)}


def in_full(words: Sequence[str]) -> list[str]:
    """Return the words with the keys of `reading=nearest` in its place; words about them win.

    >>> in_full(["reading=literal"]), in_full(["world.range_m=40", "reading=nearest"])[-2:]
    (['reading=literal'], ['world.range_m=40', 'reading=none'])
    """
    given = {key: value.strip() for key, _, value in (word.partition("=") for word in words)}
    if given.get("reading") != NEAREST:
        return list(words)
    own = preset(NEAREST, given.get("mechanism.name", "dystop"))
    kept = [word if word.partition("=")[0] != "reading" else f"reading={CHOSEN}" for word in words]
    return [*(f"{key}={toml_value(value)}" for key, value in own.items()), *kept]
