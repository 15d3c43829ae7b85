"""How a command ends: one message and the right exit code, whatever went wrong."""

import functools
import os
import traceback
from collections.abc import Callable
from typing import ParamSpec

import typer

from dystop.cli.output import echo
from dystop.errors import DystopError, StorageError
from dystop.experiments.interrupts import Terminated, sigterm_raises

INTERRUPTED, TERMINATED = 130, 143
P = ParamSpec("P")


class Interrupted(Exception):
    """A run was stopped from outside after saving; carries the one line to print."""

    def __init__(self, line: str, code: int) -> None:
        super().__init__(line)
        self.code = code


def complain(message: str, *, colour: str = "red") -> None:
    """One message on stderr; colour only where a person is looking."""
    echo(message, colour=colour, err=True)


def code_of(interrupt: KeyboardInterrupt) -> int:
    """Exit code by convention: 128 plus the number of the signal."""
    return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED


def _show_place(error: BaseException) -> bool:
    """Where it happened, for whoever has asked to see it."""
    asked = os.environ.get("DYSTOP_DEBUG") == "1"
    if asked:
        traceback.print_exception(error)
    return asked


def _ending(error: BaseException) -> int:
    """Say what happened; returns the exit code."""
    match error:
        case DystopError():
            complain(f"Error: {error}")
            return error.exit_code
        case Interrupted():
            complain(str(error), colour="yellow")
            return error.code
        case KeyboardInterrupt():
            complain("interrupted", colour="yellow")
            return code_of(error)
        case OSError(filename=str(place), strerror=str(why)):
            complain(f"Error: {place}: {why}; check that you may read and write there")
            _show_place(error)
            return StorageError.exit_code
        case _:
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            complain(f"Unexpected error: {what}")
            if not _show_place(error):
                complain("This is a bug in dystop. DYSTOP_DEBUG=1 shows where it happened.")
            return 1


def handle_errors(command: Callable[P, None]) -> Callable[P, None]:
    """End a command with one message instead of a traceback."""

    @functools.wraps(command)
    def safe(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with sigterm_raises():
                command(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except (Exception, KeyboardInterrupt) as error:
            raise typer.Exit(_ending(error)) from None

    return safe
