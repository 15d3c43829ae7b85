"""The launcher: a run of the testbed with all parties as child processes.

There is one process for the coordinator, one for the observer and one for every worker. They share
the run folder, and they talk over the network.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dystop.config import Experiment, read_again, to_toml, to_tree
from dystop.errors import DystopError, RunFolderError, shell_command
from dystop.folders.record_log import RECORDS, RecordTail
from dystop.folders.run_folder import (
    CONFIG,
    RunData,
    create_run,
    first_info,
    open_run,
    run_folder,
    update_info,
)
from dystop.folders.trust import words_of_trust
from dystop.record import RoundRecord
from dystop.runs.interrupts import Interrupts
from dystop.runs.processes import LIFELINE, child_environment, dystop_command
from dystop.runs.run import Started
from dystop.testbed.launch.netns import VirtualNetwork
from dystop.testbed.launch.supervisor import ProcessSupervisor
from dystop.testbed.names import COORDINATOR, OBSERVER, SERVER
from dystop.testbed.setup.enrolment import (
    ENROLMENT,
    KIND,
    SETTINGS_SHA256,
    STATUS,
    Enrolled,
    check_settings,
    fixed_settings_sha256,
    node_names,
    read_status,
    write_enrolment,
)
from dystop.testbed.setup.operations import LEFT_BEHIND, report_left_behind

if TYPE_CHECKING:
    from dystop.testbed.setup.preparation import Prepared

PKI, LOGS, WORKERS = "pki", "logs", "workers"
POLL_S = 0.1
COORDINATOR_START_S = 60.0  # for a coordinator to start listening
LEAVE_S = 5.0  # for the other parties to leave after the last round
_GRACE_S = "5"  # for a child to exit after its launcher was killed
_SINGLE = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class ProgressReporter(Protocol):
    """Receives the progress of a run."""

    def on_start(self, started: Started) -> None:
        """Handle the start: the folder exists."""

    def on_joining(self, joined: int, workers: int) -> None:
        """Handle the number of workers that have joined."""

    def on_restart(self, notice: str) -> None:
        """Handle the restart of a party that crashed or was killed."""

    def on_record(self, record: RoundRecord) -> None:
        """Handle the record of a closed round."""


@dataclass(frozen=True)
class Network:
    """Where the parties run: on loopback, or in namespaces with shaped links."""

    namespaces: bool = False
    rate_mbit: float = 0.0


def new_testbed(
    experiment: Experiment, out: Path, name: str | None, watch: ProgressReporter
) -> Path:
    """Create the folder of a new run and report its start."""
    prepared = _prepare(experiment, name)
    with Interrupts() as interrupts:  # a user who gets a folder also learns how to resume it
        folder = _create_folder(prepared, out, explicit=name is not None)
        rounds = prepared.experiment.stop.rounds
        watch.on_start(Started(folder, prepared.physics, prepared.partition, "", rounds))
        with noting_failure(folder):
            interrupts.check()
    return folder


def make_folder(
    experiment: Experiment,
    out: Path,
    name: str | None,
    enrolled: tuple[Enrolled, ...] | None = None,
) -> tuple[Path, "Prepared"]:
    """Create the folder of a new run."""
    prepared = _prepare(experiment, name, enrolled)
    with Interrupts():
        return _create_folder(prepared, out, explicit=name is not None), prepared


def _prepare(
    experiment: Experiment, name: str | None, enrolled: tuple[Enrolled, ...] | None = None
) -> "Prepared":
    from dystop.testbed.setup.preparation import prepare

    return prepare(experiment if name is None else replace(experiment, name=name), enrolled)


def _create_folder(prepared: "Prepared", out: Path, *, explicit: bool) -> Path:
    """Create the folder with all that a run needs."""
    experiment = prepared.experiment
    info = {**first_info(experiment), "kind": KIND, "publish": "on_completion"}
    info[SETTINGS_SHA256] = fixed_settings_sha256(experiment)
    folder = create_run(
        out, experiment.name, to_toml(experiment), info, prepared.fleet, explicit=explicit
    )
    write_enrolment(folder, prepared.enrolment)
    return folder


def checked_folder(path: Path) -> Path:
    """Return the path if it is the folder of a testbed run."""
    info = open_run(run_folder(path)).info
    if info.get("kind") != KIND:
        raise RunFolderError(
            f"{path}: a simulated run, but this command needs a testbed run; check it with: "
            f"{shell_command('verify', path)}, resume it with: {shell_command('resume', path)}"
        )
    if not (path / ENROLMENT).is_file():
        raise RunFolderError(f"{path}: {ENROLMENT} is missing; start a new run")
    return path


def resumable_folder(path: Path) -> Path:
    """Return the path if it is the folder of a testbed run with unchanged settings."""
    check_settings(open_run(checked_folder(path)))
    return path


def reopen_testbed(path: Path, watch: ProgressReporter) -> bool:
    """Open the folder of an earlier run; False if the run has finished."""
    data = open_run(resumable_folder(path))
    done = len(data.records)
    finished = data.info.get("status") == "finished"
    rounds = done if finished else _unfinished_rounds(data)
    watch.on_start(Started(path, {}, [], "", rounds, done))
    return not finished


def _unfinished_rounds(data: RunData) -> int:
    """Return the rounds of a run that goes on, if its data are those that it began with."""
    from dystop.testbed.setup.preparation import check_data

    experiment = read_again(data.path)
    check_data(data, experiment)
    return experiment.stop.rounds


def run_processes(folder: Path, watch: ProgressReporter, network: Network | None = None) -> None:
    """Start all parties, restart what crashes, and follow the run to its end.

    The caller has created the folder, or has checked with `read_experiment` whose it is.
    """
    experiment = read_again(folder)
    with (
        noting_failure(folder),
        Interrupts() as interrupts,
        _network(experiment, network or Network()) as net,
    ):
        launch = _Launch(folder, experiment, net, interrupts.check)
        try:
            launch.start_coordinator()
            launch.start_others()
            launch.follow(watch)
        finally:
            launch.supervisor.stop()


@contextmanager
def _network(experiment: Experiment, network: Network) -> Iterator[VirtualNetwork | None]:
    if not network.namespaces:
        yield None
        return
    with VirtualNetwork() as net:
        net.add(COORDINATOR)
        for name in other_parties(experiment):
            net.add(name, 0.0 if name == OBSERVER else network.rate_mbit)
        yield net


@contextmanager
def noting_failure(folder: Path) -> Iterator[None]:
    """Write to `run.json` if the run fails or is interrupted in this block."""
    try:
        yield
    except KeyboardInterrupt:
        with suppress(DystopError):
            if open_run(folder).info.get("status") != "finished":
                update_info(folder, status="interrupted")
        raise
    except Exception as error:
        with suppress(DystopError):
            update_info(folder, status="failed", stop_reason=f"{type(error).__name__}: {error}")
        raise


def other_parties(experiment: Experiment) -> list[str]:
    """Return the names of all parties but the coordinator."""
    nodes = node_names(experiment)
    return [*nodes, OBSERVER] if experiment.testbed.observer else nodes


@dataclass
class _Launch:
    """The parties of one run, as child processes."""

    folder: Path
    experiment: Experiment
    net: VirtualNetwork | None
    check: Callable[[], None]  # raises after a signal
    supervisor: ProcessSupervisor = field(
        default_factory=lambda: ProcessSupervisor(_child_environment())
    )
    away: set[str] = field(default_factory=set)  # in quarantine
    reported: set[str] = field(default_factory=set)  # left behind, and the coordinator knows it

    def start_coordinator(self) -> None:
        """Start the coordinator and wait until it listens; a restart uses the same port."""
        (self.folder / STATUS).unlink(missing_ok=True)
        shutil.rmtree(self.folder / LEFT_BEHIND, ignore_errors=True)  # of an earlier launch
        _make_certificates(self.folder, [COORDINATOR, *other_parties(self.experiment)])
        host = self._host(COORDINATOR)
        child = self._start_process(
            COORDINATOR, self._coordinator(f"{host}:{self.experiment.testbed.port}")
        )
        until = time.monotonic() + COORDINATOR_START_S
        while not (address := read_status(self.folder).get("address")):
            self.check()
            self.supervisor.poll()
            if time.monotonic() > until:
                raise DystopError(f"the coordinator did not start (log: {child.log})")
            time.sleep(POLL_S / 4)
        self.address = str(address)
        child.command = self._inside(COORDINATOR, self._coordinator(self.address))

    def start_others(self) -> None:
        """Start the workers and the observer."""
        for name in other_parties(self.experiment):
            self.check()
            self._start_process(name, self._observer() if name == OBSERVER else self._worker(name))

    def follow(self, watch: ProgressReporter) -> None:
        """Report progress until the coordinator has ended normally."""
        tail, workers = RecordTail(self.folder / RECORDS), self.experiment.fleet.workers
        while True:
            ended = self.supervisor.children[COORDINATOR].done
            for record in tail.read():
                watch.on_record(record)
            if ended:
                break
            status = read_status(self.folder)
            watch.on_joining(int(status.get("joined", 0)), workers)
            self._restart_returned(set(status.get("away", ())))
            self.check()
            for notice in self.supervisor.poll():
                watch.on_restart(notice)
            self._report_left_behind()
            time.sleep(POLL_S)
        self.supervisor.wait(self.supervisor.children, LEAVE_S)
        self._note_left_behind()

    def _report_left_behind(self) -> None:
        """Tell the coordinator who cannot go on; raise if no round is possible any more."""
        left = self.supervisor.left_behind()
        for name in left.keys() - self.reported:
            report_left_behind(self.folder, name, str(left[name]))
        self.reported = set(left)
        nodes = set(node_names(self.experiment))
        workers, gone = nodes - {SERVER}, left.keys() | self.away
        first = next((left[name] for name in sorted(nodes & left.keys())), None)
        if first is not None and (workers <= gone or SERVER in left):
            who = "the server" if SERVER in left else "every worker"
            error = DystopError(
                f"{who} is gone, and no round is possible; {left.get(SERVER, first)}"
            )
            error.exit_code = first.exit_code
            raise error

    def _note_left_behind(self) -> None:
        """Write to `run.json` who was left behind."""
        left = {name: str(error) for name, error in self.supervisor.left_behind().items()}
        if left or LEFT_BEHIND in open_run(self.folder).info:
            update_info(self.folder, **{LEFT_BEHIND: left})

    def _restart_returned(self, away: set[str]) -> None:
        """Restart members that left quarantine: pardoned, or with a new certificate."""
        for name in self.away - away:
            self.supervisor.restart(name)
        self.away = away

    def _start_process(self, name: str, words: list[str]) -> Any:
        log = self.folder / LOGS / f"{name}.log"
        return self.supervisor.start(
            name, self._inside(name, words), log, essential=name == COORDINATOR
        )

    def _inside(self, name: str, words: list[str]) -> list[str]:
        words = [*words, *words_of_trust(to_tree(self.experiment))]
        return words if self.net is None else [*self.net.prefix(name), *words]

    def _host(self, name: str) -> str:
        return self.experiment.testbed.host if self.net is None else self.net.address(name)

    def _coordinator(self, listen: str) -> list[str]:
        return dystop_command(
            "coordinator", self.folder / CONFIG, "--pki", self.folder / PKI, "--listen", listen,
            "--out", self.folder,
        )  # fmt: skip

    def _worker(self, name: str) -> list[str]:
        return dystop_command(
            "worker", self.folder / CONFIG, "--name", name, "--pki", self.folder / PKI,
            "--coordinator", self.address, "--listen", f"{self._host(name)}:0",
            "--folder", self.folder / WORKERS / name,
        )  # fmt: skip

    def _observer(self) -> list[str]:
        return dystop_command(
            "observer", self.folder / CONFIG, "--pki", self.folder / PKI,
            "--coordinator", self.address,
        )  # fmt: skip


def _child_environment() -> dict[str, str]:
    """Return the environment of children: one thread each, because there are many children."""
    single = dict.fromkeys(_SINGLE, "1")
    return {**child_environment(), **single, LIFELINE: _GRACE_S, "GRPC_ENABLE_FORK_SUPPORT": "0"}


def _make_certificates(folder: Path, names: list[str]) -> None:
    """Create an authority for this run, and a certificate for every party without one."""
    from dystop.testbed.security.authority import init, issue

    pki = folder / PKI
    if not (pki / "ca.key").is_file():
        init(pki)
    for name in names:
        if not (pki / f"{name}.crt").is_file():
            issue(pki, name)
