"""`dystop report`, `animate` and `export`, and what a run or a study shows at its end."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.terminal import echo, handle_errors, note, show_table
from dystop.export import Format

if TYPE_CHECKING:
    from dystop.folders.run_folder import RunData
    from dystop.report.data.comparison.ranking import Ranking, TableColumn
    from dystop.report.data.comparison.study_results import StudyResults
    from dystop.report.data.groups import Group
    from dystop.studies.study import StudyOutline


def write(runs: Sequence["RunData"], out: Path, target: float | None) -> Path:
    """Write the report of some runs; return its HTML page."""
    from dystop.report import write_report

    return write_report(runs, out, target=target).html


def show_summary(
    runs: Sequence["RunData"], target: float | None = None, told: Sequence[str] = ()
) -> None:
    """Show the summary table of the report: one run as rows, several runs as columns.

    Args:
        runs: The runs.
        target: The accuracy of the rows about a target; chosen from the runs if not given.
        told: Parts of notices that the command prints elsewhere, and not here again.
    """
    from dystop.report import summary_rows
    from dystop.report.data.notices import notices

    for sentence in notices(runs):
        if not any(part and part in sentence for part in told):
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
    from dystop.folders.run_folder import is_study

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


def _begun(study: "StudyOutline") -> tuple[list[Path], list[str]]:
    """Return the runs that have begun, and a notice if some have not."""
    from dystop.errors import RunFolderError

    begun, planned = study.begun, len(study.folders)
    if not begun:
        raise RunFolderError(
            f"{study.path}: none of its {planned} runs has begun, so there is nothing to report; "
            f"run them with: {study.resume_command}"
        )
    if len(begun) == planned:
        return begun, []
    missing = f"{len(begun)} of {planned} runs have begun; the others are missing here"
    return begun, [f"{missing}; resume with: {study.resume_command}"]


def report_study(path: Path, target: float | None, *, out: Path | None = None, quiet: bool) -> None:
    """Write the report of a study, as far as it got, and show its ranking."""
    from dystop.folders.run_folder import open_run
    from dystop.report.pages.study import write_study
    from dystop.studies.other_law import read_other_law
    from dystop.studies.study import outline

    study = outline(path)
    begun, missing = _begun(study)
    runs, title = [open_run(folder) for folder in begun], path.resolve().name
    report = write_study(
        runs,
        out or path / "report",
        title=title,
        target=target,
        over=study.over,
        notices=missing,
        planned=read_other_law(path),
    )
    if quiet:
        return
    for sentence in report.results.notices:
        note(sentence)
    first_column = "setting" if study.over else "mechanism"
    for ranking in report.results.rankings:
        _show(ranking, first_column)
        _show_why(ranking, first_column, report.results)
    _show_both_laws(report.results)
    echo(report.results.target.reason)
    for sentence in (*report.results.headlines, report.results.order):
        if sentence:
            echo(sentence)
    echo(f"report: {report.files.html}")


def _show(ranking: "Ranking", first_column: str) -> None:
    """Show one ranking as a table: a line per mechanism or setting, best first."""
    echo(f"timing law: {ranking.law}; mean ± standard deviation over seeds")
    _show_columns(ranking.groups, first_column, ranking.results)


def _show_columns(
    groups: "Sequence[Group]", first_column: str, columns: "Sequence[TableColumn]"
) -> None:
    rows = [
        [group.label, *(_cell(c.cells[k].text, c.cells[k].note) for c in columns)]
        for k, group in enumerate(groups)
    ]
    show_table((first_column, *(c.title for c in columns)), rows)


def _cell(text: str, remark: str) -> str:
    return f"{text}\n{remark}" if remark else text


def _show_why(ranking: "Ranking", first_column: str, results: "StudyResults") -> None:
    """Show what the workers did with their time: a stacked bar and its numbers."""
    from dystop.report.data.time_shares import PARTS, mean_shares, share_bar, share_texts

    target = results.target.accuracy
    until = "the end" if target is None else f"{results.score.aim(target)}, or else until the end"
    shares = [mean_shares(group.runs, target) for group in ranking.groups]
    echo(f"what the workers did with their time until {until}")
    rows = [
        [group.label, share_bar(found), *share_texts(found)]
        for group, found in zip(ranking.groups, shares, strict=True)
    ]
    show_table((first_column, "", *PARTS), rows)


def _show_both_laws(results: "StudyResults") -> None:
    """Show the ranks of all rows under two timing laws side by side."""
    from dystop.report.data.comparison.headline import rank_changes

    changes = rank_changes(results.rankings, results.target.accuracy, results.score)
    if not changes:
        return
    first, second = (ranking.law for ranking in results.rankings)
    what = "time" if results.target.accuracy is not None else f"final {results.score.name}"
    echo(f"rank and {what} under both timing laws")
    rows = [[change.group.label, *change.ranks, change.change] for change in changes]
    show_table(("mechanism", first, second, f"from {first} to {second}"), rows)


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
    from dystop.folders.run_folder import is_study, open_run

    runs = _without_repeats(runs)
    if len(runs) == 1 and is_study(runs[0]):
        from dystop.errors import RunFolderError
        from dystop.folders.folder_kinds import ATLAS, study_kind

        if study_kind(runs[0]) is ATLAS:
            raise RunFolderError(
                f"{runs[0]}: an atlas; the package dystop-paper draws its maps: "
                f"{ATLAS.resume_command(runs[0])}"
            )
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
    from dystop.folders.run_folder import open_run
    from dystop.report.figures.single_runs.animation import animation
    from dystop.storage import write_atomic

    picture = animation(open_run(run), rounds=rounds, length_s=seconds)
    path = out or run / "animation.svg"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, lambda file: file.write_text(picture, encoding="utf-8"))
    echo(f"animation: {path}")


@handle_errors
def export(
    folder: Annotated[
        Path, typer.Argument(metavar="RUN|STUDY", help="A run, a comparison or a sweep.")
    ],
    to: Annotated[Format, typer.Option(help="The format.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder to write to; default: in RUN|STUDY.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until the run or the study ends.")
    ] = False,
) -> None:
    r"""Write a run or a study as tables, or into TensorBoard, Weights & Biases or MLflow.

    parquet, arrow and csv have four tables: rounds, workers, links and tests (evaluations). The
    rows of all runs of a study are in the same tables; the first columns name the run.
    tensorboard, wandb and mlflow get curves of all numbers of rounds and tests.

    The run may be finished, running or interrupted, simulated or on a testbed. Its files are only
    read. A repeated export replaces the earlier one. --follow ends with the run; Ctrl-C ends it
    earlier and keeps what was written.

    \b
    Some formats need a package:
      parquet, arrow   pip install 'dystop[parquet]'
      tensorboard      pip install 'dystop[tensorboard]'
      wandb            pip install 'dystop[wandb]'       WANDB_MODE=offline: write a folder
      mlflow           pip install 'dystop[mlflow]'      MLFLOW_TRACKING_URI: where to
    """
    from dystop.export.export import export as write
    from dystop.units import plural

    written = write(folder, to, out, follow=follow)
    echo(f"exported: {plural(written.rounds, 'round')} of {plural(written.runs, 'run')}")
    for path in written.paths:
        echo(f"  {path}")
