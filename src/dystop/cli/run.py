"""`dystop run`, `dystop resume` and `dystop verify`."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from dystop.cli.options import Folder, Out, Quiet, Report, RunName, Trust, Words, split_words
from dystop.cli.progress import Watcher
from dystop.cli.terminal import Interrupted, echo, exit_code_of, handle_errors
from dystop.errors import shell_command
from dystop.units import plural

_LONG_S = 30.0  # a run that takes longer is worth advice


def _watched(watcher: Watcher, work: Callable[[], Path]) -> Path:
    """Show a run while it works; on an interrupt, say which command resumes it."""
    try:
        with watcher.showing():
            return work()
    except KeyboardInterrupt as interrupt:
        raise Interrupted(_resume_hint(watcher), exit_code_of(interrupt)) from None


def _resume_hint(watcher: Watcher) -> str:
    if watcher.folder is None:
        return "interrupted before the first round; nothing was written"
    done = watcher.last.round if watcher.last else 0
    return f"interrupted at round {done}; resume with: {shell_command('resume', watcher.folder)}"


def finish(folder: Path, *, quiet: bool, report: bool) -> None:
    """Show the summary of a run that has ended, and write its report."""
    from dystop.cli.results.report import show_summary, write
    from dystop.folders.run_folder import GLOBAL, MODELS, open_run
    from dystop.report.data.names import diverged_round
    from dystop.world.describe import start_notices

    data = open_run(folder)
    if not quiet:
        told = [*start_notices(data.fleet.get("physics", {}))]
        if diverged_round(data) is not None:  # `tell_diverged` ends the command with it
            told.append(str(data.info.get("stop_reason")))
        show_summary([data], told=told)
        echo(_advice(data.info), nl=False)
        if (model := folder / MODELS / GLOBAL).is_file():
            echo(f"model: {model}")
    if report:
        page = write([data], folder / "report", None)
        if not quiet:
            echo(f"report: {page}")


def tell_diverged(folder: Path) -> None:
    """Raise DivergedError if the models of a run have diverged, which has ended it early."""
    from dystop.errors import DivergedError
    from dystop.folders.run_folder import open_run
    from dystop.report.data.names import diverged_round
    from dystop.report.data.notices import divergence_advice

    data = open_run(folder)
    if diverged_round(data) is not None:
        raise DivergedError(
            f"{folder}: {data.info.get('stop_reason')}. {divergence_advice(data)} The records are "
            "kept; stop.diverged=0 lets such a run go on"
        )


def _advice(info: dict[str, Any]) -> str:
    """Say how to speed up a run that spent most of its time on evaluation; else nothing.

    >>> _advice({"wall_s": 100.0, "tests_s": 20.0})
    ''
    """
    wall_s, tests_s = float(info.get("wall_s") or 0.0), float(info.get("tests_s") or 0.0)
    if wall_s < _LONG_S or tests_s < wall_s / 2:
        return ""
    share = f"evaluating all models took {tests_s / wall_s:.0%} of {wall_s:.0f} s"
    advice = "evaluate.every_rounds=20 evaluates less often, evaluate.samples=1000 on fewer samples"
    return f"{share}; {advice}\n"


@handle_errors
def run(
    words: Words = None,
    out: Out = Path("runs"),
    name: RunName = None,
    quiet: Quiet = False,
    report: Report = True,
    trust: Trust = False,
) -> None:
    """Run one experiment.

    Without a file the defaults are used. Keys on the command line override the file. A run whose
    models diverge ends early with exit code 7; its records are kept.
    """
    from dystop.config import read_experiment
    from dystop.folders.run_folder import check_free

    experiment = read_experiment(*split_words(words or []))
    if name is not None:
        check_free(out, name)
    from dystop.runs.run import run_experiment

    watcher = Watcher(quiet=quiet)
    folder = _watched(
        watcher,
        lambda: run_experiment(experiment, out, name, watcher.on_start, watcher.on_record),
    )
    finish(folder, quiet=quiet, report=report)
    tell_diverged(folder)


@handle_errors
def resume(run: Folder, quiet: Quiet = False, report: Report = True, trust: Trust = False) -> None:
    """Resume an interrupted run from its last checkpoint.

    The result is bit for bit the same as without the interruption.
    """
    from dystop.folders.run_folder import run_folder

    run_folder(run)
    from dystop.runs.run import resume_run

    watcher = Watcher(quiet=quiet)
    folder = _watched(watcher, lambda: resume_run(run, watcher.on_start, watcher.on_record))
    finish(folder, quiet=quiet, report=report)
    tell_diverged(folder)


@handle_errors
def verify(
    run: Folder,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Check the first N rounds only.", metavar="N")
    ] = None,
    trust: Trust = False,
) -> None:
    """Run an experiment again and compare every record, bit for bit.

    Exits with 0 if they are identical, with 5 if not. Changes nothing in the folder.
    """
    from dystop.errors import VerificationError
    from dystop.folders.run_folder import open_run

    recorded = len(open_run(run).records)
    from dystop.runs.run import verify_run

    watcher = Watcher()
    with watcher.showing():
        watcher.expect(min(rounds or recorded, recorded))
        verdict = verify_run(run, rounds, watcher.on_record)
    if not verdict.identical:
        raise VerificationError(f"{run}: not reproduced: {verdict.detail}")
    echo(f"identical: {plural(verdict.rounds, 'round')}, sha256 {verdict.sha256}")
