"""The worker's end of the telephone: bytes of a session become events, messages become bytes."""

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dystop.errors import StorageError
from dystop.testbed.events import (
    Abandon,
    Counters,
    Exit,
    Fetch,
    Save,
    Say,
    Serve,
    SessionLost,
    SessionOpened,
    Tick,
    Told,
    Train,
    Vector,
    WorkerAction,
    WorkerEvent,
    WriteFailed,
)
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.log_throttle import shown, throttled_logger
from dystop.testbed.protocol.codec import BadMessage, decode, encode
from dystop.testbed.protocol.messages import (
    Complaint,
    ExecuteAck,
    JoinOk,
    Report,
    Roster,
    Stop,
    ToCoordinator,
)
from dystop.testbed.protocol.payload import Schema
from dystop.testbed.transport.admission import AllowList
from dystop.testbed.transport.interface import Link, Listener, Transport
from dystop.testbed.worker.checkpoint import CheckpointStore
from dystop.testbed.worker.guard import Guard
from dystop.testbed.worker.history import Note, Watch
from dystop.testbed.worker.machine import WorkerMachine
from dystop.testbed.worker.model_server import ModelEncoder, PublishedModelServer
from dystop.testbed.worker.pulls import PullThreads
from dystop.testbed.worker.state import WorkerSetup, WorkerState, first_state
from dystop.testbed.worker.training_thread import LocalTraining, TrainingThread

_LOG = throttled_logger(__name__)
Put = Callable[[SessionOpened | SessionLost | Told], None]


