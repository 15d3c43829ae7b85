"""`dystop testbed`: a run whose parties are processes, and `dystop check`, which reads it after."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dystop.cli.handle_errors import Interrupted, code_of, handle_errors
from dystop.cli.output import echo
from dystop.cli.pki import check_installed
from dystop.cli.progress import Watcher
from dystop.cli.run import Folder, Quiet, Report, finish, split
from dystop.errors import shell_command

if TYPE_CHECKING:
    from dystop.experiments.testbed.launch import Network

Transport = Annotated[
    str | None,
    typer.Option(metavar="grpc|memory|mpi", help="Processes, threads, or under mpiexec."),
]


class CrewWatcher(Watcher):
    """Follows a testbed: first who joins, then the rounds."""

    _joined = -1

    def on_joining(self, joined: int, workers: int) -> None:
        """Show who has come so far; of no interest once rounds are closing."""
        if joined == self._joined or self.last is not None:
            return
        self._joined = joined
        self.say(f"workers joining {joined}/{workers}")

    def on_restart(self, told: str) -> None:
        """A line that stays: who was lost, how, and where to read more."""
        if self._bar is not None:
            self._bar.console.print(told, markup=False, highlight=False)
        elif not self._quiet:
            echo(told, err=True)


def _watched(watcher: CrewWatcher, work: Callable[[], None]) -> None:
    try:
        with watcher.showing():
            work()
    except KeyboardInterrupt as interrupt:
        raise Interrupted(_way_on(watcher), code_of(interrupt)) from None


def _way_on(watcher: CrewWatcher, launcher: str = "") -> str:
    """What to say after an interrupt."""
    if watcher.folder is None:
        return "interrupted before the first round; nothing was written"
    done = watcher.last.round if watcher.last else 0
    way = f"go on with: {launcher}{shell_command('testbed', '--resume', watcher.folder)}"
    return f"interrupted at round {done}, all processes are stopped; {way}"


def _ranked(watcher: CrewWatcher, work: Callable[[], Path | None]) -> Path | None:
    """One rank's part under MPI; where all are interrupted, the one with the folder speaks."""
    try:
        return work()
    except KeyboardInterrupt as interrupt:
        if watcher.folder is None:
            raise typer.Exit(code_of(interrupt)) from None
        from dystop.experiments.config import read_experiment
        from dystop.experiments.run_folder import CONFIG
        from dystop.experiments.testbed.enrolment import node_names

        ranks = len(node_names(read_experiment(watcher.folder / CONFIG))) + 1
        line = _way_on(watcher, f"mpiexec -n {ranks} ")
        raise Interrupted(line, code_of(interrupt)) from None


@handle_errors
def live(  # noqa: PLR0913 - one for each option
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="FILE.toml|KEY=VALUE", show_default=False),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(help="Name of this run; must be free.")] = None,
    quiet: Quiet = False,
    report: Report = True,
    transport: Transport = None,
    netns: Annotated[
        bool, typer.Option("--netns", help="Every party in a network namespace (Linux, root).")
    ] = False,
    rate_mbit: Annotated[
        float, typer.Option(min=0.0, help="Rate of every worker's link under --netns; 0: any.")
    ] = 20.0,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with a run that was interrupted.")
    ] = None,
) -> None:
    """Run one experiment for real: a coordinator, an observer and workers as processes.

    Without a file the defaults are used; keys on the command line win over the file.
    """
    from dystop.experiments.testbed.launch import Network

    given = [*(words or []), *([f"testbed.transport={transport}"] if transport else [])]
    watcher = CrewWatcher(quiet=quiet)
    network = Network(netns, rate_mbit)
    folder: Path | None
    if resume is not None:
        folder = _resume(resume, given, watcher, network)
    else:
        folder = _begin(given, out, name, watcher, network)
    if folder is not None:
        _gather(folder)
        finish(folder, quiet=quiet, report=report)


