"""`dystop list`: parts by name, configuration keys and readings of the paper."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dystop.cli.options import REGISTRIES, registry_of
from dystop.cli.terminal import complain, handle_errors, show_table

if TYPE_CHECKING:
    from dystop.config.keys import Key
    from dystop.config.readings import OpenReading
    from dystop.types import Mechanism


@dataclass(frozen=True)
class Listing:
    """A table of names, and what to say below it."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    remarks: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def show(self) -> None:
        """Print the table."""
        show_table(self.columns, self.rows)
        for remark in self.remarks:
            typer.echo(remark)
        for warning in self.warnings:
            complain(warning, colour="yellow")

    def show_json(self) -> None:
        """Print one object per row, for other programs."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))


def provenance(mechanism: "Mechanism") -> str:
    """Return the provenance of a mechanism, with a clear mark for a reconstruction."""
    from dystop.types import provenance_of

    if mechanism.provenance == "reconstruction":
        return "RECONSTRUCTION (no published code or full description)"
    return provenance_of(mechanism)


def _default(value: Any) -> str:
    from dystop.config.write import toml_value

    return "unset" if value is None else toml_value(value)


def _keys(keys: Iterable["Key"], *remarks: str) -> Listing:
    rows = [(k.name, _default(k.default), k.allowed, k.meaning) for k in keys]
    return Listing(("key", "default", "allowed", "meaning"), rows, remarks)


@dataclass(frozen=True)
class Shown:
    """What is shown of each part of a kind, by columns; the first one is its name."""

    columns: Sequence[str]
    row: Callable[[Any], Sequence[str]]
    remark: str = ""


def _mechanism_row(kind: "type[Mechanism]") -> tuple[str, ...]:
    made = kind()
    return kind.name, made.capabilities().mode, provenance(made), kind.summary


_SHOWN = {
    "mechanisms": Shown(
        ("mechanism", "mode", "provenance", "summary"),
        _mechanism_row,
        "or a class of your own: mechanism.name=package.module:Class",
    ),
    "models": Shown(
        ("model", "smallest image", "summary"),
        lambda kind: (kind.name, str(kind.minimal_side or ""), kind.summary),
        "or your own function: model.name=package.module:factory",
    ),
    "tasks": Shown(
        ("task", "score", "summary"),
        lambda kind: (kind.name, kind.score_name, kind.summary),
        "task.name=auto takes that of the data set; or your own: task.name=package.module:Task",
    ),
    "datasets": Shown(
        (
            "data set",
            "channels x height x width (or features, or tokens)",
            "classes",
            "train / test",
            "task",
            "licence",
            "summary",
        ),
        lambda kind: kind().row(),
        "or your own file: data.name=FILE.npz",
    ),
}


_KEYS = {
    "mechanisms": ("mechanism.name", "mechanism"),
    "models": ("model.name", ""),
    "tasks": ("task.name", ""),
}


def _shown(what: str) -> Shown:
    columns = (registry_of(what).what, "summary")
    return _SHOWN.get(what) or Shown(columns, lambda kind: (kind.name, kind.summary))


def _parts(what: str) -> Listing:
    found, shown = registry_of(what), _shown(what)
    rows = [shown.row(kind) for kind in found.usable().values()]
    left_out = [f"left out: {problem}" for problem in found.problems().values()]
    return Listing(shown.columns, rows, [shown.remark] if shown.remark else [], left_out)


def _describe_part(what: str, name: str) -> None:
    """Show a part, its keys, and how a run is told to use it."""
    from dystop.config.keys import is_section, keys_of

    found, shown = registry_of(what), _shown(what)
    kind, (key, options) = found[name], _keys_of_kind(what)
    typer.echo(f"{name}: {kind.summary}")
    for column, cell in zip(shown.columns, shown.row(kind), strict=True):
        if cell not in (name, kind.summary):
            typer.echo(f"  {column}: {cell}")
    if names := getattr(kind, "class_names", ()):
        typer.echo(f"  class names: {', '.join(names)}")
    if options and is_section(kind):
        _keys(keys_of(kind, f"{options}.")).show()
    command = "testbed" if key.startswith("testbed.") else "run"
    typer.echo(f"  dystop {command} {key}={found.named(kind)['name']}")


def _keys_of_kind(what: str) -> tuple[str, str]:
    """Return the key that names a part of this kind, and the table of its parameters."""
    from dystop.config.experiment import NAMED_PARTS

    if what in _KEYS:
        return _KEYS[what]
    found = registry_of(what)
    return next((p.key, p.options) for p in NAMED_PARTS if p.names.registry is found)


def _every_key() -> Listing:
    from dystop.config import every_key

    return _keys(
        every_key(),
        "mechanism.* are the keys of dystop; 'dystop list mechanisms NAME' shows others",
    )


def _described_keys() -> "dict[str, Key]":
    """Return every key, those of the paper's mechanisms included."""
    from dystop.config import every_key

    names = ("asydfl", "matcha", "dystop")
    return {key.name: key for name in names for key in every_key(name)}


