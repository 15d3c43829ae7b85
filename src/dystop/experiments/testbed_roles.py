"""One party of a testbed in this process: the coordinator. Free of torch.

The others are in `dystop.experiments.testbed_nodes`.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dystop.errors import ConfigError, DystopError, RunFolderError
from dystop.experiments.durable import RecordLog, RunLock, read_lines, writing
from dystop.experiments.spec import Experiment, read_experiment, to_toml
from dystop.experiments.store import CONFIG, INFO, open_run, records_sha256, update_info
from dystop.experiments.testbed import (
    COORDINATOR,
    Enrolment,
    coordinator_setup,
    read_enrolment,
    run_id_of,
    write_status,
)
from dystop.runtime.coordinator import CoordinatorMachine
from dystop.runtime.events import Finish
from dystop.runtime.ledger import Ledger, restore
from dystop.runtime.ledger_sqlite import SqliteLedger
from dystop.runtime.quiet import quiet_logger
from dystop.runtime.seat import CoordinatorSeat
from dystop.runtime.transport.base import Transport
from dystop.world.trace import TRACE, shorter

_LOG = quiet_logger(__name__)
LEDGER = "state.db"
STATUS_S = 0.25  # between two looks at who has joined
REVOKED_S = 0.5  # between two looks at who was revoked


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
        short, self._before = shorter(line, self._before), line
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
class Desk:
    """The coordinator of a run folder, from its ledger to its files."""

    folder: Path
    experiment: Experiment
    enrolment: Enrolment

    def run(
        self,
        transport: Transport,
        listen: str,
        on_seat: Callable[[CoordinatorSeat], None] = lambda seat: None,
    ) -> Finish:
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
        on_seat: Callable[[CoordinatorSeat], None],
    ) -> Finish:
        done = _published(self.folder)
        setup = coordinator_setup(self.experiment, self.enrolment)
        machine = CoordinatorMachine(setup, restore(ledger))
        trace = TraceLog(self.folder, done)
        with RecordLog(self.folder, keep=done) as log:
            seat = CoordinatorSeat(
                transport, machine, ledger, listen, log.append, trace.append, _LOG.error
            )
            seat.published = done
            on_seat(seat)
            with _telling(self.folder, seat, machine, setup.fleet.workers):
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
def _telling(
    folder: Path, seat: CoordinatorSeat, machine: CoordinatorMachine, workers: int
) -> Iterator[None]:
    """Keep telling the launcher where the coordinator is and how many have joined."""
    over = threading.Event()

    def tell() -> None:
        last: dict[str, Any] = {}
        while True:
            facts = {"address": seat.address, "joined": _joined(machine, workers)}
            if facts != last:
                write_status(folder, pid=os.getpid(), **facts)
                last = facts
            if over.wait(STATUS_S):
                return

    thread = threading.Thread(target=tell, name="status", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _joined(machine: CoordinatorMachine, workers: int) -> int:
    members = list(machine.core.members)
    return sum(m.state == "JOINED" and m.node < workers for m in members)


def desk_of(file: Path, folder: Path) -> Desk:
    """The coordinator of a run folder; made from the file where it is not there yet."""
    experiment = read_experiment(file)
    if not (folder / INFO).is_file():
        _begin(experiment, folder)
    elif to_toml(experiment) != to_toml(recorded := read_experiment(folder / CONFIG)):
        _check_same(experiment, recorded, file, folder)
    kept = read_experiment(folder / CONFIG)
    return Desk(folder, kept, read_enrolment(folder, kept))


def _begin(experiment: Experiment, folder: Path) -> None:
    """Make the folder of a run that has no launcher."""
    from dystop.experiments.testbed_run import make_folder

    if folder.exists() and any(folder.iterdir()):
        raise RunFolderError(f"{folder}: not empty and not a run folder; choose another --out")
    if folder.exists():
        folder.rmdir()
    make_folder(experiment, folder.parent, folder.name, run_id_of(experiment))


def _check_same(experiment: Experiment, recorded: Experiment, file: Path, folder: Path) -> None:
    """A run goes on with the settings that it began with."""
    if run_id_of(experiment) != read_enrolment(folder, recorded).run:
        raise ConfigError(
            f"{file}: these are not the settings with which {folder} began; give its own "
            f"{folder / CONFIG}, or another --out"
        )


def serve_coordinator(file: Path, pki: Path, listen: str, folder: Path) -> str:
    """Coordinate over the network until the run is over; answers why it is."""
    from dystop.runtime.pki import Issued, load_identity
    from dystop.runtime.transport.grpc import GrpcTransport

    identity = load_identity(pki, COORDINATOR)
    desk = desk_of(file, folder)
    transport = GrpcTransport(identity, Issued(pki), desk.experiment.testbed.limits)
    try:
        return desk.run(transport, listen, lambda seat: _watch_revoked(pki, seat)).reason
    finally:
        transport.close()


def _watch_revoked(pki: Path, seat: CoordinatorSeat) -> None:
    """Send away at once whoever's certificate is revoked while the run goes on."""

    def watch() -> None:
        known: set[str] = set()
        while seat.finish is None:
            revoked = _revoked(pki)
            for name in revoked - known:
                seat.expel(name)
            known = revoked
            time.sleep(REVOKED_S)

    threading.Thread(target=watch, name="revoked", daemon=True).start()


def _revoked(pki: Path) -> set[str]:
    """Names whose newest certificate is revoked."""
    from dystop.runtime.private_files import read_json

    try:
        issued, revoked = read_json(pki / "issued.json"), read_json(pki / "revoked.json")
    except DystopError:  # being replaced; the next look is soon
        return set()
    return {name for name, prints in issued.items() if prints and prints[-1] in revoked}
