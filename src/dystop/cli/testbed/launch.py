"""`dystop testbed`: run all parties of an experiment on this machine, or under MPI."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.options import Out, Quiet, Report, RunName, Trust, Words, names_of, split_words
from dystop.cli.progress import TestbedWatcher
from dystop.cli.run import finish
from dystop.cli.terminal import Interrupted, echo, exit_code_of, handle_errors
from dystop.errors import shell_command

if TYPE_CHECKING:
    from dystop.config import Experiment
    from dystop.testbed.setup.launch import Network
    from dystop.testbed.setup.transports import Launcher

LEFT_BEHIND_CODE = 6  # exit code: the run has ended, but without some of its parties
Transport = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How parties are started and connected: dystop list transports.",
        autocompletion=names_of("transports"),
    ),
]


def _watched(
    watcher: TestbedWatcher, launcher: "Launcher", work: Callable[[], Path | None]
) -> Path | None:
    """Run all parties, or this one's part of a job; say how an interrupted run is resumed."""
    try:
        with watcher.showing():
            return work()
    except KeyboardInterrupt as interrupt:
        code = exit_code_of(interrupt)
        if watcher.folder is None and launcher.in_job:  # one process of a job has the folder
            raise typer.Exit(code) from None
        raise Interrupted(_resume_hint(watcher, launcher.prefix(watcher.folder)), code) from None


def _resume_hint(watcher: TestbedWatcher, prefix: str = "") -> str:
    """Say how far the run got and which command resumes it."""
    if watcher.folder is None:
        return "interrupted before the first round; nothing was written"
    done = watcher.last.round if watcher.last else 0
    resume = f"resume with: {prefix}{shell_command('testbed', '--resume', watcher.folder)}"
    return f"interrupted at round {done}, all processes are stopped; {resume}"


@handle_errors
def launch(  # noqa: PLR0913 - one for each option
    words: Words = None,
    out: Out = Path("runs"),
    name: RunName = None,
    quiet: Quiet = False,
    report: Report = True,
    transport: Transport = None,
    netns: Annotated[
        bool, typer.Option("--netns", help="Give every party a network namespace (Linux, root).")
    ] = False,
    rate_mbit: Annotated[
        float,
        typer.Option(min=0.0, help="Rate of every worker's link under --netns; 0: unlimited."),
    ] = 20.0,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Resume an interrupted run.")
    ] = None,
    trust: Trust = False,
) -> None:
    """Run one experiment with real processes: a coordinator, an observer and workers.

    Without a file the defaults are used. Keys on the command line override the file.
    """
    from dystop.testbed.setup.launch import Network

    given = [*(words or []), *([f"testbed.transport={transport}"] if transport else [])]
    watcher = TestbedWatcher(quiet=quiet)
    network = Network(netns, rate_mbit)
    folder: Path | None
    if resume is not None:
        folder = _resume(resume, given, watcher, network)
    else:
        folder = _begin(given, out, name, watcher, network)
    if folder is not None:
        _save_models(folder)
        finish(folder, quiet=quiet, report=report)
        _tell_left_behind(folder)


def _tell_left_behind(folder: Path) -> None:
    """Name the parties that were left behind; the exit code then says so, too."""
    from dystop.folders.run_folder import open_run
    from dystop.testbed.setup.operations import LEFT_BEHIND

    left = open_run(folder).info.get(LEFT_BEHIND) or {}
    for reason in left.values():
        echo(f"left behind: {reason}", err=True)
    if left:
        raise typer.Exit(LEFT_BEHIND_CODE)


def _save_models(folder: Path) -> None:
    """Save the trained models of a finished run in its folder."""
    from dystop.folders.run_folder import open_run
    from dystop.testbed.setup.collect_models import collect_models

    if open_run(folder).info.get("status") == "finished" and not collect_models(folder):
        echo(f"{folder}: no global model, because some workers saved none", err=True)


def _begin(
    words: list[str],
    out: Path,
    name: str | None,
    watcher: TestbedWatcher,
    network: "Network",
) -> Path | None:
    """Start a new run; return its folder, or None where this process shows nothing."""
    from dystop.config import read_experiment
    from dystop.testbed.setup.enrolment import check_testbed
    from dystop.testbed.setup.transports import NewRun, launcher_of

    file, keys = split_words(words)
    experiment = read_experiment(file, keys)
    check_testbed(experiment)
    launcher = launcher_of(experiment)
    launcher.check(network)
    _remark_law(experiment, keys, watcher)
    new = NewRun(experiment, file, keys, out, name)
    return _watched(watcher, launcher, lambda: launcher.begin(new, watcher, network))


def _remark_law(experiment: "Experiment", keys: list[str], watcher: TestbedWatcher) -> None:
    """Say that a law which was typed is not followed; who types none knows nothing of laws."""
    from dystop.control.laws import TestbedLaw

    typed = any(key.partition("=")[0].strip() == "engine.timing" for key in keys)
    if typed and not isinstance(experiment.engine.law, TestbedLaw):
        watcher.remark(
            f"engine.timing = {experiment.engine.timing!r} is a law of the simulator; a testbed "
            "follows the law 'testbed', which engine.timing=testbed simulates"
        )


def _resume(
    path: Path, words: list[str], watcher: TestbedWatcher, network: "Network"
) -> Path | None:
    """Resume a run; return its folder, or None where this process shows nothing."""
    from dystop.config import read_experiment
    from dystop.errors import ConfigError
    from dystop.folders.run_folder import CONFIG
    from dystop.testbed.setup.launch import checked_folder, resumable_folder
    from dystop.testbed.setup.transports import launcher_of

    if words:
        raise ConfigError(f"--resume takes the settings of {path}; leave out: {' '.join(words)}")
    launcher = launcher_of(read_experiment(checked_folder(path) / CONFIG))
    resumable_folder(path)
    launcher.check(network)
    return _watched(watcher, launcher, lambda: launcher.resume(path, watcher, network))
