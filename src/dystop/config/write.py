"""Writing TOML, which the standard library can only read, and writing an `Experiment` as TOML.

`tomllib.loads` reads what `dumps` writes back to an equal tree of tables, lists, text, numbers and
booleans.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from dystop.config.experiment import Experiment, resolve
from dystop.errors import ConfigError
from dystop.mechanisms import MECHANISMS
from dystop.params import default_of
from dystop.registry import chosen, name_in

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\n": "\\n",
    "\f": "\\f",
    "\r": "\\r",
}


def _text(value: str) -> str:
    """Write a basic string and escape what TOML forbids inside it."""

    def escaped(char: str) -> str:
        if char in _ESCAPES:
            return _ESCAPES[char]
        return f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else char

    return '"' + "".join(map(escaped, value)) + '"'


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _number(value: float) -> str:
    """Write the shortest text that reads back to the same bits, also for subclasses of float."""
    if math.isnan(value) or math.isinf(value):
        return {"nan": "nan", "inf": "inf", "-inf": "-inf"}[float.__repr__(value)]
    return float.__repr__(value)


def toml_value(item: Any) -> str:
    """Write one value as it stands right of the equals sign.

    >>> toml_value([1, 2.0, "a", True])
    '[1, 2.0, "a", true]'
    """
    match item:
        case bool():
            return "true" if item else "false"
        case int():
            return int.__repr__(item)
        case float():
            return _number(item)
        case str():
            return _text(item)
        case list() | tuple():
            return "[" + ", ".join(map(toml_value, item)) + "]"
        case Mapping():
            return "{" + ", ".join(f"{_key(k)} = {toml_value(v)}" for k, v in item.items()) + "}"
        case _:
            raise TypeError(f"TOML cannot hold {item!r} ({type(item).__name__})")


def _lines(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Write plain values first: after a table header every key belongs to that table."""
    tables = {k: v for k, v in tree.items() if isinstance(v, Mapping)}
    plain = {k: v for k, v in tree.items() if k not in tables}
    if path and (plain or not tables):
        yield ""
        yield "[" + ".".join(map(_key, path)) + "]"
    yield from (f"{_key(k)} = {toml_value(v)}" for k, v in plain.items())
    for name, table in tables.items():
        yield from _lines(table, (*path, name))


def dumps(tree: Mapping[str, Any]) -> str:
    """Write a whole document.

    >>> print(dumps({"seed": 1, "stop": {"rounds": 60}}), end="")
    seed = 1
    <BLANKLINE>
    [stop]
    rounds = 60
    """
    return "\n".join(_lines(tree, ())).lstrip("\n") + "\n"


def section_tree(section: Any) -> dict[str, Any]:
    """Return the plain tables of a section, from which it can be read again."""
    tree: dict[str, Any] = {}
    for field in fields(section):
        given = getattr(section, field.name)
        if by := field.metadata.get("by"):
            if tree_of_part := _options_tree(section, by):
                tree[field.name] = tree_of_part
        elif is_dataclass(given):
            tree[field.name] = section_tree(given)
        elif given is not None:
            tree[field.name] = given
        elif default_of(field) is not None:
            raise ConfigError(f"{field.name} = None cannot be written to a configuration file")
    return tree


def _options_tree(section: Any, by: str) -> dict[str, Any]:
    """Return the parameters of the part that a field names; none if it names something else."""
    if getattr(section, by) not in name_in(type(section), by).registry:
        return {}
    part = chosen(section, by)
    return section_tree(part) if is_dataclass(part) else {}


def to_tree(experiment: Experiment) -> dict[str, Any]:
    """Return the fully resolved configuration as plain tables."""
    tree = section_tree(resolve(experiment))
    tree["mechanism"] = {**MECHANISMS.named(type(experiment.mechanism)), **tree["mechanism"]}
    return tree


def to_toml(experiment: Experiment) -> str:
    """Return the fully resolved configuration as a TOML document."""
    return dumps(to_tree(experiment))
