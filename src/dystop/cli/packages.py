"""Commands that installed packages add to `dystop`.

A package announces a command by an entry point whose object is a `typer.Typer`:

    [project.entry-points."dystop.commands"]
    weigh = "my_package.weighing:app"

Its module is imported when the command runs and when `dystop --help` lists it. A built-in command
keeps its name.
"""

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer

from dystop.cli.help_examples import examples_at_end

GROUP = "dystop.commands"


def command(function: Callable[..., None], *examples: str) -> typer.Typer:
    """Return what an entry point names: a command, with examples at the end of its help."""
    app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
    app.command(epilog=examples_at_end(examples) if examples else None)(function)
    return app


@cache
def announced() -> dict[str, EntryPoint]:
    """Return the commands of installed packages by name; imports none of them."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), reverse=True)}


@cache
def loaded(name: str) -> Any:
    """Return a command of a package; where it is broken, one that says so."""
    entry = announced()[name]
    try:
        found = typer.main.get_command(entry.load())
    except Exception as error:  # code of a package
        found = typer.main.get_command(command(_broken(entry, error)))
    found.name = name
    return found


def _broken(entry: EntryPoint, error: Exception) -> Callable[[], None]:
    package = entry.dist.name if entry.dist else entry.value
    said = f"cannot be loaded from {package}: {type(error).__name__}: {error}"

    def broken() -> None:
        typer.echo(f"dystop: {entry.name} {said}", err=True)
        raise typer.Exit(4)

    broken.__doc__ = said.capitalize()
    return broken
