"""`dystop gap`: how far simulated and real are apart."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.handle_errors import handle_errors
from dystop.cli.output import console, echo, show_table

if TYPE_CHECKING:
    from dystop.experiments.gap import GapReport, OnRound


@handle_errors
def gap(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a testbed run.")],
    json_file: Annotated[
        str | None,
        typer.Option("--json", metavar="FILE", help="Write all numbers here too; -: print them."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Hold the simulator against a run of the testbed.

    The run is played back and simulated; RUN/gap/ gets a page, figures and gap.json.
    """
    _check_target(json_file)
    from dystop.experiments.gap import gap_of, to_tree
    from dystop.report.pages.gap import write_gap

    printed = json_file == "-"
    with _progress(quiet or printed) as on_round:
        found = gap_of(run, on_round)
    page = write_gap(found, run / "gap").html
    text = json.dumps(to_tree(found), indent=1, allow_nan=False)
    for path in [str(run / "gap" / "gap.json"), *([json_file] if json_file else [])]:
        _write(path, text)
    if not quiet and not printed:
        _show(found)
        echo(f"report: {page}")


def _check_target(json_file: str | None) -> None:
    """Refuse a file that cannot be written before an hour of work, not after it."""
    from dystop.errors import ConfigError

    if json_file not in (None, "-") and not Path(str(json_file)).parent.is_dir():
        raise ConfigError(
            f"command line: --json {json_file}; expected a file in a folder that exists, or -"
        )


def _write(target: str, text: str) -> None:
    from dystop.errors import StorageError

    if target == "-":
        echo(text)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{target}: could not be written: {error.strerror}") from None


@contextmanager
def _progress(quiet: bool) -> Iterator["OnRound"]:
    """A bar over the rounds of each simulation, on a terminal only."""
    from rich.progress import Progress

    with Progress(
        console=console(), transient=True, disable=quiet or not sys.stdout.isatty()
    ) as bar:
        tasks = {what: bar.add_task(what, total=None) for what in ("replay", "simulation")}
        yield lambda what, done, all_: bar.update(tasks[what], completed=done, total=all_)


def _show(found: "GapReport") -> None:
    from dystop.report.pages.gap import COLUMNS, PREDICTIONS, comparison, predictions

    show_table(COLUMNS[:-1], [row[:-1] for row in comparison(found)])
    show_table(PREDICTIONS[:-1], [row[:-1] for row in predictions(found)])
