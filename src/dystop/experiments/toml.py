"""Writing TOML: the half that the standard library does not have.

`dumps` writes what `tomllib.loads` reads back to an equal tree: tables, lists, text, numbers and
booleans. It knows nothing about dystop.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

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
    """A basic string, with everything that TOML forbids inside it escaped."""

    def escaped(char: str) -> str:
        if char in _ESCAPES:
            return _ESCAPES[char]
        return f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else char

    return '"' + "".join(map(escaped, value)) + '"'


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _text(name)


def _number(value: float) -> str:
    """The shortest text that reads back to the same bits; subclasses of float lose their repr."""
    if math.isnan(value) or math.isinf(value):
        return {"nan": "nan", "inf": "inf", "-inf": "-inf"}[float.__repr__(value)]
    return float.__repr__(value)


def value(item: Any) -> str:
    """One value as it stands right of the equals sign.

    >>> value([1, 2.0, "a", True])
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
            return "[" + ", ".join(map(value, item)) + "]"
        case Mapping():
            return "{" + ", ".join(f"{_key(k)} = {value(v)}" for k, v in item.items()) + "}"
        case _:
            raise TypeError(f"TOML cannot hold {item!r} ({type(item).__name__})")


def _lines(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Plain values first: after a table header every key belongs to that table."""
    tables = {k: v for k, v in tree.items() if isinstance(v, Mapping)}
    plain = {k: v for k, v in tree.items() if k not in tables}
    if path and (plain or not tables):
        yield ""
        yield "[" + ".".join(map(_key, path)) + "]"
    yield from (f"{_key(k)} = {value(v)}" for k, v in plain.items())
    for name, table in tables.items():
        yield from _lines(table, (*path, name))


def dumps(tree: Mapping[str, Any]) -> str:
    """A whole document.

    >>> print(dumps({"seed": 1, "stop": {"rounds": 60}}), end="")
    seed = 1
    <BLANKLINE>
    [stop]
    rounds = 60
    """
    return "\n".join(_lines(tree, ())).lstrip("\n") + "\n"
