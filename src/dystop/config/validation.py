"""Checks of configuration values: unknown keys, wrong values, and names that refer to nothing.

Pydantic checks the values of a whole section against the annotations of its dataclass. Every
problem becomes one `ConfigError` that names the source, the dotted key, the given value and what is
allowed.
"""

import json
import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dystop.config.keys import UNSET, Key, keys_of
from dystop.config.write import toml_value
from dystop.errors import ConfigError, closest, nearest
from dystop.params import unused, with_defaults

Section = TypeVar("Section")
COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Source:
    """Where the values of a configuration come from, for messages."""

    file: str
    overridden: frozenset[str] = frozenset()  # keys that `key=value` words set
    words: str = COMMAND_LINE  # where the words come from

    def of(self, key: str) -> str:
        """Return the source of this key: the words, or the file."""
        return self.words if self.is_word(key) else self.file

    def is_word(self, key: str) -> bool:
        """Return whether words set this key, or a table around it."""
        parts = key.split(".")
        heads = {".".join(parts[: n + 1]) for n in range(len(parts))}
        return bool(heads & self.overridden)


def read_section(kind: type[Section], table: Mapping[str, Any], key: str, origin: str) -> Section:
    """Validate one section, such as the hyper-parameters of a mechanism.

    Args:
        kind: Dataclass of the section.
        table: Values by the names of its fields; the others keep their defaults.
        key: Dotted name of the section, for messages.
        origin: Where the values come from, for messages.
    """
    source, known = Source(origin), {k.name: k for k in keys_of(kind, f"{key}.")}
    return validate(kind, checked_tree(table, f"{key}.", known, source), key, known, source)


def validate(
    kind: type[Section], given: Any, key: str, known: Mapping[str, Key], source: Source
) -> Section:
    """Turn a plain value or a table into its type. JSON mode, where a list may become a tuple."""
    try:
        validated: Section = _adapter(cast("Hashable", kind)).validate_json(json.dumps(given))
    except ValidationError as error:
        raise _explained(error, given, key, known, source) from None
    return validated


@lru_cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the checker of a section; making one takes longer than many checks."""
    hint: Any = kind | None  # a union, because a dataclass alone accepts no configuration
    return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))


def _explained(
    invalid: ValidationError, given: Any, key: str, known: Mapping[str, Key], source: Source
) -> ConfigError:
    """Turn the first problem that pydantic has found into a message about its key."""
    problem = invalid.errors()[0]
    for part in problem["loc"]:
        if key in known:
            break  # what follows is a place inside the value
        key, given = f"{key}.{part}", given.get(part)
    if key in known:
        return _wrong_value(source, known[key], given)
    reason = problem.get("ctx", {}).get("error", problem["msg"])  # of __post_init__
    return ConfigError(f"{source.of(key)}: [{key}] {reason}")


def checked_tree(
    table: Mapping[str, Any], prefix: str, known: Mapping[str, Key], source: Source
) -> dict[str, Any]:
    """Refuse unknown keys and values that JSON cannot hold; replace `unset` by None."""
    tree: dict[str, Any] = {}
    for name, given in table.items():
        key = prefix + name
        if key in known:
            tree[name] = _checked_value(given, known[key], source)
        elif any(other.startswith(f"{key}.") for other in known):
            tree[name] = checked_tree(as_table(given, key, source), f"{key}.", known, source)
        else:
            raise _unknown(_first_key(key, given), known, source)
    return tree


def _checked_value(given: object, key: Key, source: Source) -> Any:
    """Refuse a date, and a number that is not finite unless the default is not finite either.

    A number such as 1e3 is an integer where one is expected.
    """
    if given == UNSET and key.is_optional:
        return None
    if key.is_whole and isinstance(given, float) and given.is_integer():
        return int(given)
    is_finite = not isinstance(key.default, float) or math.isfinite(key.default)
    try:
        json.dumps(given, allow_nan=not is_finite)
    except ValueError:
        raise wrong(source, key.name, given, _expected("a finite number", key)) from None
    except TypeError:
        raise _wrong_value(source, key, given) from None
    return given


def as_table(given: object, key: str, source: Source) -> Mapping[str, Any]:
    """Return a value as the table that it must be."""
    if not isinstance(given, Mapping):
        raise wrong(source, key, given, f"a table, as in [{key}] or {key}.KEY=VALUE")
    return given


def _first_key(key: str, given: object) -> str:
    """Return the first full key of an unknown table, which says more than the table's name."""
    while isinstance(given, Mapping) and given:
        name, given = next(iter(given.items()))
        key = f"{key}.{name}"
    return key


def _unknown(key: str, known: Iterable[str], source: Source) -> ConfigError:
    """Suggest the full key where only its last part was given, else the closest spelling."""
    sections = {name: name.rpartition(".")[0] for name in known}
    prefix, _, last = key.rpartition(".")
    same = [name for name in sections if name.rpartition(".")[2] == last]
    inside = [name for name, section in sections.items() if section == prefix]
    if prefix and inside:  # the section is right: only the last part is spelled wrong
        word = closest(last, [name.rpartition(".")[2] for name in inside])
        close = f"; did you mean {f'{prefix}.{word}'!r}?" if word else ""
    else:
        close = nearest(key, [*sections, *set(sections.values())])
    hint = f"; did you mean {same[0]!r}?" if len(same) == 1 else close
    if not hint and prefix and inside:
        names = ", ".join(name.rpartition(".")[2] for name in inside)
        hint = f"; [{prefix}] has {names} as it is set here."
    return ConfigError(
        f"{source.of(key)}: unknown key {key!r}{hint or '.'} ('dystop list keys' shows every key)"
    )


def not_used(source: Source, key: str, by: str, now: object, choices: Sequence[object]) -> str:
    """Say that another key leaves a key without effect, and under which choices it has one."""
    *most, last = map(_shown, choices) if choices else ["any other"]
    some = f"{', '.join(most)} or {last}" if most else last
    where = source.of(key.partition(" ")[0])
    return f"{where}: {key} is not used with {by} = {_shown(now)}; it is with {some}"


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else toml_value(value)


def checked_use(section: Section, source: Source) -> Section:
    """Refuse a key that another one leaves without effect, unless it has its default.

    Where a word replaces the choice of a file, what the file says for its own choice is dropped.
    """
    dropped = set()
    for found in unused(section):
        if source.is_word(found.by) and not source.is_word(found.key):
            dropped.add(found.key)
            continue
        key = f"{found.key} = {_shown(found.value)}"
        fact = not_used(source, key, found.by, found.now, found.choices)
        raise ConfigError(f"{fact} (default: {_shown(found.usual)})")
    return with_defaults(section, dropped) if dropped else section


def wrong(source: Source, key: str, given: object, expected: str) -> ConfigError:
    """Return the error of a value that is not allowed: where it stands, and what is."""
    try:
        shown = toml_value(given)
    except TypeError:  # a date
        shown = str(given)
    return ConfigError(f"{source.of(key)}: {key} = {shown}; expected {expected}")


def _wrong_value(source: Source, key: Key, given: object) -> ConfigError:
    return wrong(source, key.name, given, _expected(key.allowed, key))


def _expected(allowed: str, key: Key) -> str:
    return f"{allowed} ({key.meaning})" if key.meaning else allowed


def check_name(source: Source, key: str, given: object, names: Iterable[str], also: str) -> None:
    """Refuse an unknown name; list the known ones and what else can be given."""
    names = sorted(names)
    if not isinstance(given, str) or given not in names:
        close = nearest(str(given), names)
        raise wrong(source, key, given, f"one of {', '.join(names)}{also}{close}")
