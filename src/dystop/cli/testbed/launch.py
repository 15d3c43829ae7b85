"""`dystop testbed`: run all parties of an experiment on this machine, or under MPI."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.options import Out, Quiet, Report, RunName, Trust, Words, split_words
from dystop.cli.progress import TestbedWatcher
from dystop.cli.run import finish
from dystop.cli.terminal import Interrupted, echo, exit_code_of, handle_errors
from dystop.cli.testbed.pki import check_installed
from dystop.errors import shell_command

if TYPE_CHECKING:
    from dystop.experiments.config import Experiment
    from dystop.experiments.testbed.launch import Network

LEFT_BEHIND_CODE = 6  # exit code: the run has ended, but without some of its parties
Transport = Annotated[
    str | None,
    typer.Option(metavar="grpc|memory|mpi", help="Processes, threads, or under mpiexec."),
]


def _watched(watcher: TestbedWatcher, work: Callable[[], None]) -> None:
    try:
        with watcher.showing():
            work()
    except KeyboardInterrupt as interrupt:
        raise Interrupted(_resume_hint(watcher), exit_code_of(interrupt)) from None


def _resume_hint(watcher: TestbedWatcher, launcher: str = "") -> str:
    """Say how far the run got and which command resumes it."""
    if watcher.folder is None:
        return "interrupted before the first round; nothing was written"
    done = watcher.last.round if watcher.last else 0
    resume = f"resume with: {launcher}{shell_command('testbed', '--resume', watcher.folder)}"
    return f"interrupted at round {done}, all processes are stopped; {resume}"


def _ranked(watcher: TestbedWatcher, work: Callable[[], Path | None]) -> Path | None:
    """Do one rank's part under MPI; after an interrupt only rank 0 speaks: it has the folder."""
    try:
        return work()
    except KeyboardInterrupt as interrupt:
        if watcher.folder is None:
            raise typer.Exit(exit_code_of(interrupt)) from None
        from dystop.experiments.config import read_experiment
        from dystop.experiments.folders.run_folder import CONFIG
        from dystop.experiments.testbed.enrolment import node_names

        ranks = len(node_names(read_experiment(watcher.folder / CONFIG, trust=True))) + 1
        hint = _resume_hint(watcher, f"mpiexec -n {ranks} ")
        raise Interrupted(hint, exit_code_of(interrupt)) from None


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
    from dystop.experiments.testbed.launch import Network

    given = [*(words or []), *([f"testbed.transport={transport}"] if transport else [])]
    watcher = TestbedWatcher(quiet=quiet)
    network = Network(netns, rate_mbit)
    folder: Path | None
    if resume is not None:
        folder = _resume(resume, given, watcher, network, trust=trust)
    else:
        folder = _begin(given, out, name, watcher, network, trust=trust)
    if folder is not None:
        _save_models(folder)
        finish(folder, quiet=quiet, report=report)
        _tell_left_behind(folder)


def _tell_left_behind(folder: Path) -> None:
    """Name the parties that were left behind; the exit code then says so, too."""
    from dystop.experiments.folders.run_folder import open_run
    from dystop.experiments.testbed.operations import LEFT_BEHIND

    left = open_run(folder).info.get(LEFT_BEHIND) or {}
    for reason in left.values():
        echo(f"left behind: {reason}", err=True)
    if left:
        raise typer.Exit(LEFT_BEHIND_CODE)


def _save_models(folder: Path) -> None:
    """Save the trained models of a finished run in its folder."""
    from dystop.experiments.folders.run_folder import open_run
    from dystop.experiments.testbed.collect_models import collect_models

    if open_run(folder).info.get("status") == "finished" and not collect_models(folder):
        echo(f"{folder}: no global model, because some workers saved none", err=True)


def _begin(
    words: list[str],
    out: Path,
    name: str | None,
    watcher: TestbedWatcher,
    network: "Network",
    *,
    trust: bool,
) -> Path | None:
    """Start a new run; return its folder, or None on a rank that shows nothing."""
    from dystop.experiments.config import read_experiment
    from dystop.experiments.folders.run_folder import check_free
    from dystop.experiments.testbed.enrolment import check_testbed

    file, keys = split_words(words)
    experiment = read_experiment(file, keys, trust=trust)
    check_testbed(experiment)
    if experiment.testbed.transport == "mpi":
        from dystop.experiments.testbed.ranks import run_ranks

        return _ranked(watcher, lambda: run_ranks(file, keys, out, name, watcher))
    _check(experiment.testbed.transport, network)
    if name is not None:
        check_free(out, name)
    _remark_law(experiment, keys, watcher)
    from dystop.experiments.testbed.launch import new_testbed

    _watched(watcher, lambda: _work(new_testbed(experiment, out, name, watcher), watcher, network))
    return watcher.folder


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
    path: Path, words: list[str], watcher: TestbedWatcher, network: "Network", *, trust: bool
) -> Path | None:
    """Resume a run; return its folder, or None on a rank that shows nothing."""
    from dystop.errors import ConfigError
    from dystop.experiments.config import read_experiment
    from dystop.experiments.folders.run_folder import CONFIG, open_run
    from dystop.experiments.testbed.launch import checked_folder, reopen_testbed, resumable_folder

    if words:
        raise ConfigError(f"--resume takes the settings of {path}; leave out: {' '.join(words)}")
    transport = read_experiment(checked_folder(path) / CONFIG, trust=trust).testbed.transport
    resumable_folder(path)
    if transport == "mpi" and open_run(path).info.get("status") != "finished":
        from dystop.experiments.testbed.ranks import resume_ranks

        return _ranked(watcher, lambda: resume_ranks(path, watcher))
    _check(transport, network)
    if reopen_testbed(path, watcher):
        _watched(watcher, lambda: _work(path, watcher, network))
    return path


def _check(transport: str, network: "Network") -> None:
    from dystop.errors import ConfigError
    from dystop.testbed.launch.netns import check_possible

    if transport == "grpc":
        check_installed()
    elif network.namespaces:
        raise ConfigError("--netns is for --transport grpc; threads have no network")
    if network.namespaces:
        check_possible()


def _work(folder: Path, watcher: TestbedWatcher, network: "Network") -> None:
    """Run all parties, as processes or as threads."""
    from dystop.experiments.config import read_experiment
    from dystop.experiments.folders.run_folder import CONFIG

    if read_experiment(folder / CONFIG, trust=True).testbed.transport == "memory":
        from dystop.experiments.testbed.threads import run_threads

        run_threads(folder, watcher)
    else:
        from dystop.experiments.testbed.launch import run_processes

        run_processes(folder, watcher, network)
