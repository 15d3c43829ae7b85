"""`dystop gap`: a recorded testbed run against the simulator."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.options import Quiet, Trust, names_of
from dystop.cli.progress import round_bars
from dystop.cli.terminal import echo, handle_errors, show_table

if TYPE_CHECKING:
    from dystop.studies.gap import GapReport


@handle_errors
def gap(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a testbed run.")],
    json_file: Annotated[
        str | None,
        typer.Option(
            "--json", metavar="FILE", help="Also write all numbers to FILE; -: print them."
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option(
            "--train/--no-train",
            help="Train models in both simulations; without it, times and plans are compared.",
        ),
    ] = True,
    timing: Annotated[
        str,
        typer.Option(
            metavar="LAW",
            help="Timing law of the simulation ('dystop list laws'); workers follow testbed.",
            autocompletion=names_of("laws"),
        ),
    ] = "testbed",
    quiet: Quiet = False,
    trust: Trust = False,
) -> None:
    """Compare the simulator with a run of the testbed.

    Replays and simulates the run, and writes a page, figures and gap.json to RUN/gap/. A run that
    was interrupted is compared as far as it got. A further column simulates with the time that the
    machines added to transfers and rounds. If engine.timing of the run is another law, one more
    shows what that law would give.
    """
    _check_json_file(json_file)
    from dystop.report.pages.gap import write_gap
    from dystop.studies.gap import TASKS, gap_of, to_tree

    printed = json_file == "-"
    with round_bars(quiet or printed, *TASKS) as on_round:
        found = gap_of(run, on_round, train=train, law=timing)
    page = write_gap(found, run / "gap").html
    text = json.dumps(to_tree(found), indent=1, allow_nan=False)
    for path in [str(run / "gap" / "gap.json"), *([json_file] if json_file else [])]:
        _write_text(path, text)
    if not quiet and not printed:
        _show_gap(found)
        echo(f"report: {page}")


def _check_json_file(json_file: str | None) -> None:
    """Refuse a file that cannot be written before the work begins."""
    from dystop.errors import ConfigError

    if json_file not in (None, "-") and not Path(str(json_file)).parent.is_dir():
        raise ConfigError(
            f"command line: --json {json_file}; expected a file in a folder that exists, or -"
        )


def _write_text(target: str, text: str) -> None:
    from dystop.errors import StorageError
    from dystop.storage import write_atomic

    if target == "-":
        echo(text)
        return
    try:
        write_atomic(Path(target), f"{text}\n".encode(), durable=False)
    except OSError as error:
        raise StorageError(f"{target}: cannot be written: {error.strerror}") from None


def _show_gap(found: "GapReport") -> None:
    from dystop.report.pages.gap import (
        PREDICTIONS,
        columns,
        comparison,
        law_text,
        overhead_text,
        predictions,
    )

    show_table(columns(found)[:-1], [row[:-1] for row in comparison(found)])
    echo(law_text(found))
    echo(overhead_text(found))
    show_table(PREDICTIONS[:-1], [row[:-1] for row in predictions(found)])
