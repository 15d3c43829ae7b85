"""`dystop list`: parts by name, configuration keys and readings of the paper."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dystop.cli.options import registry_of
from dystop.cli.terminal import complain, handle_errors, show_table

if TYPE_CHECKING:
    from dystop.experiments.config.keys import Key
    from dystop.experiments.config.readings import OpenReading
    from dystop.types import Mechanism


class What(StrEnum):
    """What can be listed."""

    mechanisms = "mechanisms"
    laws = "laws"
    models = "models"
    tasks = "tasks"
    datasets = "datasets"
    keys = "keys"
    readings = "readings"


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
    from dystop.experiments.config.write import toml_value

    return "unset" if value is None else toml_value(value)


def _keys(keys: Iterable["Key"], *remarks: str) -> Listing:
    rows = [(k.name, _default(k.default), k.allowed, k.meaning) for k in keys]
    return Listing(("key", "default", "allowed", "meaning"), rows, remarks)


def _mechanisms() -> Listing:
    from dystop.mechanisms import MECHANISMS

    kinds = MECHANISMS.usable().values()
    rows = [(k.name, k().capabilities().mode, provenance(k()), k.summary) for k in kinds]
    left_out = [f"left out: {problem}" for problem in MECHANISMS.problems().values()]
    own = "or a class of your own: mechanism.name=package.module:Class"
    return Listing(("mechanism", "mode", "provenance", "summary"), rows, [own], warnings=left_out)


def _laws() -> Listing:
    found = registry_of("laws")
    rows = [(name, kind.summary) for name, kind in found.usable().items()]
    left_out = [f"left out: {problem}" for problem in found.problems().values()]
    return Listing((found.what, "summary"), rows, warnings=left_out)


def _describe_law(name: str) -> None:
    from dystop.experiments.config.keys import is_section, keys_of

    kind = registry_of("laws")[name]
    typer.echo(f"{name}: {kind.summary}")
    if is_section(kind):
        _keys(keys_of(kind, "engine.options.")).show()
    typer.echo(f"  dystop run engine.timing={name}")


def _describe_mechanism(name: str) -> None:
    from dystop.experiments.config.keys import keys_of
    from dystop.mechanisms import MECHANISMS

    kind = MECHANISMS[name]
    typer.echo(f"{name}: {kind.summary}")
    typer.echo(f"  mode: {kind().capabilities().mode}   provenance: {provenance(kind())}")
    _keys(keys_of(kind, "mechanism.")).show()
    typer.echo(f"  dystop run mechanism.name={MECHANISMS.named(kind)['name']}")


def _models() -> Listing:
    from dystop.training.models.catalogue import MODELS

    rows = [(name, model.meaning) for name, model in MODELS.items()]
    own = "or your own function: model.name=package.module:factory"
    return Listing(("model", "summary"), rows, [own])


def _describe_model(name: str) -> None:
    from dystop.training.models.catalogue import MODELS

    entry = MODELS[name]
    typer.echo(f"{name}: {entry.meaning}")
    typer.echo(f"  smallest image: {entry.minimal_side or 1} pixels a side")
    typer.echo(f"  dystop run model.name={name}")


def _tasks() -> Listing:
    from dystop.training.tasks.catalogue import TASKS

    rows = [(name, task.score, task.meaning) for name, task in TASKS.items()]
    own = "task.name=auto takes that of the data set; or your own: task.name=package.module:Task"
    return Listing(("task", "score", "summary"), rows, [own])


def _describe_task(name: str) -> None:
    from dystop.training.tasks.catalogue import TASKS

    task = TASKS[name]
    typer.echo(f"{name}: {task.meaning}")
    typer.echo(f"  score: {task.score}")
    typer.echo(f"  dystop run task.name={name}")


_DATA_COLUMNS = (
    "data set",
    "channels x height x width (or features, or tokens)",
    "classes",
    "train / test",
    "task",
    "licence",
    "origin",
)


def _datasets() -> Listing:
    from dystop.data.catalogue import DATASETS

    rows = [kind().row() for kind in DATASETS.usable().values()]
    return Listing(_DATA_COLUMNS, rows, ["or your own file: data.name=FILE.npz"])


def _describe_dataset(name: str) -> None:
    from dystop.data.catalogue import DATASETS

    for column, cell in zip(_DATA_COLUMNS, DATASETS[name]().row(), strict=True):
        typer.echo(f"{column}: {cell}")
    if names := DATASETS[name].class_names:
        typer.echo(f"class names: {', '.join(names)}")
    typer.echo(f"  dystop run data.name={name}")


def _every_key() -> Listing:
    from dystop.experiments.config import every_key

    return _keys(
        every_key(),
        "mechanism.* are the keys of dystop; 'dystop list mechanisms NAME' shows others",
    )


def _described_keys() -> "dict[str, Key]":
    """Return every key, those of the paper's mechanisms included."""
    from dystop.experiments.config import every_key

    names = ("asydfl", "matcha", "dystop")
    return {key.name: key for name in names for key in every_key(name)}


