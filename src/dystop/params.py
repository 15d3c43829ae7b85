"""Parameters: a field of a dataclass declares its type, bounds, default and meaning once.

Every section of the configuration (a mechanism, the channel, the stop rule) is a frozen dataclass
whose fields are made by `param`. The configuration reader takes types and bounds from the
annotation; `dystop list` and `--help` take the meaning from the metadata. `check_bounds` checks the
same bounds for a section that is built in Python.
"""

import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from dystop.errors import ConfigError, nearest

Choices = tuple[Any, ...] | Callable[[], Iterable[Any]] | None
"""Values of a key under which another key is used; None: any but none, false, 0 and nothing."""


def param(default: Any, meaning: str, *, under: Mapping[str, Choices] | None = None) -> Any:
    """Declare a dataclass field with a default and a short description.

    Args:
        default: What it is where nobody sets it.
        meaning: For lists and messages.
        under: Other fields of the section, and the values of each one under which this field is
            used; elsewhere a configuration that changes it is refused.
    """
    if isinstance(default, (list, dict, set)):
        raise TypeError("the default of a parameter must be immutable")
    return field(default=default, metadata={"meaning": meaning, "under": under or {}})


def section(kind: type, meaning: str, *, under: Mapping[str, Choices] | None = None) -> Any:
    """Declare a dataclass field that holds a section with all its defaults, as `param` does."""
    return field(default_factory=kind, metadata={"meaning": meaning, "under": under or {}})


@dataclass(frozen=True)
class Unused:
    """A parameter that is changed, though another one leaves it without effect."""

    key: str
    value: Any
    usual: Any  # its default
    by: str  # the other key
    now: Any
    choices: list[Any]  # for the other key; empty: any other


def unused(section: Any, prefix: str = "") -> Iterator[Unused]:
    """Yield the changed parameters of a section, and of those in it, that have no effect."""
    for f in fields(section):
        value = getattr(section, f.name)
        for by, choices in f.metadata.get("under", {}).items():
            changed = list(_changed(value, default_of(f), prefix + f.name))
            now = getattr(section, by)
            if not changed or _is_among(now, choices):
                continue
            some = choices() if callable(choices) else choices
            for key, other, usual in changed:
                yield Unused(key, other, usual, prefix + by, now, list(some or ()))
        if is_dataclass(value):
            yield from unused(value, f"{prefix}{f.name}.")


def _is_among(now: Any, choices: Choices) -> bool:
    if choices is None:
        return now not in (None, False, 0, "", "none")
    return now in (choices() if callable(choices) else choices)  # loads no more than it must


def _changed(value: Any, usual: Any, key: str) -> Iterator[tuple[str, Any, Any]]:
    """Yield the keys of parameters that differ from their defaults, and both values."""
    if is_dataclass(value):
        for f in fields(value):
            yield from _changed(getattr(value, f.name), getattr(usual, f.name), f"{key}.{f.name}")
    elif value != usual:
        yield key, value, usual


def with_defaults(section: Any, keys: Collection[str], prefix: str = "") -> Any:
    """Return a section in which the parameters at these dotted keys have their defaults."""
    changes = {}
    for f in fields(section):
        key, value = prefix + f.name, getattr(section, f.name)
        if key in keys:
            changes[f.name] = default_of(f)
        elif any(other.startswith(f"{key}.") for other in keys):
            changes[f.name] = with_defaults(value, keys, f"{key}.")
    return replace(section, **changes)


def default_of(field: Field[Any]) -> Any:
    """Return the default of a dataclass field, or None if it has no default."""
    if field.default is not MISSING:
        return field.default
    return None if field.default_factory is MISSING else field.default_factory()


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables under dotted keys.

    >>> list(flatten({"seed": 1, "mechanism": {"name": "dystop"}}))
    [('seed', 1), ('mechanism.name', 'dystop')]
    """
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def short_names(keys: Iterable[str]) -> dict[str, str]:
    """Return the shortest distinct end of each dotted key.

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
class Param:
    """The description of one parameter."""

    name: str
    type: str
    default: Any
    meaning: str


