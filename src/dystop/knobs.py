"""Declaring a hyper-parameter once: its default, its bounds and what it means.

Every configurable block (a mechanism, the channel, the stop rule) is a frozen dataclass whose
fields are made by `knob`. The configuration reader takes types and bounds from the annotation,
`dystop list` and `--help` take the text from the metadata.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from typing import Any


def knob(default: Any, meaning: str) -> Any:
    """A dataclass field with a default and a sentence that says what it does."""
    if isinstance(default, (list, dict, set)):
        raise TypeError("a knob's default must be immutable")
    return field(default=default, metadata={"meaning": meaning})


def block(kind: type, meaning: str) -> Any:
    """A dataclass field that holds a whole block of knobs, with all of its defaults."""
    return field(default_factory=kind, metadata={"meaning": meaning})


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """The last part of each dotted key, with as many parts before it as tell it from the others.

    >>> short_names(["data.phi", "world.churn.enabled", "world.mobility.enabled"]).values()
    dict_values(['phi', 'churn.enabled', 'mobility.enabled'])
    """
    parts = {key: key.split(".") for key in keys}
    short, length = {key: words[-1] for key, words in parts.items()}, 1
    while len(set(short.values())) < len(parts):
        length += 1
        times = Counter(short.values())
        for key, words in parts.items():
            if times[short[key]] > 1:
                short[key] = ".".join(words[-length:])
    return short


@dataclass(frozen=True, slots=True)
class Knob:
    """One hyper-parameter, described."""

    name: str
    type: str
    default: Any
    meaning: str


def knobs(kind: type) -> Iterator[Knob]:
    """Describe the hyper-parameters of a block, in the order they are declared."""
    for f in fields(kind):
        shown = f.type if isinstance(f.type, str) else getattr(f.type, "__name__", str(f.type))
        default = f.default if f.default is not MISSING else "..."
        yield Knob(f.name, shown, default, f.metadata.get("meaning", ""))
