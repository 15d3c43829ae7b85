"""Tables on the terminal, by rich; plain text where no one is looking."""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dystop.cli.say import say

if TYPE_CHECKING:
    from rich.console import Console

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
    say(shown.get(), nl=False)
