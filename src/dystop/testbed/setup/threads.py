"""All parties of a testbed as threads of this process, over the memory transport or over MPI."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dystop.config import Experiment, read_again
from dystop.folders.record_log import RECORDS, RecordTail
from dystop.runs.interrupts import Interrupts
from dystop.testbed.coordinator.process import CoordinatorProcess
from dystop.testbed.names import COORDINATOR, OBSERVER
from dystop.testbed.observer import Observer
from dystop.testbed.setup.coordinator_run import CoordinatorRun
from dystop.testbed.setup.enrolment import node_of, read_enrolment, read_status
from dystop.testbed.setup.launch import (
    POLL_S,
    WORKERS,
    ProgressReporter,
    noting_failure,
    other_parties,
)
from dystop.testbed.setup.parties import (
    PartyConnection,
    make_observer,
    make_worker,
    save_model,
)
from dystop.testbed.setup.parts import observer_parts, worker_parts
from dystop.testbed.transport.admission import AllowList
from dystop.testbed.transport.interface import Transport
from dystop.testbed.transport.memory import MemoryHub, MemoryTransport
from dystop.testbed.worker.history import HISTORY_FILE, EventLog, WriteLine
from dystop.testbed.worker.process import WorkerProcess

LEAVE_S = 8.0  # for the parties to end after the coordinator has ended
MakeTransport = Callable[[str, AllowList | None], Transport]
"""Makes the transport of a party by its name; without an allow list every party may connect."""


@dataclass
class CoordinatorThread:
    """A coordinator in its own thread."""

    run: CoordinatorRun
    transport: Transport
    listen: str = "memory:0"
    process: CoordinatorProcess | None = None
    error: BaseException | None = None
    opened: threading.Event = field(default_factory=threading.Event)
    closing: bool = False

    def __post_init__(self) -> None:
        """Create the thread without starting it."""
        self.thread = threading.Thread(target=self._run, name=COORDINATOR, daemon=True)

    def start(self) -> str:
        """Start the thread and return the coordinator's address."""
        self.thread.start()
        self.opened.wait()
        if self.process is None:
            self.raise_error()
        assert self.process is not None
        return self.process.address

    def _run(self) -> None:
        try:
            self.run.run(self.transport, self.listen, self._on_process)
        except BaseException as error:
            self.error = error
        finally:
            self.opened.set()

    def _on_process(self, process: CoordinatorProcess) -> None:
        self.process = process
        if self.closing:
            process.interrupt()
        self.opened.set()

    @property
    def is_open(self) -> bool:
        """Whether the run continues."""
        return self.thread.is_alive()

    def raise_error(self) -> None:
        """Raise the error of the thread here."""
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        """End the run early, if it has not ended; nothing is lost."""
        self.closing = True  # a coordinator that is just starting checks it
        if self.process is not None and self.is_open:
            self.process.interrupt()
        if self.is_open:
            self.thread.join(LEAVE_S)


def run_threads(folder: Path, watch: ProgressReporter) -> None:
    """Run all parties in this process to the end of the run."""
    experiment = read_again(folder)
    with MemoryHub() as hub:

        def transport(name: str, allow_list: AllowList | None) -> Transport:
            limits = experiment.testbed.limits
            if allow_list is None:
                return MemoryTransport(hub, name, limits)
            return MemoryTransport(hub, name, limits, allow_list)

        run_parties(folder, watch, transport, other_parties(experiment))


def run_parties(
    folder: Path,
    watch: ProgressReporter,
    transport: MakeTransport,
    here: list[str],
    listen: str = "memory:0",
    listen_workers: str = "memory:0",
) -> None:
    """Run the coordinator and some other parties in this process to the end of the run.

    The caller has created the folder, or has checked with `read_experiment` whose it is.

    Args:
        folder: The run folder.
        watch: Shows the progress.
        transport: Makes the transport of a party.
        here: The other parties of this process.
        listen: Where the coordinator listens.
        listen_workers: Where workers listen.
    """
    experiment = read_again(folder)
    enrolment = read_enrolment(folder, experiment)
    coordinator = CoordinatorThread(
        CoordinatorRun(folder, experiment, enrolment), transport(COORDINATOR, None), listen
    )
    with noting_failure(folder), Interrupts() as interrupts, ExitStack() as stack:
        stack.callback(coordinator.close)
        address = coordinator.start()
        threads = PartyThreads(experiment, folder, address, transport, listen_workers)
        parties = []
        for name in here:
            interrupts.check()
            parties.append(threads.start(name, stack))
        stack.callback(coordinator.close)  # runs first: the coordinator tells all parties to leave
        _follow(coordinator, folder, watch, interrupts.check)
        coordinator.raise_error()
        until = time.monotonic() + LEAVE_S
        for party in parties:
            party.wait(max(0.0, until - time.monotonic()))


@dataclass(frozen=True)
class PartyThreads:
    """The parties beside the coordinator, as threads."""

    experiment: Experiment
    folder: Path
    coordinator: str  # address
    transport: MakeTransport
    listen: str = "memory:0"  # of a worker

    def start(self, name: str, stack: ExitStack) -> WorkerProcess | Observer:
        """Start a party, which ends with the stack."""
        party = self._observer() if name == OBSERVER else self._worker(name, stack)
        stack.callback(party.close)
        party.start()
        return party

    def _observer(self) -> Observer:
        connection = PartyConnection(self.transport(OBSERVER, AllowList()), self.coordinator)
        return make_observer(observer_parts(self.experiment), self.experiment, connection)

    def _worker(self, name: str, stack: ExitStack) -> WorkerProcess:
        home, allow_list = self.folder / WORKERS / name, AllowList(OBSERVER)
        event_log = EventLog(home / HISTORY_FILE)
        stack.callback(event_log.close)
        write_line = _without_samples(event_log.write)
        connection = PartyConnection(
            self.transport(name, allow_list),
            self.coordinator,
            self.listen,
            allow_list=allow_list,
            write_line=write_line,
        )
        parts = worker_parts(self.experiment, node_of(self.experiment, name))
        stack.callback(save_model, parts, self.experiment, home)
        return make_worker(parts, self.experiment, home, connection)


def _without_samples(write_line: WriteLine) -> WriteLine:
    """Return a writer that omits resource samples: the process serves all parties."""

    def kept(kind: str, **fields: Any) -> None:
        if kind != "sample":
            write_line(kind, **fields)

    return kept


def _follow(
    coordinator: CoordinatorThread, folder: Path, watch: ProgressReporter, check: Callable[[], None]
) -> None:
    tail, workers = RecordTail(folder / RECORDS), coordinator.run.experiment.fleet.workers
    while True:
        check()
        open_ = coordinator.is_open
        for record in tail.read():
            watch.on_record(record)
        if not open_:
            return
        watch.on_joining(int(read_status(folder).get("joined", 0)), workers)
        time.sleep(POLL_S)