def _readings() -> Listing:
    from dystop.experiments.config.readings import OPEN_READINGS, PRESETS

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
    return keys[reading.key].default, reading.literal, reading.physical, reading.nearest


def _describe_reading(name: str) -> None:
    from dystop.experiments.config.readings import OPEN_READINGS

    for reading in OPEN_READINGS:
        if (value := getattr(reading, name)) is not None:
            typer.echo(f"{reading.key} = {_default(value)}")
    typer.echo(f"  dystop run reading={name}")


def _describe_key(name: str) -> None:
    from dystop.experiments.config import every_key

    if name.endswith("."):
        _keys(key for key in every_key() if key.name.startswith(name)).show()
        return
    key = next(k for k in every_key() if k.name == name)
    typer.echo(f"{key.name}: {key.meaning}")
    typer.echo(f"  default: {_default(key.default)}   allowed: {key.allowed}")


def _names(what: What) -> list[str]:
    match what:
        case What.mechanisms | What.laws:
            return list(registry_of(what))
        case What.models:
            from dystop.training.models.catalogue import MODELS

            return list(MODELS)
        case What.tasks:
            from dystop.training.tasks.catalogue import TASKS

            return list(TASKS)
        case What.datasets:
            from dystop.data.catalogue import DATASETS

            return list(DATASETS)
        case What.keys:
            from dystop.experiments.config import every_key

            return [key.name for key in every_key()]
        case What.readings:
            from dystop.experiments.config.readings import NAMES

            return [name for name in NAMES if name != "none"]


def _checked(what: What, name: str) -> str:
    from dystop.errors import ConfigError, nearest

    if what is What.mechanisms and ":" in name:
        from dystop.experiments.config.read import mechanism_name

        return mechanism_name(name)
    names = _names(what)
    if name in names:
        return name
    section = f"{name.removesuffix('.')}."
    if what is What.keys and any(key.startswith(section) for key in names):
        return section
    shown = dict.fromkeys(key.partition(".")[0] for key in names) if what is What.keys else names
    hint = nearest(name, [*names, *shown]) or f"; there are: {', '.join(shown)}"
    raise ConfigError(f"command line: {name}: no such name in {what.value}{hint}")


_LISTS: dict[What, Callable[[], Listing]] = {
    What.mechanisms: _mechanisms,
    What.laws: _laws,
    What.models: _models,
    What.tasks: _tasks,
    What.datasets: _datasets,
    What.keys: _every_key,
    What.readings: _readings,
}
_DESCRIBE: dict[What, Callable[[str], None]] = {
    What.mechanisms: _describe_mechanism,
    What.laws: _describe_law,
    What.models: _describe_model,
    What.tasks: _describe_task,
    What.datasets: _describe_dataset,
    What.keys: _describe_key,
    What.readings: _describe_reading,
}


@handle_errors
def catalogue(
    what: Annotated[What, typer.Argument(help="What to list.")],
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
    """List mechanisms, timing laws, data sets and so on, keys, or readings of the paper."""
    chosen = name or describe
    if chosen is not None and as_json:
        raise typer.BadParameter("--json prints whole lists; leave NAME out")
    if chosen is not None:
        _DESCRIBE[what](_checked(what, chosen))
    elif as_json:
        _LISTS[what]().show_json()
    else:
        _LISTS[what]().show()