def params_of(kind: type) -> Iterator[Param]:
    """Describe the parameters of a section, in the order of declaration."""
    for f in fields(kind):
        shown = f.type if isinstance(f.type, str) else getattr(f.type, "__name__", str(f.type))
        default = f.default if f.default is not MISSING else "..."
        yield Param(f.name, shown, default, f.metadata.get("meaning", ""))


def check_bounds(section: object, path: str) -> None:
    """Raise ConfigError for the first parameter of a section that violates its bounds."""
    for name, hint in get_type_hints(type(section), include_extras=True).items():
        value = getattr(section, name)
        for wrong in _faults(hint, value):
            raise ConfigError(f"{path}.{name} = {value!r}: {wrong}")


def check_order(path: str, pair: tuple[float, float]) -> None:
    """Raise ConfigError unless a (min, max) pair is in order."""
    low, high = pair
    if low > high:
        raise ConfigError(
            f"{path} = {pair!r}: expected (min, max) with min <= max; write ({high!r}, {low!r})"
        )


def _faults(hint: Any, value: Any) -> Iterator[str]:
    """Yield why a value does not fit a type, as phrases for the end of a message."""
    kind, inside = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        yield from _none_fits(inside, value)
    elif kind is Annotated:
        yield from list(_faults(inside[0], value)) or _out_of_bounds(inside[1:], value)
    elif kind is tuple:
        yield from _bad_pair(inside, value)
    elif kind is Literal:
        if value not in inside:
            yield f"expected one of {', '.join(map(repr, inside))}{nearest(str(value), inside)}"
    elif hint in _SCALARS:
        yield from _bad_scalar(hint, value)


def _none_fits(choices: tuple[Any, ...], value: Any) -> Iterator[str]:
    """Yield the faults under all members of a union, unless one member accepts the value."""
    wrong = [list(_faults(choice, value)) for choice in choices]
    if all(wrong):
        yield ", or ".join(reasons[0] for reasons in wrong)


def _out_of_bounds(bounds: tuple[Any, ...], value: Any) -> Iterator[str]:
    """Yield the bounds if a number violates one of them; NaN violates all."""
    rules = [(*_COMPARE[type(b)], getattr(b, type(b).__name__.lower())) for b in bounds]
    if not all(holds(value, limit) for _, holds, limit in rules):
        yield "must be " + " and ".join(f"{sign} {number_text(limit)}" for sign, _, limit in rules)


def number_text(limit: float) -> str:
    """Return a bound as a message shows it.

    >>> number_text(65535), number_text(1e15)
    ('65535', '1e+15')
    """
    return str(limit) if isinstance(limit, int) else f"{limit:g}"


def _bad_pair(hints: tuple[Any, ...], value: Any) -> Iterator[str]:
    """Yield the faults of a tuple: its length, or the bounds of an entry."""
    if not isinstance(value, tuple | list) or len(value) != len(hints):
        yield f"expected {len(hints)} numbers in a tuple"
        return
    for hint, entry in zip(hints, value, strict=True):
        yield from _faults(hint, entry)


def _bad_scalar(hint: Any, value: Any) -> Iterator[str]:
    """Yield the expected type if a value is not of it."""
    wanted, fits = _SCALARS[hint]
    if not fits(value):
        yield f"expected {wanted}"


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


_COMPARE: dict[type, tuple[str, Any]] = {
    Gt: (">", operator.gt),
    Ge: (">=", operator.ge),
    Lt: ("<", operator.lt),
    Le: ("<=", operator.le),
}

_SCALARS: dict[Any, tuple[str, Any]] = {
    bool: ("true or false", _is_bool),
    int: ("an integer", lambda v: isinstance(v, Integral) and not _is_bool(v)),
    float: (
        "a finite number",
        lambda v: isinstance(v, Real) and not _is_bool(v) and math.isfinite(v),
    ),
    NoneType: ("None", lambda v: v is None),
}
