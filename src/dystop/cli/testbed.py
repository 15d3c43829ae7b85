"""The testbed: `dystop testbed` runs all parties; `coordinator`, `worker` and `observer` run one.

`dystop health` checks one of them. `dystop check`, `pardon` and `restore` work on the folder of a
testbed run.
"""

import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.enrolment import check_installed
from dystop.cli.progress import CoordinatorWatcher, TestbedWatcher
from dystop.cli.run import Folder, Out, Quiet, Report, Trust, finish, split_words
from dystop.cli.terminal import Interrupted, echo, exit_code_of, handle_errors
from dystop.errors import shell_command

if TYPE_CHECKING:
    from dystop.experiments.testbed.launch import Network
    from dystop.testbed.events import Exit

LEFT_BEHIND_CODE = 6  # exit code: the run has ended, but without some of its parties
Transport = Annotated[
    str | None,
    typer.Option(metavar="grpc|memory|mpi", help="Processes, threads, or under mpiexec."),
]

File = Annotated[
    Path, typer.Argument(metavar="FILE.toml", help="The experiment; the same file on every host.")
]
Pki = Annotated[Path, typer.Option(help="Folder with the keys and certificates of this party.")]
Listen = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0: any free port.")
]
Enrolment = Annotated[
    Path | None,
    typer.Option(metavar="FILE.json", help="The enrolled workers, if they bring their own data."),
]
Coordinator = Annotated[str, typer.Option(metavar="HOST:PORT", help="Address of the coordinator.")]
HealthOption = Annotated[
    Path | None,
    typer.Option("--health", metavar="FILE", help="Keep this file for dystop health."),
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
def live(  # noqa: PLR0913 - one for each option
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE.toml|KEY=VALUE", show_default=False),
    ] = None,
    out: Out = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of this run; must be free.")] = None,
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
    from dystop.experiments.testbed.launch import new_testbed

    _watched(watcher, lambda: _work(new_testbed(experiment, out, name, watcher), watcher, network))
    return watcher.folder


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


@handle_errors
def pardon(
    run: Folder, name: Annotated[str, typer.Argument(metavar="NAME", help="Whom: w00, w01, ...")]
) -> None:
    """Let a worker return from quarantine, in a run that is running or stopped."""
    from dystop.errors import ConfigError
    from dystop.experiments.folders.run_folder import open_run
    from dystop.experiments.testbed.launch import checked_folder
    from dystop.experiments.testbed.operations import request_pardon

    if open_run(checked_folder(run)).info.get("status") == "finished":
        raise ConfigError(f"{run}: the run has finished; no worker can return to it")
    if request_pardon(run, name):
        typer.echo(f"{name} may join again; 'dystop testbed' restarts its process; otherwise run:")
        typer.echo(f"dystop worker ... --name {name}")
    else:
        typer.echo(f"no coordinator is running in {run}; {name} may join as soon as one is started")


@handle_errors
def restore(run: Folder) -> None:
    """Make the ledger of a coordinator usable again after damage or loss.

    A ledger that only lacks its last commits continues without them, unless a backup is newer.
    Otherwise the newest good backup takes its place, and the damaged file is kept as state.damaged.
    No worker does a round twice: rounds that it has already done close immediately without it, and
    `dystop check` names them.
    """
    from dystop.experiments.testbed.launch import checked_folder
    from dystop.experiments.testbed.operations import restore_ledger

    round_ = restore_ledger(checked_folder(run))
    typer.echo(f"{run}: the ledger is restored to its state after round {round_}")
    resume = shell_command("testbed", "--resume", run)
    typer.echo(f"resume with: {resume}, or start the coordinator again")


@handle_errors
def check(run: Folder) -> None:
    """Audit the files of a testbed run and name every guarantee that was broken.

    Exits with 0 if none was broken, with 5 if one was, and with 2 if event logs of workers are
    missing, so that not all guarantees can be checked. A notice names a member that misbehaved or
    failed; it breaks no guarantee.
    """
    from dystop.errors import RunFolderError, VerificationError
    from dystop.experiments.testbed.launch import checked_folder
    from dystop.testbed.audit.check import audit_run
    from dystop.units import are

    audit = audit_run(checked_folder(run))
    for notice in audit.notices:
        typer.echo(f"notice: {notice}")
    findings = audit.findings
    for finding in findings:
        typer.echo(str(finding))
    for missing in audit.missing:
        typer.echo(str(missing))
    if findings:
        raise VerificationError(f"{run}: {len(findings)} guarantees were broken")
    if audit.missing:
        raise RunFolderError(
            f"{run}: {are(len(audit.missing), 'event log')} missing, so I3, I4, I6 and I7 are not "
            f"fully checked; nothing else is wrong. Copy the workers' folders to {run / 'workers'}"
        )
    typer.echo(f"{run}: no guarantee was broken")


def _start_logging() -> None:
    check_installed()
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )


