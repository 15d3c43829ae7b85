"""Configuration keys: their names, defaults, allowed values and meanings.

All of it comes from the dataclasses that declare the keys: a key is declared in one place only.
"""

import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import BaseMetadata, Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen

from dystop.params import default_of, number_text
from dystop.registry import NameIn

UNSET = "unset"  # the word that removes a value, where a key may have none


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key."""

    name: str  # dotted, as in stop.rounds
    default: Any
    hint: Any  # annotation of its value
    meaning: str

    @property
    def allowed(self) -> str:
        """What the value may be, in words."""
        return allowed(self.hint)

    @property
    def is_optional(self) -> bool:
        """Whether it may be unset."""
        return type(None) in get_args(self.hint)

    @property
    def is_whole(self) -> bool:
        """Whether its numbers are integers."""
        return {kind for kind in _kinds(self.hint) if kind in (int, float)} == {int}


_WORDS = {int: "an integer", float: "a number", str: "text", bool: "true or false"}
_SIGNS: dict[type, tuple[str, str]] = {
    Gt: ("gt", ">"),
    Ge: ("ge", ">="),
    Lt: ("lt", "<"),
    Le: ("le", "<="),
    MinLen: ("min_length", "of length >="),
    MaxLen: ("max_length", "of length <="),
}


def _bounds(metadata: tuple[Any, ...]) -> Iterator[str]:
    for item in metadata:
        if isinstance(item, GroupedMetadata):
            yield from _bounds(tuple(item))
        elif isinstance(item, BaseMetadata) and type(item) in _SIGNS:
            attribute, sign = _SIGNS[type(item)]
            yield f"{sign} {number_text(getattr(item, attribute))}"


def allowed(hint: Any) -> str:
    """Say in words what an annotation allows.

    >>> allowed(Annotated[int, Ge(1)] | Literal["all"])
    "an integer >= 1 or 'all'"
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        for item in inner[1:]:
            if isinstance(item, NameIn):
                return item.allowed()
        return " ".join([allowed(inner[0]), " and ".join(_bounds(inner[1:]))]).rstrip()
    if origin is Literal:
        return ("one of " if len(inner) > 1 else "") + ", ".join(map(repr, inner))
    if origin in (Union, types.UnionType):
        kinds = [allowed(x) for x in inner if x is not type(None)]
        return " or ".join(kinds + ([UNSET] if type(None) in inner else []))
    if origin in (tuple, list):
        length = "" if Ellipsis in inner or origin is list else f" of {len(inner)}"
        return f"a list{length}, each {allowed(inner[0])}"
    return _WORDS.get(hint, getattr(hint, "__name__", str(hint)))


def _kinds(hint: Any) -> Iterator[Any]:
    """Yield the plain types that an annotation allows; a list is one type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from _kinds(inner[0])
    elif origin in (Union, types.UnionType):
        for part in inner:
            yield from _kinds(part)
    else:
        yield hint


def keys_of(
    kind: type, prefix: str = "", *, sections: Mapping[str, type] | None = None
) -> Iterator[Key]:
    """Describe every key of a section and of the sections in it, in the order of declaration.

    Args:
        kind: The section.
        prefix: What stands before the names of its keys, as in "mechanism.".
        sections: Sections whose type the input chooses, by key, such as {"mechanism": DySTop}, or
            {"engine.options": SteadyLaw} for the parameters of a part.
    """
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if not field.init:
            continue
        name = prefix + field.name
        hint = (sections or {}).get(name, hints[field.name])
        if "by" in field.metadata:  # the parameters of a part, of which there may be none
            if is_section(hint):
                yield from keys_of(hint, f"{name}.")
        elif is_section(hint):
            yield from keys_of(hint, f"{name}.", sections=sections)
        else:
            yield Key(name, default_of(field), hint, field.metadata.get("meaning", ""))


def is_section(hint: Any) -> bool:
    """Return whether a field with this annotation is a table of keys."""
    return is_dataclass(hint) and isinstance(hint, type)


@dataclass(frozen=True)
class NamedPart:
    """A key that names a part, and the key of the table that holds its parameters."""

    key: str  # as in aggregation.rule
    options: str  # as in aggregation.options; empty: there is no such table
    default: str
    names: NameIn


def named_parts(kind: type, prefix: str = "") -> Iterator[NamedPart]:
    """Find the parts that a configuration names by a key of a section."""
    hints = get_type_hints(kind, include_extras=True)
    options = {field.metadata.get("by"): prefix + field.name for field in fields(kind)}
    for field in fields(kind):
        key = prefix + field.name
        if is_section(hints[field.name]):
            yield from named_parts(hints[field.name], f"{key}.")
        for names in get_args(hints[field.name]):
            if isinstance(names, NameIn):
                yield NamedPart(key, options.get(field.name, ""), default_of(field), names)