def _readings() -> Listing:
    from dystop.config.readings import OPEN_READINGS, PRESETS

    keys = _described_keys()
    rows = [
        (
            r.key,
            *(_default(v) if v is not None else "" for v in _values(r, keys)),
            ", ".join(map(str, r.values)),
            keys[r.key].meaning,
        )
        for r in OPEN_READINGS
    ]
    words = " or ".join(f"reading={name}" for name in PRESETS)
    remarks = [
        f"use one with {words}; a key that is given wins",
        "keys without a value keep their default",
    ]
    return Listing(("key", "default", *PRESETS, "plausible", "meaning"), rows, remarks)


def _values(reading: "OpenReading", keys: "dict[str, Key]") -> tuple[Any, ...]:
    return keys[reading.key].default, reading.literal, reading.physical


def _describe_reading(name: str) -> None:
    from dystop.config.readings import OPEN_READINGS

    for reading in OPEN_READINGS:
        if (value := getattr(reading, name)) is not None:
            typer.echo(f"{reading.key} = {_default(value)}")
    typer.echo(f"  dystop run reading={name}")


def _describe_key(name: str) -> None:
    from dystop.config import every_key

    if name.endswith("."):
        _keys(key for key in every_key() if key.name.startswith(name)).show()
        return
    key = next(k for k in every_key() if k.name == name)
    typer.echo(f"{key.name}: {key.meaning}")
    typer.echo(f"  default: {_default(key.default)}   allowed: {key.allowed}")


def _names(what: str) -> list[str]:
    match what:
        case "keys":
            from dystop.config import every_key

            return [key.name for key in every_key()]
        case "readings":
            from dystop.config.readings import PRESETS

            return list(PRESETS)
    return list(registry_of(what))


def _checked(what: str, name: str) -> str:
    from dystop.errors import ConfigError, nearest

    if what == "mechanisms" and ":" in name:
        from dystop.config.read import mechanism_name

        return mechanism_name(name)
    names = _names(what)
    if name in names:
        return name
    section = f"{name.removesuffix('.')}."
    if what == "keys" and any(key.startswith(section) for key in names):
        return section
    shown = dict.fromkeys(key.partition(".")[0] for key in names) if what == "keys" else names
    hint = nearest(name, [*names, *shown]) or f"; there are: {', '.join(shown)}"
    raise ConfigError(f"command line: {name}: no such name in {what}{hint}")


_LISTS: dict[str, Callable[[], Listing]] = {
    **{what: partial(_parts, what) for what in REGISTRIES},
    "keys": _every_key,
    "readings": _readings,
}
_DESCRIBE: dict[str, Callable[[str], None]] = {
    **{what: partial(_describe_part, what) for what in REGISTRIES},
    "keys": _describe_key,
    "readings": _describe_reading,
}


def _known(what: str) -> str:
    if what not in _LISTS:
        raise typer.BadParameter(f"{what!r} is not one of {', '.join(_LISTS)}")
    return what


@handle_errors
def catalogue(
    what: Annotated[
        str,
        typer.Argument(
            metavar="KIND",
            help=f"What to list: {', '.join(_LISTS)}.",
            callback=_known,
            autocompletion=lambda: list(_LISTS),
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="Describe one of them, or the keys of a section."),
    ] = None,
    describe: Annotated[
        str | None, typer.Option(metavar="NAME", help="The same as NAME.", hidden=True)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the whole list as JSON, for other programs.")
    ] = False,
) -> None:
    """List parts of a kind, keys, or readings of the paper."""
    chosen = name or describe
    if chosen is not None and as_json:
        raise typer.BadParameter("--json prints whole lists; leave NAME out")
    if chosen is not None:
        _DESCRIBE[what](_checked(what, chosen))
    elif as_json:
        _LISTS[what]().show_json()
    else:
        _LISTS[what]().show()
