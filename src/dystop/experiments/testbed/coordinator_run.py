"""One party of a testbed in this process: the coordinator. Free of torch.

The others are in `dystop.experiments.testbed.parties`.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystop.errors import ConfigError, DystopError, RunFolderError
from dystop.experiments.config import Experiment, read_experiment
from dystop.experiments.folder_kinds import writing
from dystop.experiments.record_log import RecordLog, RunLock, read_lines
from dystop.experiments.run_folder import CONFIG, INFO, open_run, records_sha256, update_info
from dystop.experiments.testbed.enrolment import (
    COORDINATOR,
    Enrolled,
    Enrolment,
    check_settings,
    coordinator_setup,
    essence,
    new_run_id,
    read_enrolled,
    read_enrolment,
    write_status,
)
from dystop.experiments.testbed.operations import LEDGER, Pardons, away, watch_revoked
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.coordinator.process import CoordinatorProcess
from dystop.testbed.events import FinishRun
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import Ledger, restore
from dystop.testbed.log_throttle import throttled_logger
from dystop.testbed.transport.interface import Transport
from dystop.world.trace import TRACE, without_repeats

if TYPE_CHECKING:
    from dystop.testbed.security.identity import Identity

_LOG = throttled_logger(__name__)
STATUS_S = 0.25  # between two looks at who has joined


class TraceLog:
    """`trace.jsonl`, open for appending; cut to its first lines at the start."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder = folder
        self._before: dict[str, Any] | None = None
        with writing(folder):
            self._file = (folder / TRACE).open("ab+")
            self._file.seek(0)
            whole = [line for line in self._file if line.endswith(b"\n")]
            self._file.truncate(sum(len(line) for line in whole[:keep]))

    def append(self, line: dict[str, Any]) -> None:
        """Write one line, without what has not changed since the line before."""
        short, self._before = without_repeats(line, self._before), line
        with writing(self._folder):
            self._file.write(json.dumps(short, separators=(",", ":")).encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _published(folder: Path) -> int:
    """Rounds of which both files hold a whole line; the ledger hands on the others again."""
    records, _ = read_lines(folder)
    if not (folder / TRACE).is_file():
        return 0
    with (folder / TRACE).open("rb") as file:
        return min(len(records), sum(line.endswith(b"\n") for line in file))


@dataclass
class CoordinatorRun:
    """The coordinator of a run folder, from its ledger to its files."""

    folder: Path
    experiment: Experiment
    enrolment: Enrolment

    def run(
        self,
        transport: Transport,
        listen: str,
        on_seat: Callable[[CoordinatorProcess], None] = lambda seat: None,
    ) -> FinishRun:
        """Coordinate until the run is over; raises where it cannot go on."""
        began = time.monotonic()
        with RunLock(self.folder), _ledger(self.folder) as ledger:
            update_info(self.folder, status="running", stop_reason=None)
            finish = self._coordinate(ledger, transport, listen, on_seat)
            if finish.code:
                error = DystopError(f"the coordinator ends: {finish.reason}")
                error.exit_code = finish.code
                raise error
            self._note_end(finish.reason, time.monotonic() - began)
        return finish

    def _coordinate(
        self,
        ledger: Ledger,
        transport: Transport,
        listen: str,
        on_seat: Callable[[CoordinatorProcess], None],
    ) -> FinishRun:
        done = _published(self.folder)
        past = restore(ledger)
        setup = coordinator_setup(self.experiment, self.enrolment, past.run or new_run_id())
        machine = CoordinatorMachine(setup, past)
        trace = TraceLog(self.folder, done)
        with RecordLog(self.folder, keep=done) as log:
            seat = CoordinatorProcess(
                transport, machine, ledger, listen, log.append, trace.append, _LOG.error
            )
            seat.published = done
            on_seat(seat)
            with _telling(self.folder, seat, machine):
                try:
                    seat.run()
                finally:
                    trace.close()
            log.sync()
        assert seat.finish is not None  # or `run` would not have returned
        return seat.finish

    def _note_end(self, reason: str, spent_s: float) -> None:
        before_s = float(open_run(self.folder).info.get("wall_s") or 0.0)
        update_info(
            self.folder,
            status="finished",
            stop_reason=reason,
            wall_s=round(before_s + spent_s, 3),
            records_sha256=records_sha256(self.folder),
        )


@contextmanager
def _ledger(folder: Path) -> Iterator[SqliteLedger]:
    ledger = SqliteLedger(folder / LEDGER)
    try:
        yield ledger
    finally:
        ledger.close()


@contextmanager
def _telling(folder: Path, seat: CoordinatorProcess, machine: CoordinatorMachine) -> Iterator[None]:
    """Keep telling the launcher where the coordinator is and how many have joined."""
    over, setup, pardons = threading.Event(), machine.state.setup, Pardons(folder, seat)
    pardons.look()  # before anybody can join

    def tell() -> None:
        last: dict[str, Any] = {}
        while True:
            members = seat.members()
            joined = sum(m.state == "JOINED" and m.node < setup.fleet.workers for m in members)
            facts = {"address": seat.address, "joined": joined, "run": setup.run}
            facts["away"] = away(members)
            if facts != last:
                write_status(folder, pid=os.getpid(), **facts)
                last = facts
            pardons.look()
            if over.wait(STATUS_S):
                return

    thread = threading.Thread(target=tell, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def coordinator_run_of(file: Path, folder: Path, given: Path | None = None) -> CoordinatorRun:
    """The coordinator of a run folder; made from the file where it is not there yet.

    Args:
        file: The experiment.
        folder: The run folder.
        given: Whom the operator enrols, where workers bring their own data.
    """
    experiment = read_experiment(file)
    enrolled = read_enrolled(given, experiment) if given else None
    if not (folder / INFO).is_file():
        _begin(experiment, folder, enrolled)
    check_settings(open_run(folder))
    kept = read_experiment(folder / CONFIG)
    _check_same(experiment, kept, file, folder)
    enrolment = read_enrolment(folder, kept)
    if enrolled not in (None, enrolment.workers):
        raise ConfigError(
            f"{given}: these are not the workers with which {folder} began; leave --enrolment out, "
            "or give another --out"
        )
    return CoordinatorRun(folder, kept, enrolment)


def _begin(experiment: Experiment, folder: Path, enrolled: tuple[Enrolled, ...] | None) -> None:
    """Make the folder of a run that has no launcher."""
    from dystop.experiments.testbed.launch import make_folder

    if folder.exists() and any(folder.iterdir()):
        raise RunFolderError(f"{folder}: not empty and not a run folder; choose another --out")
    if folder.exists():
        folder.rmdir()
    make_folder(experiment, folder.parent, folder.name, enrolled)


def _check_same(experiment: Experiment, recorded: Experiment, file: Path, folder: Path) -> None:
    """A run goes on with the settings that it began with."""
    if experiment.world.compute.batch_s == "measure":  # it was, when the run began
        compute = recorded.world.compute
        experiment = replace(experiment, world=replace(experiment.world, compute=compute))
    if essence(experiment) != essence(recorded):
        raise ConfigError(
            f"{file}: these are not the settings with which {folder} began; give its own "
            f"{folder / CONFIG}, or another --out"
        )


def serve_coordinator(
    file: Path,
    pki: Path,
    listen: str,
    folder: Path,
    enrol: str = "",
    enrolment: Path | None = None,
) -> str:
    """Coordinate over the network until the run is over; answers why it is."""
    from dystop.testbed.security.authority import Issued, load_identity
    from dystop.testbed.transport.grpc import GrpcTransport

    identity = load_identity(pki, COORDINATOR)
    desk = coordinator_run_of(file, folder, enrolment)
    transport = GrpcTransport(identity, Issued(pki), desk.experiment.testbed.limits)
    try:
        with _newcomers(pki, identity, enrol):
            return desk.run(transport, listen, lambda seat: watch_revoked(pki, seat)).reason
    finally:
        transport.close()


@contextmanager
def _newcomers(pki: Path, identity: "Identity", address: str) -> Iterator[None]:
    """Let newcomers redeem their tokens meanwhile, if there is an address for them."""
    if not address:
        yield
        return
    from dystop.testbed.enrolment.server import EnrolService

    service = EnrolService(pki, identity).start(address)
    _LOG.info("newcomers are heard on %s", service.address)
    try:
        yield
    finally:
        service.stop()
