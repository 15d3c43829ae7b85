"""`dystop examples`: list the examples that come with dystop, and copy them out."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from dystop.cli.terminal import echo, handle_errors, show_table
from dystop.errors import shell_command
from dystop.runs.examples import PREFIX, Example, copy_examples, find_example
from dystop.runs.examples import examples as every_example


def uses_of(example: Example, file: Path) -> list[str]:
    """Return the commands that run an example, whose file lies there, in order."""
    if example.commands:
        folder = shlex.quote(f"{file.parent}/")
        return [command.replace("examples/", folder) for command in example.commands]
    if example.kind == "configuration":
        return [shell_command("run", file)]
    program = ["jupyter", "notebook"] if example.kind == "notebook" else ["python"]
    return [shlex.join([*program, str(file)])]


@handle_errors
def examples(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Examples to copy; none: list them all."),
    ] = None,
    to: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder to copy to; created if missing.")
    ] = Path("examples"),
) -> None:
    """List the examples that come with dystop, or copy some of them into a folder.

    Every command that takes a configuration also takes example:NAME, without a copy. Files that an
    example needs are copied with it. A file of yours is never replaced.
    """
    if not names:
        show_table(("name", "file", "what it shows"), map(_row, every_example()))
        echo(f"run one: dystop run {PREFIX}quickstart      copy one: dystop examples quickstart")
        return
    chosen = [find_example(name.removeprefix(PREFIX)) for name in dict.fromkeys(names)]
    for path in copy_examples(chosen, to):
        echo(f"copied: {path}")
    for example in chosen:
        for command in uses_of(example, to / example.file.name):
            echo(f"use it: {command}")


def _row(example: Example) -> tuple[str, str, str]:
    return example.name, example.file.name, example.sentence