def _serve_and_exit(serve: Callable[[], tuple[int, str]]) -> None:
    """Run a party to its end, then exit at once, so that no library's threads delay it."""
    try:
        code, text = serve()
    except KeyboardInterrupt as interrupt:
        code, text = exit_code_of(interrupt), "stopped"
    typer.echo(text, err=code != 0)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@handle_errors
def health(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="The file of a party's --health."),
    ],
    alive: Annotated[
        bool,
        typer.Option("--alive", help="Accept a party without a session, if it is not stuck."),
    ] = False,
) -> None:
    """Say whether a coordinator, worker or observer on this host is healthy.

    Healthy is a party whose loop turns, whose port answers, and which has a session with the
    coordinator. Otherwise the exit code is 2, and one line says what is missing.
    """
    from dystop.testbed.launch.health import check_health

    typer.echo(check_health(file, alive_only=alive))


@handle_errors
def coordinator(  # noqa: PLR0913 - one for each option
    file: File,
    pki: Pki = Path("pki"),
    listen: Listen = "127.0.0.1:0",
    out: Annotated[
        Path, typer.Option(metavar="RUN", help="The run folder; created if it is missing.")
    ] = Path("runs/testbed"),
    enrol: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", help="Where new parties redeem tokens; off by default."),
    ] = "",
    enrolment: Enrolment = None,
    health: HealthOption = None,
    trust: Trust = False,
) -> None:
    """Coordinate a run: decide each round and keep the ledger; never touch a model."""
    _start_logging()
    from dystop.experiments.testbed.coordinator_run import CoordinatorOptions, serve_coordinator
    from dystop.testbed.launch.health import HealthFile

    options = CoordinatorOptions(
        file, pki, listen, out, enrol, enrolment, trust, HealthFile(health)
    )
    watcher = CoordinatorWatcher()

    def serve() -> tuple[int, str]:
        with watcher.showing():
            return 0, f"the run is over: {serve_coordinator(options, watcher)}"

    _serve_and_exit(serve)


@handle_errors
def worker(  # noqa: PLR0913 - one for each option
    file: File,
    name: Annotated[str, typer.Option(help="Name of this worker: w00, w01, ..., or server.")],
    coordinator: Coordinator,
    pki: Pki = Path("pki"),
    listen: Listen = "127.0.0.1:0",
    advertise: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address for peers, if not --listen.")
    ] = "",
    folder: Annotated[
        Path | None, typer.Option(help="Folder of its checkpoint; default: its name.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Its own samples, on this host only.")
    ] = None,
    health: HealthOption = None,
    trust: Trust = False,
) -> None:
    """Run a worker: train on its own data, serve its model, follow the coordinator's orders."""
    _start_logging()
    from dystop.experiments.testbed.parties import PartyOptions, serve_worker
    from dystop.testbed.launch.health import HealthFile

    place = PartyOptions(file, pki, coordinator, trust, HealthFile(health))
    home = folder or Path(name)
    _serve_and_exit(lambda: _result(serve_worker(place, name, listen, advertise, home, data)))


@handle_errors
def observer(
    file: File,
    coordinator: Coordinator,
    pki: Pki = Path("pki"),
    enrolment: Enrolment = None,
    health: HealthOption = None,
    trust: Trust = False,
) -> None:
    """Run the observer: evaluate all models whenever the coordinator asks for it."""
    _start_logging()
    from dystop.experiments.testbed.parties import PartyOptions, serve_observer
    from dystop.testbed.launch.health import HealthFile

    place = PartyOptions(file, pki, coordinator, trust, HealthFile(health))
    _serve_and_exit(lambda: _result(serve_observer(place, enrolment)))


def _result(end: "Exit") -> tuple[int, str]:
    return end.code, end.text or "the run is over"
