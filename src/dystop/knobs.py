"""Declaring a hyper-parameter once: its default, its bounds and what it means.

Every configurable block (a mechanism, the channel, the stop rule) is a frozen dataclass whose
fields are made by `knob`. The configuration reader takes types and bounds from the annotation,
`dystop list` and `--help` take the text from the metadata.
"""

from collections.abc import Iterator
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
