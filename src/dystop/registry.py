"""Parts by name: the built-in ones, those of installed packages, and a user's own.

A part is a class with the class variables `name` and `summary`, whose fields are its parameters, as
`dystop.params.param` declares them: a mechanism, a law of time, a data set. A package announces one
by an entry point in the group of the registry:

    [project.entry-points."dystop.mechanisms"]
    my-idea = "my_idea:MyIdea"

Names are known without an import; a class is imported when it is first used. The error for a broken
plug-in names it and its package, and no other part is affected.

A class that lies in a file of the user is known after `load("package.module:Class")`, by its class
variable `name`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields, is_dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_type_hints

from dystop.errors import ConfigError, DystopError, UserCodeError, nearest
from dystop.params import check_bounds
from dystop.user_code import blamed, choose, import_object, place_of, summary

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,59}")


class Part(Protocol):
    """What every registry asks of a class."""

    name: ClassVar[str]
    summary: ClassVar[str]


T = TypeVar("T", bound=Part)


def imported(where: str) -> Any:
    """Return what "module:name" names."""
    module, _, name = where.partition(":")
    return getattr(import_module(module), name)


class BuiltIn(Mapping[str, type[T]]):
    """Classes of this package by name, each imported when it is first used."""

    def __init__(self, home: Mapping[str, str]) -> None:
        """Take module and class of each part, as in {"d-psgd": "dystop.mechanisms.dpsgd:DPSGD"}."""
        self._home = home

    @property
    def classes(self) -> dict[str, str]:
        """Names of the parts by names of their classes."""
        return {where.partition(":")[2]: name for name, where in self._home.items()}

    def __getitem__(self, name: str) -> type[T]:
        """Return the class of this name."""
        found: type[T] = imported(self._home[name])
        return found

    def __contains__(self, name: object) -> bool:
        """Return whether the name exists; imports nothing."""
        return name in self._home

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)


@dataclass(frozen=True)
class _Own(Generic[T]):
    """A class of the user, and where it was found."""

    kind: type[T]
    path: str
    folder: str


class Registry(Mapping[str, type[T]]):
    """Classes of one kind of part by name; a built-in name always refers to the built-in class."""

    def __init__(
        self,
        what: str,
        base: type | str,
        group: str,
        built_in: Mapping[str, type[T]] | Iterable[type[T]],
        *,
        needs: tuple[str, ...] = ("name", "summary"),
    ) -> None:
        """Name the parts of one kind; plug-ins are looked for when a name is not built in.

        Args:
            what: What a part is, for messages, as in "mechanism".
            base: The class that every part inherits from; `dystop` exports it. As
                "module:Class" it is imported when it is needed.
            group: The group of entry points by which packages announce their parts.
            built_in: The classes of this package, or a mapping that imports them by name.
            needs: Class variables that every part has.
        """
        self.what, self._base, self.group = what, base, group
        self.built_in: Mapping[str, type[T]] = (
            built_in if isinstance(built_in, Mapping) else {kind.name: kind for kind in built_in}
        )
        self._needs = needs
        self._loaded: dict[str, type[T]] = {}
        self._own: dict[str, _Own[T]] = {}

    @cached_property
    def base(self) -> type:
        """The class that every part inherits from."""
        return imported(self._base) if isinstance(self._base, str) else self._base

    @property
    def expected(self) -> str:
        """What the import path of a part should be, for messages."""
        return (
            "expected 'package.module:Class', where Class is a frozen dataclass that inherits from "
            f"dystop.{self.base.__name__}, and every field has a default"
        )

    def __getitem__(self, name: str) -> type[T]:
        """Return the class of this name.

        Raises:
            KeyError: If there is no such part.
            ConfigError: If a plug-in announces the name but cannot be used.
            UserCodeError: If its import raises an error.
        """
        if name in self.built_in:
            return self.built_in[name]
        if name in self._own:
            return self._own[name].kind
        if name not in self._loaded:
            self._loaded[name] = self._imported(name, self._plugins[name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """Yield every name, built-in ones first; imports no plug-in."""
        yield from self.built_in
        yield from sorted((self._plugins.keys() | self._own.keys()) - self.built_in.keys())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        """Return whether the name is announced or loaded; its plug-in may still be broken."""
        return name in self.built_in or name in self._own or name in self._plugins

    def usable(self) -> dict[str, type[T]]:
        """Return all parts but those of broken plug-ins; `problems` says why these are left out."""
        problems = self.problems()
        return {name: self[name] for name in self if name in self.built_in or name not in problems}

    def make(self, name: str, **options: Any) -> T:
        """Return the part of this name with these parameters.

        Raises:
            ConfigError: The name or a parameter is unknown, or a value is not allowed.

        >>> from dystop.mechanisms import MECHANISMS
        >>> MECHANISMS.make("dystop", neighbours=3).neighbours
        3
        """
        if name not in self:
            raise ConfigError(f"{self.what} {name!r} is unknown{self.hint(name)}")
        kind: Any = self[name]
        known = [field.name for field in _fields(kind)]
        for key in options:
            if key not in known:
                has = f"; it has {', '.join(known) or 'no parameters'}"
                close = nearest(key, known) or has
                raise ConfigError(f"{self.what} {name!r} has no parameter {key!r}{close}")
        made: T = kind(**options)
        check_bounds(made, name)
        return made

    def having(self, parameter: str) -> Iterator[str]:
        """Yield the names of the parts that have a parameter; broken plug-ins are left out."""
        for name in self:
            with suppress(DystopError):
                if parameter in (field.name for field in _fields(self[name])):
                    yield name

    def hint(self, name: str) -> str:
        """Return what to say behind an unknown name: the closest one, or all."""
        return nearest(name, self) or f"; there are: {', '.join(self)}"

    def load(self, path: str, folder: str = "") -> type[T]:
        """Import a class of the user; from then on its `name` is known.

        Args:
            path: "package.module:Class".
            folder: Where the module lies; empty: where Python finds it.

        Raises:
            ConfigError: If it cannot be imported, or is no part of this kind.
            UserCodeError: If its import or its construction raises an error.
        """
        who = f"{self.what} = {path!r}"
        kind = self._checked(who, import_object(self.what, path, folder, self.expected))
        if any(field.name == "folder" for field in _fields(kind)):
            raise ConfigError(
                f"{who}: {self.what}.folder is the folder of its file; rename its `folder`"
            )
        known = self._own.get(kind.name)
        if known is None and kind.name in self:
            if self[kind.name] is not kind:
                raise ConfigError(
                    f"{who}: a {self.what} called {kind.name!r} is installed; change the class "
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

    def named(self, kind: type[T]) -> dict[str, str]:
        """Return how a configuration names a class: by its name, or by import path and folder."""
        own = self._own.get(kind.name)
        if own is None or own.kind is not kind:
            return {"name": kind.name}
        return {"name": own.path, **({"folder": own.folder} if own.folder else {})}

    def problems(self) -> dict[str, str]:
        """Return the reason for each plug-in that cannot be used."""
        out = {}
        for name, points in sorted(self._plugins.items()):
            if name in self.built_in:
                out[name] = (
                    f"{self._who(name, points)}: a built-in {self.what} has this name; choose "
                    "another"
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
        for point in entry_points(group=self.group):
            known = found.setdefault(point.name, [])
            if all(_origin(point) != _origin(other) for other in known):
                known.append(point)
        return found

    def _imported(self, name: str, points: list[EntryPoint]) -> type[T]:
        """Import one plug-in and check its class."""
        who = self._who(name, points)
        if len(points) > 1:
            raise ConfigError(f"{who}: two packages claim one name; uninstall one of them")
        choose(points[0].module)
        try:
            found = points[0].load()
        except Exception as error:  # user code may raise anything
            if place := place_of(error):
                raise UserCodeError(
                    f"{place}: {summary(error)}; {who} cannot be imported"
                ) from error
            raise ConfigError(
                f"{who}: cannot be imported ({summary(error)}); repair or uninstall it"
            ) from error
        kind = self._checked(who, found)
        if kind.name != name:
            raise ConfigError(
                f"{who}: class variable `name` is {kind.name!r}; it must equal the name of the "
                "entry point"
            )
        return kind

    def _checked(self, who: str, found: Any) -> type[T]:
        """Return a class of somebody else if it is a part that configurations can name."""
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise ConfigError(f"{who}: {found!r} is not a subclass of dystop.{self.base.__name__}")
        kind: Any = found
        if missing := [name for name in self._needs if not hasattr(kind, name)]:
            raise ConfigError(f"{who} lacks the class variable `{missing[0]}`; {self.expected}")
        if not (isinstance(kind.name, str) and _NAME.fullmatch(kind.name)):
            raise ConfigError(
                f"{who}: class variable `name` is {kind.name!r}; expected letters, digits, - and "
                "_, which folders and reports show"
            )
        if any(isinstance(value, Field) for value in vars(kind).values()):
            raise ConfigError(
                f"{who} has parameters but is no dataclass: write @dataclass(frozen=True)"
            )
        try:
            kind()
        except Exception as error:
            raise blamed(error) or ConfigError(
                f"{who} could not be made: {summary(error)}; {self.expected}"
            ) from error
        checked: type[T] = kind
        return checked

    def _who(self, name: str, points: list[EntryPoint]) -> str:
        return f"{self.what} {name!r} from {' and '.join(map(_origin, points))}"


def _fields(kind: Any) -> tuple[Field[Any], ...]:
    return fields(kind) if is_dataclass(kind) else ()


def _origin(point: EntryPoint) -> str:
    """Return package and class of an entry point, as in `my-idea (my_idea:MyIdea)`."""
    package = point.dist.name if point.dist is not None else "an unknown package"
    return f"{package} ({point.value})"


@dataclass(frozen=True, eq=False)
class NameIn:
    """Says of a text in a configuration that it is the name of a part.

    Write `name: Annotated[str, NameIn(LAWS)]`; `options: Any = options_of("name", ...)` beside it
    holds the parameters of the part, and `chosen` returns it.
    """

    registry: Registry[Any]
    also: str = ""  # what else it may be, for messages, as in " or FILE.npz"
    fits: Callable[[str], bool] = lambda name: False  # whether a text is such another thing

    def allowed(self) -> str:
        """Say in words what it may be."""
        return f"one of {', '.join(map(repr, self.registry))}{self.also}"


OR_NONE = " or none"
"""What else the key of a part may be that need not be there: `NameIn(CODECS, OR_NONE, is_none)`."""


def is_none(name: str) -> bool:
    """Return whether a key says that there is no such part."""
    return name == "none"


def options_of(by: str, meaning: str) -> Any:
    """Declare a field that holds the part which the field `by` names; None: with its defaults."""
    return field(default=None, metadata={"meaning": meaning, "by": by})


def name_in(kind: type, by: str) -> NameIn:
    """Return where the names of a field are looked up."""
    hint = get_type_hints(kind, include_extras=True)[by]
    return next(item for item in get_args(hint) if isinstance(item, NameIn))


def chosen(section: Any, by: str) -> Any:
    """Return the part that the field `by` of a section names, with the section's options.

    Raises:
        ConfigError: There is no such part, or the options are those of another one.
    """
    registry, name = name_in(type(section), by).registry, getattr(section, by)
    if section.options is None:
        return registry.make(name)
    if not isinstance(section.options, registry.get(name, ())):
        raise ConfigError(
            f"options = {section.options!r} are not those of {registry.what} {name!r}"
        )
    return section.options
