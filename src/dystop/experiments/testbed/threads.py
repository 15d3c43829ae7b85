"""All parties of a testbed as threads of this process, over the memory transport or over MPI."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dystop.experiments.config import Experiment, read_experiment
from dystop.experiments.interrupts import Interrupts
from dystop.experiments.jobs import Tail
from dystop.experiments.record_log import RECORDS
from dystop.experiments.run_folder import CONFIG
from dystop.experiments.testbed.coordinator_run import CoordinatorRun
from dystop.experiments.testbed.enrolment import (
    COORDINATOR,
    OBSERVER,
    node_of,
    read_enrolment,
    read_status,
)
from dystop.experiments.testbed.launch import POLL_S, WORKERS, Watch, interruptible, others
from dystop.experiments.testbed.parties import Way, leave_model, make_observer, make_worker
from dystop.experiments.testbed.parts import observer_parts, worker_parts
from dystop.testbed.coordinator.process import CoordinatorProcess
from dystop.testbed.observer import Observer
from dystop.testbed.transport.admission import AllowList
from dystop.testbed.transport.interface import Transport
from dystop.testbed.transport.memory import MemoryHub, MemoryTransport
from dystop.testbed.worker.history import HISTORY_FILE, EventLog, WriteLine
from dystop.testbed.worker.process import WorkerProcess

FAREWELL_S = 8.0  # for the parties to end after the coordinator has
MakeTransport = Callable[[str, AllowList | None], Transport]
"""The way of a party to the others, by its name; without a door everybody may come in."""


@dataclass
class Office:
    """A coordinator in a thread of its own."""

    desk: CoordinatorRun
    transport: Transport
    listen: str = "memory:0"
    seat: CoordinatorProcess | None = None
    error: BaseException | None = None
    opened: threading.Event = field(default_factory=threading.Event)
    closing: bool = False

    def __post_init__(self) -> None:
        """Not open yet."""
        self.thread = threading.Thread(target=self._run, name=COORDINATOR, daemon=True)

    def start(self) -> str:
        """Open it; answers with its address."""
        self.thread.start()
        self.opened.wait()
        if self.seat is None:
            self.raise_error()
        assert self.seat is not None
        return self.seat.address

    def _run(self) -> None:
        try:
            self.desk.run(self.transport, self.listen, self._on_seat)
        except BaseException as error:
            self.error = error
        finally:
            self.opened.set()

    def _on_seat(self, seat: CoordinatorProcess) -> None:
        self.seat = seat
        if self.closing:
            seat.interrupt()
        self.opened.set()

    @property
    def is_open(self) -> bool:
        """Whether the run goes on."""
        return self.thread.is_alive()

    def raise_error(self) -> None:
        """Raise here what went wrong there."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """End the run early, if it is not over; nothing is lost."""
        self.closing = True  # also where it is just being opened
        if self.seat is not None and self.is_open:
            self.seat.interrupt()
        if self.is_open:
            self.thread.join(FAREWELL_S)


def run_threads(folder: Path, watch: Watch) -> None:
    """Run all parties in this process to the end."""
    with MemoryHub() as hub:

        def transport(name: str, door: AllowList | None) -> Transport:
            limits = read_experiment(folder / CONFIG).testbed.limits
            if door is None:
                return MemoryTransport(hub, name, limits)
            return MemoryTransport(hub, name, limits, door)

        experiment = read_experiment(folder / CONFIG)
        run_here(folder, watch, transport, others(experiment))


def run_here(
    folder: Path,
    watch: Watch,
    transport: MakeTransport,
    here: list[str],
    listen: str = "memory:0",
) -> None:
    """Run the coordinator and some other parties in this process to the end of the run."""
    experiment = read_experiment(folder / CONFIG)
    enrolment = read_enrolment(folder, experiment)
    office = Office(
        CoordinatorRun(folder, experiment, enrolment), transport(COORDINATOR, None), listen
    )
    with interruptible(folder), Interrupts() as interrupts, ExitStack() as stack:
        stack.callback(office.close)
        company = Company(experiment, folder, office.start(), transport)
        parties = []
        for name in here:
            interrupts.check()
            parties.append(company.invite(name, stack))
        stack.callback(office.close)  # first of all: it tells everybody to leave
        _follow(office, folder, watch, interrupts.check)
        office.raise_error()
        until = time.monotonic() + FAREWELL_S
        for party in parties:
            party.wait(max(0.0, until - time.monotonic()))


@dataclass(frozen=True)
class Company:
    """The parties beside the coordinator."""

    experiment: Experiment
    folder: Path
    coordinator: str  # address
    transport: MakeTransport

    def invite(self, name: str, stack: ExitStack) -> WorkerProcess | Observer:
        """Start a party, which ends with the stack."""
        party = self._observer() if name == OBSERVER else self._worker(name, stack)
        stack.callback(party.close)
        party.start()
        return party

    def _observer(self) -> Observer:
        way = Way(self.transport(OBSERVER, AllowList()), self.coordinator)
        return make_observer(observer_parts(self.experiment), self.experiment, way)

    def _worker(self, name: str, stack: ExitStack) -> WorkerProcess:
        home, door = self.folder / WORKERS / name, AllowList(OBSERVER)
        diary = EventLog(home / HISTORY_FILE)
        stack.callback(diary.close)
        note = _without_samples(diary.write)
        way = Way(self.transport(name, door), self.coordinator, "memory:0", door=door, note=note)
        parts = worker_parts(self.experiment, node_of(self.experiment, name))
        stack.callback(leave_model, parts, self.experiment, home)
        return make_worker(parts, self.experiment, home, way)


def _without_samples(note: WriteLine) -> WriteLine:
    """A diary that leaves out what the process takes: it is not this worker's alone."""

    def kept(kind: str, **fields: Any) -> None:
        if kind != "sample":
            note(kind, **fields)

    return kept


def _follow(office: Office, folder: Path, watch: Watch, check: Callable[[], None]) -> None:
    tail, workers = Tail(folder / RECORDS), office.desk.experiment.fleet.workers
    while True:
        check()
        open_ = office.is_open
        for record in tail.news():
            watch.on_record(record)
        if not open_:
            return
        watch.on_joining(int(read_status(folder).get("joined", 0)), workers)
        time.sleep(POLL_S)