def _gather(folder: Path) -> None:
    """Leave the trained models behind; a run that is not over has none."""
    from dystop.experiments.run_folder import open_run
    from dystop.experiments.testbed.collect_models import gather_models

    if open_run(folder).info.get("status") == "finished" and not gather_models(folder):
        echo(f"{folder}: no global model: not every worker has left one behind", err=True)


def _begin(
    words: list[str], out: Path, name: str | None, watcher: CrewWatcher, network: "Network"
) -> Path | None:
    """A new run; None on a rank that has nothing to show."""
    from dystop.experiments.config import read_experiment
    from dystop.experiments.run_folder import check_free
    from dystop.experiments.testbed.enrolment import check_testbed

    file, keys = split(words)
    experiment = read_experiment(file, keys)
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


def _resume(path: Path, words: list[str], watcher: CrewWatcher, network: "Network") -> Path | None:
    """An earlier run; None on a rank that has nothing to show."""
    from dystop.errors import ConfigError
    from dystop.experiments.config import read_experiment
    from dystop.experiments.run_folder import CONFIG, open_run
    from dystop.experiments.testbed.launch import reopen_testbed, resumable_folder

    if words:
        raise ConfigError(f"--resume takes the settings of {path}; leave out: {' '.join(words)}")
    transport = read_experiment(resumable_folder(path) / CONFIG).testbed.transport
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


def _work(folder: Path, watcher: CrewWatcher, network: "Network") -> None:
    """All parties of a run, as processes or as threads."""
    from dystop.experiments.config import read_experiment
    from dystop.experiments.run_folder import CONFIG

    if read_experiment(folder / CONFIG).testbed.transport == "memory":
        from dystop.experiments.testbed.threads import run_threads

        run_threads(folder, watcher)
    else:
        from dystop.experiments.testbed.launch import run_processes

        run_processes(folder, watcher, network)


@handle_errors
def pardon(
    run: Folder, name: Annotated[str, typer.Argument(metavar="NAME", help="Whom: w00, w01, ...")]
) -> None:
    """Let a worker back in that was put in quarantine, in a run that goes on or is stopped."""
    from dystop.errors import ConfigError
    from dystop.experiments.run_folder import open_run
    from dystop.experiments.testbed.launch import checked_folder
    from dystop.experiments.testbed.operations import ask_pardon

    if open_run(checked_folder(run)).info.get("status") == "finished":
        raise ConfigError(f"{run}: the run is over; there is nothing to come back to")
    if ask_pardon(run, name):
        typer.echo(f"{name} may join again; 'dystop testbed' starts its process by itself, else:")
        typer.echo(f"dystop worker ... --name {name}")
    else:
        typer.echo(f"no coordinator is at work in {run}: {name} may join when it is started again")


@handle_errors
def restore(run: Folder) -> None:
    """Put the newest good backup in the place of a coordinator's ledger that is damaged or gone.

    The damaged file is kept as state.damaged. What happened since the backup is missing in the
    books: no worker does a round twice, so rounds that it has done since then pass without it, and
    `dystop check` names them.
    """
    from dystop.experiments.testbed.launch import checked_folder
    from dystop.experiments.testbed.operations import restore_ledger

    round_ = restore_ledger(checked_folder(run))
    typer.echo(f"{run}: the ledger is as it was after round {round_}")
    way = shell_command("testbed", "--resume", run)
    typer.echo(f"go on with: {way}, or start the coordinator again")


@handle_errors
def check(run: Folder) -> None:
    """Read what a testbed run left behind and name every promise that was broken.

    Exits with 0 if there is none, with 5 otherwise.
    """
    from dystop.errors import VerificationError
    from dystop.experiments.testbed.launch import checked_folder
    from dystop.testbed.audit.check import check_run

    findings = check_run(checked_folder(run))
    for finding in findings:
        typer.echo(str(finding))
    if findings:
        raise VerificationError(f"{run}: {len(findings)} promises were broken")
    typer.echo(f"{run}: no promise was broken")
