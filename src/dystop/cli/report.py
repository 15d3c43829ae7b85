"""`dystop report` and `dystop animate`, and the summary at the end of a run."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.terminal import echo, handle_errors, show_table

if TYPE_CHECKING:
    from dystop.experiments.run_folder import RunData


def write(runs: Sequence["RunData"], out: Path, target: float | None) -> Path:
    """Write the report of some runs; return its HTML page."""
    from dystop.report import write_report

    return write_report(runs, out, target=target).html


def show_summary(runs: Sequence["RunData"], target: float | None = None) -> None:
    """Show the summary table of the report: one run as rows, several runs as columns."""
    from dystop.report import summary_rows
    from dystop.report.data.notices import notices

    for sentence in notices(runs):
        echo(f"note: {sentence}", colour="yellow", err=True)
    rows = summary_rows(runs, target)
    names = list(rows[0])
    if len(rows) == 1:
        show_table(("", ""), rows[0].items())
    else:
        show_table(("", *(row[names[0]] for row in rows)), _transposed(rows, names[1:]))


def _transposed(rows: Sequence[dict[str, str]], names: Sequence[str]) -> list[list[str]]:
    """Return one line per quantity with one column per run; runs are few, quantities many."""
    return [[name, *(row[name] for row in rows)] for name in names]


def _default_out(runs: Sequence[Path]) -> Path:
    return runs[0] / "report" if len(runs) == 1 else Path("report")


def _without_repeats(runs: Sequence[Path]) -> list[Path]:
    """Return each folder once, also if several spellings name it."""
    once: dict[str, Path] = {}
    again: dict[Path, None] = {}
    for path in runs:
        place = os.path.realpath(path)
        if place in once:
            again[once[place]] = None
        once.setdefault(place, path)
    if again:
        names = ", ".join(map(str, again))
        echo(f"note: named more than once, shown once: {names}", colour="yellow", err=True)
    return list(once.values())


def _without_studies(paths: Sequence[Path]) -> list[Path]:
    """Return the folders without the studies among them; `runs/*` names both."""
    from dystop.errors import RunFolderError, shell_command
    from dystop.experiments.run_folder import is_study

    runs = [path for path in paths if not is_study(path)]
    studies = [path for path in paths if path not in runs]
    if not studies:
        return runs
    names, command = ", ".join(map(str, studies)), shell_command("report", studies[0])
    if not runs:
        raise RunFolderError(f"{names}: each study has its own page; report one with: {command}")
    echo(
        f"note: studies are skipped, each has its own page: {names}; report one with: {command}",
        colour="yellow",
        err=True,
    )
    return runs


@handle_errors
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Run folders, or one study.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the report; default: in the run or study, or ./report for several."
        ),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(help="Accuracy whose time and cost are compared, up to 1."),
    ] = None,
) -> None:
    """Write an HTML report with figures from one run or several.

    Runs that are running or were interrupted are shown with the rounds they have. A study is a
    comparison or a sweep; its report may also be incomplete. Among several folders, studies are
    skipped.
    """
    from dystop.experiments.run_folder import is_study, open_run

    runs = _without_repeats(runs)
    if len(runs) == 1 and is_study(runs[0]):
        from dystop.cli.atlas import report_atlas
        from dystop.cli.study import report_study
        from dystop.experiments.folder_kinds import ATLAS, study_kind

        if study_kind(runs[0]) is ATLAS:
            report_atlas(runs[0], target, out=out, quiet=False)
            return
        report_study(runs[0], target, out=out, quiet=False)
        return
    runs = _without_studies(runs)
    data = [open_run(path) for path in runs]
    page = write(data, out or _default_out(runs), target)
    show_summary(data, target)
    echo(f"report: {page}")


@handle_errors
def animate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, as in runs/NAME.")],
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", help="File of the picture; default: RUN/animation.svg."),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to show, from the first.")] = 60,
    seconds: Annotated[
        float, typer.Option(min=1.0, help="Length of the picture until it repeats.")
    ] = 16.0,
) -> None:
    """Draw a moving picture of a run: workers, models on their way, staleness and accuracy.

    The picture is one SVG file that every browser plays; it needs no script and no network. Links
    must have been recorded, which they are by default for small fleets (output.topology=full).
    """
    from dystop.experiments.run_folder import open_run
    from dystop.report.figures.animation import animation
    from dystop.storage import write_atomic

    picture = animation(open_run(run), rounds=rounds, length_s=seconds)
    path = out or run / "animation.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda file: file.write_text(picture, encoding="utf-8"))
    echo(f"animation: {path}")
