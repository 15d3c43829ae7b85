"""From a raw tree to blocks of knobs: the edge where input is parsed, once.

`build` turns what TOML and the command line say into frozen dataclasses. Types and bounds come
from the annotations (checked by pydantic), so a knob is declared in one place only. Every problem
is one `ConfigError` that names the source, the dotted key, what was given and what is allowed.
"""

import json
import math
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import BaseMetadata, Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen
from pydantic import TypeAdapter, ValidationError

from dystop.errors import ConfigError, nearest
from dystop.experiments import toml

UNSET = "unset"  # the word that takes a value back, where having none is allowed
Block = TypeVar("Block")
Kinds = Mapping[str, type]
"""Blocks whose type is chosen by the input, by dotted key: {"mechanism": DySTop}."""


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key, described."""

    name: str
    default: Any
    allowed: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Source:
    """Where the raw tree came from, for messages."""

    file: str
    overridden: frozenset[str] = frozenset()
    known: tuple[str, ...] = ()

    def of(self, key: str) -> str:
        """The place that gave this key: the command line, or the file."""
        parts = key.split(".")
        heads = {".".join(parts[: n + 1]) for n in range(len(parts))}
        return "command line" if heads & self.overridden else self.file


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
            yield f"{sign} {getattr(item, attribute)}"


def allowed(hint: Any) -> str:
    """What an annotation allows, in words.

    >>> allowed(Annotated[int, Ge(1)] | Literal["all"])
    "an integer >= 1 or 'all'"
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
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


def _default(field: Field[Any]) -> Any:
    if field.default is not MISSING:
        return field.default
    return None if field.default_factory is MISSING else field.default_factory()


def _knobs(kind: type, prefix: str) -> Iterator[tuple[Field[Any], Any, str]]:
    """Fields that can be set, each with its annotation and dotted key."""
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        if field.init:
            yield field, hints[field.name], prefix + field.name


def keys(kind: type, kinds: Kinds, prefix: str = "") -> Iterator[Key]:
    """Every key below a block, in the order of declaration."""
    for field, hint, key in _knobs(kind, prefix):
        inner = kinds.get(key, hint)
        if is_dataclass(inner) and isinstance(inner, type):
            yield from keys(inner, kinds, key + ".")
        else:
            meaning = field.metadata.get("meaning", "")
            yield Key(key, _default(field), allowed(hint), meaning)


def _first_leaf(key: str, given: object) -> str:
    """The first full key of an unknown table: a better thing to name than the table."""
    while isinstance(given, Mapping) and given:
        name, given = next(iter(given.items()))
        key = f"{key}.{name}"
    return key


def _unknown(key: str, source: Source) -> ConfigError:
    """Suggest the full key where only its last part was given, else the closest spelling."""
    prefix, _, last = key.rpartition(".")
    same = [k for k in source.known if k.rpartition(".")[2] == last]
    tables = {k.rpartition(".")[0] for k in source.known}
    inside = [k for k in source.known if k.rpartition(".")[0] == prefix]
    close = nearest(key, inside if prefix and inside else [*source.known, *tables])
    hint = f"; did you mean {same[0]!r}?" if len(same) == 1 else close
    if not hint and prefix and inside:
        names = ", ".join(k.rpartition(".")[2] for k in inside)
        hint = f"; [{prefix}] has {names} as it is set here."
    return ConfigError(
        f"{source.of(key)}: unknown key {key!r}{hint or '.'} ('dystop list keys' shows every key)"
    )


def wrong(source: Source, key: str, given: object, wanted: str) -> ConfigError:
    """The error for a value that cannot be used."""
    return ConfigError(f"{source.of(key)}: {key} = {_shown(given)}; expected {wanted}")


def _shown(given: object) -> str:
    try:
        return toml.value(given)
    except TypeError:
        return str(given)


def _finite(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def _leaf(hint: Any, given: object, default: Any) -> Any:
    """Check one value. JSON mode, because there a list may become a tuple while all else is strict.

    Infinity is let through only where it is the default: elsewhere it would turn into NaN later.
    """
    value = TypeAdapter(hint).validate_json(json.dumps(given), strict=True)
    if not _finite(value) and _finite(default):
        raise ValueError("not finite")
    return value


def table(raw: object, source: Source, key: str) -> Mapping[str, Any]:
    """The raw value as a table of keys."""
    if not isinstance(raw, Mapping):
        raise wrong(source, key, raw, f"a table, as in [{key}] or {key}.KEY=VALUE")
    return raw


def _value(field: Field[Any], hint: Any, given: object, key: str, source: Source) -> Any:
    if given == UNSET and type(None) in get_args(hint):
        return None
    try:
        return _leaf(hint, given, _default(field))
    except (ValidationError, ValueError, TypeError):
        meaning = field.metadata.get("meaning", "")
        wanted = allowed(hint) if _finite(given) else "a finite number"
        wanted += f" ({meaning})" if meaning else ""
        raise wrong(source, key, given, wanted) from None


def build(
    kind: type[Block], raw: Mapping[str, Any], source: Source, kinds: Kinds, prefix: str = ""
) -> Block:
    """A block of knobs from a raw table; what is not given keeps its default."""
    known = {field.name: (field, hint, key) for field, hint, key in _knobs(kind, prefix)}
    values: dict[str, Any] = {}
    for name, given in raw.items():
        if name not in known:
            raise _unknown(_first_leaf(prefix + name, given), source)
        field, hint, key = known[name]
        inner = kinds.get(key, hint)
        if is_dataclass(inner) and isinstance(inner, type):
            values[name] = build(inner, table(given, source, key), source, kinds, key + ".")
        else:
            values[name] = _value(field, hint, given, key, source)
    try:
        return kind(**values)
    except ValueError as error:
        raise ConfigError(
            f"{source.of(prefix.rstrip('.'))}: [{prefix.rstrip('.')}] {error}"
        ) from None


def tree(block: Any) -> dict[str, Any]:
    """The raw table that `build` turns back into this block."""
    out: dict[str, Any] = {}
    for field in fields(block):
        value = getattr(block, field.name)
        if is_dataclass(value):
            out[field.name] = tree(value)
        elif value is not None:
            out[field.name] = value
        elif _default(field) is not None:
            raise ConfigError(f"{field.name} = None cannot be written to a configuration file")
    return out
