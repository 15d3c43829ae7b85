"""Words on the terminal that never end the work: whoever reads them may leave before its end."""

import os
import sys

import typer


def say(text: str, *, colour: str | None = None, nl: bool = True, err: bool = False) -> None:
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