class SessionClient:
    """Implements `wire.interface.Ear`; hands events to `put`, from whatever thread they come."""

    def __init__(self, put: Put) -> None:
        """Nobody is on the line yet."""
        self._put = put
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._free = threading.Event()  # no session is open

    def opened(self, link: Link) -> None:
        """The coordinator has answered."""
        with self._lock:
            self._link = link
        self._free.clear()
        self._put(SessionOpened())

    def received(self, message: bytes) -> None:
        """Pass on what the coordinator said; complain about what is not understood."""
        try:
            told = Told(decode(message, "worker"))
        except BadMessage as error:
            _LOG.warning("the coordinator sent something that is not a message: %s", error)
            self.say(Complaint(error.code, error.text))
            return
        self._put(told)

    def closed(self, reason: str) -> None:
        """The session is over."""
        with self._lock:
            self._link = None
        self._free.set()
        _LOG.info("session over: %s", shown(reason))
        self._put(SessionLost())

    def say(self, message: ToCoordinator) -> None:
        """Send, if there is a session."""
        with self._lock:
            link = self._link
        if link is None:
            return
        try:
            link.send(encode(message))
        except BadMessage as error:  # ours to mend, and no reason to die
            _LOG.error("%s cannot be sent: %s", type(message).__name__, error)

    def hang_up(self, patience_s: float = 1.0) -> None:
        """End the session after what was said; waits a little until the last word is through."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()
            self._free.wait(patience_s)


# MERGED: A worker that runs: threads, sockets and a disk around `WorkerMachine`. Three kinds of
#   threads, as in the paper: the updating thread owns the machine and carries out what it wants,
#   the training thread trains, and the pushing thread packs what peers fetch (`shell.shelf` hands
#   it to the threads of the transport). A small pool fetches.


_LOG = throttled_logger(__name__)
TICK_S = 0.1
SAMPLE_S = 10.0  # between two looks at the resources of the process
_STATM = Path("/proc/self/statm")


def no_note(kind: str, **fields: Any) -> None:
    """A diary that nobody keeps."""


@dataclass(frozen=True)
class WorkerComponents:
    """What a node is made of."""

    transport: Transport
    coordinator: str  # its address
    setup: WorkerSetup  # address, incarnation and digest are filled in by the node
    schema: Schema
    initial: tuple[Vector, Counters]  # the model that everybody begins with
    train: LocalTraining | None = None  # None: a server, which has no data
    vault: CheckpointStore | None = None  # None: nothing survives a restart
    listen: str = "127.0.0.1:0"  # where models are served
    advertise: str = ""  # where peers find it, if that is not where it listens
    step_s: float = 0.0  # emulated: least seconds of a mini-batch; 0: as long as it takes
    door: AllowList = field(default_factory=lambda: AllowList("observer"))
    note: Note = no_note  # `History(path).note`


class WorkerProcess:
    """One worker: `start`, then `wait`; or `run` for both."""

    def __init__(self, parts: WorkerComponents) -> None:
        """Read the checkpoint; nothing runs yet."""
        self.parts = parts
        self._state = _remembered(parts)
        self._events: queue.SimpleQueue[WorkerEvent] = queue.SimpleQueue()
        self._note = _locked(parts.note)
        self._watch = Watch(self._note)
        self._packer = ModelEncoder(parts.schema)
        self._shelf = PublishedModelServer(self._packer, self._watch, self._events.put)
        self._line = SessionClient(self._events.put)
        self._tutor = TrainingThread(parts.train, parts.step_s, self._events.put)
        self._fetchers = PullThreads(
            parts.transport, parts.schema, parts.setup.timeouts, self._events.put
        )
        self._over = threading.Event()
        self._ended = threading.Event()
        self._served: list[Listener] = []
        self._updating = threading.Thread(target=self._update, name="updating", daemon=True)
        self._sample_s = 0.0
        self.exit: Exit | None = None

    # Life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Serve models, call the coordinator, and go. Raises TransportError."""
        parts = self.parts
        shop = parts.transport.serve_models(parts.listen, self._shelf)
        self._served.append(shop)
        setup = replace(
            parts.setup,
            address=parts.advertise or shop.address,
            incarnation=max(time.time_ns(), self._state.incarnation + 1),
            digest=self._packer.digest,
        )
        guard = Guard(setup.guards, parts.schema.variances)
        self.machine = WorkerMachine(setup, self._state, guard)
        self._note_start(setup)
        self._updating.start()
        self._tutor.start()
        self._served.append(parts.transport.open_session(parts.coordinator, self._line))

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait for the end; None where it has not come in time."""
        return self.exit if self._ended.wait(timeout_s) else None

    def run(self) -> Exit:
        """Start and wait for the end."""
        self.start()
        self._ended.wait()
        return self.exit or Exit(1, "the worker ended without a word")

    def stop(self, text: str = "stopped") -> None:
        """Save, say goodbye and end, as if the coordinator had said so; returns at once."""
        self._events.put(Told(Stop(2**62, text)))

    def close(self) -> None:
        """End without a word, and leave no thread behind; what is on the disk stays."""
        self._end(Exit(1, "closed"))
        self._tutor.join()
        if self._updating.is_alive() and self._updating is not threading.current_thread():
            self._updating.join()

    def _end(self, why: Exit) -> None:
        """Tear everything down, once."""
        if self._over.is_set():
            return
        self.exit = why
        self._over.set()
        self._line.hang_up()
        self._tutor.close()
        for served in reversed(self._served):
            served.stop()
        self._shelf.close()
        self._fetchers.close()
        self._ended.set()

    # The updating thread -----------------------------------------------------------------------

    def _update(self) -> None:
        """Own the machine: events in, actions carried out, ticks in between."""
        next_tick = time.monotonic()
        try:
            while not self._over.is_set():
                now = time.monotonic()
                if now >= next_tick:
                    next_tick = now + TICK_S
                    self._handle(Tick())
                    self._sample(now)
                with suppress(queue.Empty):
                    self._handle(self._events.get(timeout=max(0.0, next_tick - time.monotonic())))
        except Exception as error:
            _LOG.exception("the worker cannot go on")
            self._end(Exit(1, f"{type(error).__name__}: {error}"))

    def _handle(self, event: WorkerEvent) -> None:
        self._watch.event(event)
        if isinstance(event, Told) and isinstance(event.message, JoinOk | Roster):
            self._welcome(event.message)
        self._carry_out(self.machine.handle(event, time.monotonic()))

    def _welcome(self, message: JoinOk | Roster) -> None:
        """Let in who takes part; cut at once who no longer does."""
        if message.epoch < self.machine.state.epoch:
            return
        for name in self.parts.door.update(message.peers):
            self._served[0].drop(name)

    def _carry_out(self, actions: list[WorkerAction] | tuple[WorkerAction, ...]) -> None:
        for action in actions:
            if self._over.is_set():
                return
            self._watch.action(action)
            self._act(action)

    def _act(self, action: WorkerAction) -> None:
        match action:
            case Say(message):
                self._say(message)
            case Fetch():
                self._fetchers.begin(action)
            case Abandon(key):
                self._fetchers.abandon(key)
            case Train():
                self._tutor.begin(action)
            case Serve(key, answer):
                self._shelf.serve(key, answer)
            case Save():
                self._save(action)
            case Exit():
                self._end(action)

    def _say(self, message: Any) -> None:
        self._line.say(message)
        if isinstance(message, ExecuteAck) and message.state in ("accepted", "queued"):
            reach("worker.after_accept")

    def _save(self, action: Save) -> None:
        if any(isinstance(a, Train) for a in action.then):
            reach("worker.after_aggregate")
        said = [a.message for a in action.then if isinstance(a, Say)]
        if any(isinstance(m, Report) and m.kind == "trained" for m in said):
            reach("worker.before_publish")
        try:
            if self.parts.vault is not None:
                self.parts.vault.save(action.state)
        except StorageError as error:
            _LOG.error("%s", error)
            failed = WriteFailed(str(error)[:200])
            self._carry_out(self.machine.handle(failed, time.monotonic()))
            return
        reach("worker.after_rename_before_report")
        self._carry_out(action.then)

    # The diary ---------------------------------------------------------------------------------

    def _note_start(self, setup: WorkerSetup) -> None:
        state = self._state
        self._watch.started(
            incarnation=setup.incarnation,
            version=state.version,
            number=state.number,
            round=state.last_round,
            epoch=state.epoch,
        )

    def _sample(self, now: float) -> None:
        if now < self._sample_s:
            return
        self._sample_s = now + SAMPLE_S
        self._note("sample", **resources())


def _remembered(parts: WorkerComponents) -> WorkerState:
    """What the vault has, if it fits the model; else a new worker."""
    fresh = first_state(*parts.initial, deltas=parts.setup.deltas)
    if parts.vault is None:
        return fresh
    found = parts.vault.load()
    if found.note:
        _LOG.warning("checkpoint: %s", found.note)
    state = found.state
    if state is not None and len(state.published) != parts.schema.width:
        _LOG.warning("checkpoint: it is of another model; beginning anew")
        state = None
    return state or fresh


def _locked(note: Note) -> Note:
    """The same diary for several threads."""
    lock = threading.Lock()

    def locked(kind: str, **fields: Any) -> None:
        with lock:
            note(kind, **fields)

    return locked


def resources() -> dict[str, int]:
    """What this process takes now, as far as the system tells: memory, files, threads."""
    taken = {"threads": threading.active_count()}
    with suppress(OSError, ValueError, IndexError):
        pages = int(_STATM.read_text().split()[1])
        taken["rss_bytes"] = pages * os.sysconf("SC_PAGE_SIZE")
        taken["descriptors"] = len(os.listdir("/proc/self/fd"))
    return taken
