"""Words on the terminal that never end the work: whoever reads them may leave before its end."""

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console


def echo(text: str, *, colour: str | None = None, nl: bool = True, err: bool = False) -> None:
    """Print a text; once nobody reads that stream any more, nothing is printed and nothing raised.

    Args:
        text: What to print.
        colour: Its colour, where a person is looking.
        nl: Whether a line ends after it.
        err: To stderr instead of stdout.
    """
    try:
        typer.echo(typer.style(text, fg=colour) if colour else text, nl=nl, err=err)
    except BrokenPipeError:
        _hush("stderr" if err else "stdout")


def _hush(name: str) -> None:
    """Send a stream nowhere, with what it still holds: Python flushes it once more at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, getattr(sys, name).fileno())
    except (OSError, ValueError):  # not a file of the system: put another in its place
        setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - lives as long as the process
    finally:
        os.close(nowhere)


# MERGED: Tables on the terminal, by rich; plain text where no one is looking.


_PLAIN_WIDTH = 160


def console() -> "Console":
    """Console on stdout; a pipe gets a fixed width, so that nothing depends on the terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print one table; text is shown as it is, never read as markup."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    headed = any(columns)
    style = box.SIMPLE if headed else None
    table = Table(box=style, show_header=headed)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    screen = console()
    with screen.capture() as shown:
        screen.print(table)
    echo(shown.get(), nl=False)
