"""The terminal: text, tables, and how a command ends.

Output never ends the work: a reader such as `head` may close the pipe before the command is done.
"""

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, ParamSpec

import typer

from dystop.errors import DystopError, StorageError
from dystop.folders.trust import trusting
from dystop.runs.interrupts import Terminated, sigterm_raises
from dystop.user_code import blamed

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

INTERRUPTED, TERMINATED = 130, 143  # exit codes: 128 plus the number of the signal
_PLAIN_WIDTH = 160
_SHORT = 28  # characters of a line that a table never breaks
_PADDING = 3  # of a column, with what divides it from the next
P = ParamSpec("P")


def echo(text: str, *, colour: str | None = None, nl: bool = True, err: bool = False) -> None:
    """Print a text. Once nobody reads the stream any more, print nothing and raise nothing.

    Args:
        text: What to print.
        colour: Its colour, used on a terminal only.
        nl: Whether to end the line.
        err: Print to stderr instead of stdout.
    """
    try:
        typer.echo(typer.style(text, fg=colour) if colour else text, nl=nl, err=err)
    except BrokenPipeError:
        _discard("stderr" if err else "stdout")


def note(sentence: str) -> None:
    """Print a remark that is not an error."""
    echo(f"note: {sentence}", colour="yellow", err=True)


def _discard(name: str) -> None:
    """Send a stream to the null device, because Python flushes it once more at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, getattr(sys, name).fileno())
    except (OSError, ValueError):  # the stream is not a file of the system: replace it
        setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - lives as long as the process
    finally:
        os.close(null)


def console() -> "Console":
    """Return a console on stdout; a pipe gets a fixed width, whatever the terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PLAIN_WIDTH, highlight=False)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; the text of a cell is never read as markup.

    A table that would have to break a name or a value is printed as a list, row by row. A pipe gets
    a table as wide as it needs.
    """
    body = [list(row) for row in rows]
    screen, needed = console(), _least_width(columns, body)
    if needed > screen.width and sys.stdout.isatty():
        _show_list(columns, body)
        return
    screen.width = max(screen.width, needed)
    with screen.capture() as shown:
        screen.print(_table(columns, body, screen.width))
    echo(shown.get(), nl=False)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    has_header = any(columns)
    table = Table(box=box.SIMPLE if has_header else None, show_header=has_header)
    for column, own in zip(columns, _widths(columns, rows, width), strict=True):
        table.add_column(column, overflow="fold", width=own)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], total: int) -> list[int]:
    """Return the widths of columns: as wide as they are, or else the longest give way."""
    least = [_unbroken(column, rows, k) for k, column in enumerate(columns)]
    whole = [max([len(column), *_line_lengths(rows, k)]) for k, column in enumerate(columns)]
    spare = total - _PADDING * len(columns) - 1 - sum(least)
    asked = sum(whole) - sum(least)
    if asked <= spare:
        return whole
    return [
        low + (high - low) * max(spare, 0) // asked for low, high in zip(least, whole, strict=True)
    ]


def _line_lengths(rows: Sequence[Sequence[str]], k: int) -> list[int]:
    return [len(line) for row in rows for line in row[k].split("\n")]


def _unbroken(column: str, rows: Sequence[Sequence[str]], k: int) -> int:
    """Return the width at which a column breaks neither a word nor a short line."""
    lines = [line for row in rows for line in row[k].split("\n")]
    short = [line for line in lines if len(line) <= _SHORT]
    words = [word for line in [column, *lines] for word in line.split()]
    return max(map(len, [*short, *words]), default=0)


def _least_width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    return sum(_unbroken(column, rows, k) + _PADDING for k, column in enumerate(columns)) + 1


def _show_list(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print every row as a block: its first cell, and below it a line for each of the others."""
    titles = columns[1:]
    width = max(map(len, titles), default=0)
    for first, *cells in rows:
        echo(first)
        for title, cell in zip(titles, cells, strict=True):
            text, *more = cell.split("\n")
            remark = f" ({', '.join(more)})" if more else ""
            echo(f"  {title:<{width}}  {text}{remark}")


class Interrupted(Exception):
    """A signal has stopped a run that was saved; the message says how to resume it."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def exit_code_of(interrupt: KeyboardInterrupt) -> int:
    """Return the exit code by convention: 128 plus the number of the signal."""
    return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED


def complain(message: str, *, colour: str = "red") -> None:
    """Print a message to stderr, in colour on a terminal only."""
    echo(message, colour=colour, err=True)


def handle_errors(command: Callable[P, None]) -> Callable[P, None]:
    """End a command with one message and the right exit code instead of a traceback.

    Its option `--trust` holds until it ends.
    """

    @functools.wraps(command)
    def safe(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with sigterm_raises(), trusting(bool(kwargs.get("trust"))):
                command(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except (Exception, KeyboardInterrupt) as error:
            raise typer.Exit(_report_error(error)) from None

    return safe


def _report_error(error: BaseException) -> int:
    """Print what happened; return the exit code."""
    match error:
        case DystopError():
            complain(f"Error: {error}")
            if error.__cause__ is not None:
                _print_traceback_if_asked(error)
            return error.exit_code
        case Interrupted():
            complain(str(error), colour="yellow")
            return error.exit_code
        case KeyboardInterrupt():
            complain("interrupted", colour="yellow")
            return exit_code_of(error)
        case Exception() if (named := blamed(error)) is not None:
            complain(f"Error: {named}")
            _print_traceback_if_asked(error)
            return named.exit_code
        case OSError(filename=str(path), strerror=str(reason)):
            complain(f"Error: {path}: {reason}; check that you may read and write there")
            _print_traceback_if_asked(error)
            return StorageError.exit_code
        case _:
            description = f"{type(error).__name__}: {error}".rstrip(": ")
            complain(f"Unexpected error: {description}")
            if not _print_traceback_if_asked(error):
                complain("This is a bug in dystop. DYSTOP_DEBUG=1 shows where it happened.")
            return 1


def _print_traceback_if_asked(error: BaseException) -> bool:
    """Print the traceback if DYSTOP_DEBUG=1; return whether it was printed."""
    asked = os.environ.get("DYSTOP_DEBUG") == "1"
    if asked:
        traceback.print_exception(error)
    return asked
