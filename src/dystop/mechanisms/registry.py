"""Mechanisms by name: the built-in ones, those of installed packages, and a user's own.

A package announces a mechanism by an entry point in the group `dystop.mechanisms`:

    [project.entry-points."dystop.mechanisms"]
    my-idea = "my_idea:MyIdea"

Names are known without an import; a class is imported when it is first used. The error for a broken
plug-in names it, and no other mechanism is affected.

A class that lies in a file of the user is known after `load("package.module:Class")`, by its class
variable `name`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, fields
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from dystop.errors import ConfigError, DystopError, UserCodeError
from dystop.types import Mechanism
from dystop.user_code import blamed, choose, import_object, place_of, summary

GROUP = "dystop.mechanisms"
EXPECTED = (
    "expected 'package.module:Class', where Class is a frozen dataclass that inherits from "
    "dystop.Mechanism, and every field has a default"
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")


def installed() -> Iterable[EntryPoint]:
    """Return the entry points of all installed packages."""
    return entry_points(group=GROUP)


class BuiltIn(Mapping[str, type[Mechanism]]):
    """Classes of this package by name, each imported when it is first used."""

    def __init__(self, home: Mapping[str, str]) -> None:
        """Take module and class of each mechanism, as in {"d-psgd": "dpsgd:DPSGD"}."""
        self._home = home

    @property
    def classes(self) -> dict[str, str]:
        """Names of the mechanisms by names of their classes."""
        return {where.partition(":")[2]: name for name, where in self._home.items()}

    def __getitem__(self, name: str) -> type[Mechanism]:
        """Return the class of this name."""
        module, _, kind = self._home[name].partition(":")
        found: type[Mechanism] = getattr(import_module(f"{__package__}.{module}"), kind)
        return found

    def __contains__(self, name: object) -> bool:
        """Return whether the name exists; imports nothing."""
        return name in self._home

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)


@dataclass(frozen=True)
class _Own:
    """A class of the user, and where it was found."""

    kind: type[Mechanism]
    path: str
    folder: str


class Registry(Mapping[str, type[Mechanism]]):
    """Classes of mechanisms by name; a built-in name always refers to the built-in class."""

    def __init__(
        self,
        built_in: Mapping[str, type[Mechanism]],
        discover: Callable[[], Iterable[EntryPoint]] = installed,
    ) -> None:
        """Find plug-ins by `discover`, once, when a name is not built in."""
        self._built_in = built_in
        self._discover = discover
        self._loaded: dict[str, type[Mechanism]] = {}
        self._own: dict[str, _Own] = {}

    def __getitem__(self, name: str) -> type[Mechanism]:
        """Return the class of this name.

        Raises:
            KeyError: If there is no such mechanism.
            ConfigError: If a plug-in announces the name but cannot be used.
            UserCodeError: If its import raises an error.
        """
        if name in self._built_in:
            return self._built_in[name]
        if name in self._own:
            return self._own[name].kind
        if name not in self._loaded:
            self._loaded[name] = _load(name, self._plugins[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """Yield every name, built-in ones first; imports no plug-in."""
        yield from self._built_in
        yield from sorted((self._plugins.keys() | self._own.keys()) - self._built_in.keys())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        """Return whether the name is announced or loaded; its plug-in may still be broken."""
        return name in self._built_in or name in self._own or name in self._plugins

    def load(self, path: str, folder: str = "") -> type[Mechanism]:
        """Import a class of the user; from then on its `name` is known.

        Args:
            path: "package.module:Class".
            folder: Where the module lies; empty: where Python finds it.

        Raises:
            ConfigError: If it cannot be imported, or is no mechanism.
            UserCodeError: If its import or its construction raises an error.
        """
        who = f"mechanism = {path!r}"
        kind = _checked(who, import_object("mechanism", path, folder, EXPECTED))
        known = self._own.get(kind.name)
        if known is None and kind.name in self:
            if self[kind.name] is not kind:
                raise ConfigError(
                    f"{who}: a mechanism called {kind.name!r} is installed; change the class "
                    "variable `name`"
                )
            return kind
        if known is not None and known.path != path:
            raise ConfigError(
                f"{who}: its class variable `name` is {kind.name!r}, and so is that of "
                f"{known.path}; change one of them"
            )
        self._own[kind.name] = _Own(kind, path, known.folder if known else folder)
        return kind

    def named(self, kind: type[Mechanism]) -> dict[str, str]:
        """Return how a configuration names a class: by its name, or by import path and folder."""
        own = self._own.get(kind.name)
        if own is None or own.kind is not kind:
            return {"name": kind.name}
        return {"name": own.path, **({"folder": own.folder} if own.folder else {})}

    def problems(self) -> dict[str, str]:
        """Return the reason for each plug-in that cannot be used."""
        out = {}
        for name, points in sorted(self._plugins.items()):
            if name in self._built_in:
                out[name] = (
                    f"{_who(name, points)}: a built-in mechanism has this name; choose another"
                )
                continue
            try:
                self[name]
            except DystopError as error:
                out[name] = str(error)
        return out

    @cached_property
    def _plugins(self) -> dict[str, list[EntryPoint]]:
        """Entry points by name; a package that is found twice counts once."""
        found: dict[str, list[EntryPoint]] = {}
        for point in self._discover():
            known = found.setdefault(point.name, [])
            if all(_origin(point) != _origin(other) for other in known):
                known.append(point)
        return found


def _checked(who: str, found: Any) -> type[Mechanism]:
    """Return a class of the user if it is a mechanism that configurations can name."""
    kind = _mechanism(who, found)
    if missing := [name for name in ("name", "provenance", "summary") if not hasattr(kind, name)]:
        raise ConfigError(f"{who} lacks the class variable `{missing[0]}`; {EXPECTED}")
    if not (isinstance(kind.name, str) and _NAME.fullmatch(kind.name)):
        raise ConfigError(
            f"{who}: class variable `name` is {kind.name!r}; expected letters, digits, - and _, "
            "which folders and reports show"
        )
    if any(isinstance(value, Field) for value in vars(kind).values()):
        raise ConfigError(
            f"{who} has parameters but is no dataclass: write @dataclass(frozen=True)"
        )
    if any(field.name == "folder" for field in fields(kind)):
        raise ConfigError(f"{who}: mechanism.folder is the folder of its file; rename its `folder`")
    try:
        kind()
    except Exception as error:
        raise blamed(error) or ConfigError(
            f"{who} could not be made: {summary(error)}; {EXPECTED}"
        ) from error
    return kind


def _mechanism(who: str, found: Any) -> type[Mechanism]:
    if not (isinstance(found, type) and issubclass(found, Mechanism)):
        raise ConfigError(f"{who}: {found!r} is not a subclass of dystop.Mechanism")
    return found


def _load(name: str, points: list[EntryPoint]) -> type[Mechanism]:
    """Import one plug-in and check its class."""
    who = _who(name, points)
    if len(points) > 1:
        raise ConfigError(f"{who}: two packages claim one name; uninstall one of them")
    choose(points[0].module)
    try:
        found = points[0].load()
    except Exception as error:  # user code may raise anything
        if place := place_of(error):
            raise UserCodeError(f"{place}: {summary(error)}; {who} cannot be imported") from error
        raise ConfigError(
            f"{who}: cannot be imported ({summary(error)}); repair or uninstall it"
        ) from error
    kind = _mechanism(who, found)
    if getattr(kind, "name", None) != name:
        raise ConfigError(
            f"{who}: class variable `name` is {getattr(kind, 'name', None)!r}; it must equal the"
            " name of the entry point"
        )
    return kind


def _origin(point: EntryPoint) -> str:
    """Return package and class of an entry point, as in `my-idea (my_idea:MyIdea)`."""
    package = point.dist.name if point.dist is not None else "an unknown package"
    return f"{package} ({point.value})"


def _who(name: str, points: list[EntryPoint]) -> str:
    return f"mechanism {name!r} from {' and '.join(map(_origin, points))}"
