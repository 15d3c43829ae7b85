"""The worker's process: threads, sockets and a disk around `WorkerMachine`.

It has three kinds of threads, as in the paper. The updating thread owns the machine and executes
its actions. The training thread trains. The pushing thread encodes the models that peers pull
(`model_server` passes them to the threads of the transport). A small pool pulls models. Each
checkpoint is written in a thread of its own: the updating thread waits for it, and answers the
pulls of peers meanwhile.
"""

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from dystop.errors import StorageError
from dystop.testbed.events import (
    AnswerPull,
    CancelPull,
    CheckpointFailed,
    CheckpointSaved,
    Counters,
    Exit,
    MessageFromCoordinator,
    PeerIncident,
    Publication,
    PullRequested,
    PullWithdrawn,
    SaveCheckpoint,
    SendToCoordinator,
    StartPull,
    StartTraining,
    Tick,
    Vector,
    WorkerAction,
    WorkerEvent,
)
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.launch.health import Health, HealthState
from dystop.testbed.log_throttle import throttled_logger
from dystop.testbed.protocol.messages import (
    Execute,
    ExecuteAck,
    Heartbeat,
    JoinOk,
    Report,
    ReportAck,
    Roster,
    Stop,
    ToCoordinator,
)
from dystop.testbed.protocol.payload import Schema
from dystop.testbed.transport.admission import AllowList
from dystop.testbed.transport.interface import Listener, Transport
from dystop.testbed.worker.checkpoint import CheckpointStore
from dystop.testbed.worker.guard import Guard
from dystop.testbed.worker.history import EventLogger, WriteLine
from dystop.testbed.worker.machine import WorkerMachine
from dystop.testbed.worker.model_server import ModelEncoder, PublishedModelServer
from dystop.testbed.worker.outgoing import outgoing_of
from dystop.testbed.worker.public_copies import HeldCopies, PublicCopy
from dystop.testbed.worker.pulls import PullThreads
from dystop.testbed.worker.session_client import SessionClient
from dystop.testbed.worker.state import (
    WorkerSetup,
    WorkerState,
    first_state,
)
from dystop.testbed.worker.training_thread import TrainFunction, TrainingThread

_LOG = throttled_logger(__name__)
TICK_S = 0.1
SAMPLE_S = 10.0  # between two samples of the resources of the process


def write_nothing(kind: str, **fields: Any) -> None:
    """Discard a line of the event log."""


@dataclass(frozen=True)
class WorkerComponents:
    """The parts of a worker's process."""

    transport: Transport
    coordinator: str  # its address
    setup: WorkerSetup  # the process fills in address and digest
    schema: Schema
    initial: tuple[Vector, Counters]  # the initial model of the run
    train: TrainFunction | None = None  # None: a server, which has no data
    checkpoints: CheckpointStore | None = None  # None: nothing survives a restart
    listen: str = "127.0.0.1:0"  # where models are served
    advertise: str = ""  # address for peers, if it differs from where the worker listens
    step_s: float = 0.0  # least seconds of a mini-batch (emulated device); 0: no emulation
    allow_list: AllowList = field(default_factory=lambda: AllowList("observer"))
    write_line: WriteLine = write_nothing  # `EventLog(path).write`


class WorkerProcess:
    """One worker: `start`, then `wait`; or `run` for both."""

    def __init__(self, components: WorkerComponents) -> None:
        """Read the checkpoint; nothing runs yet."""
        self.components = components
        self._state, damage = _initial_state(components)
        # The future of a save is in the queue once the save has ended.
        self._events: queue.SimpleQueue[WorkerEvent | Future[None]] = queue.SimpleQueue()
        self._delayed: deque[WorkerEvent] = deque()  # by a save; older than those in the queue
        if damage:
            _LOG.warning("checkpoint: %s", damage)
            self._events.put(PeerIncident(components.setup.name, "damaged_checkpoint", damage))
        self._logger = EventLogger(components.write_line)
        self._copy = _public_copy(components, self._state)
        self._encoder = ModelEncoder(components.schema, self._copy)
        setup = components.setup
        self._outgoing = outgoing_of(setup.exchange.attackers, setup.node, components.initial[0])
        self._model_server = PublishedModelServer(
            self._encoder, self._logger, self._events.put, self._outgoing
        )
        self._session = SessionClient(self._events.put)
        self._training = TrainingThread(components.train, components.step_s, self._events.put)
        self._pulls = PullThreads(
            components.transport,
            components.schema,
            components.setup.params.timeouts,
            self._events.put,
            _held_copies(components),
        )
        self._over = threading.Event()
        self._ended = threading.Event()
        self._listeners: list[Listener] = []  # the one that serves models is the first
        self._updating = threading.Thread(target=self._update, name="updating", daemon=True)
        self._next_sample_s = 0.0
        self._turned_s = time.monotonic()  # when the updating thread turned last
        self.exit: Exit | None = None

    # Start and end -----------------------------------------------------------------------------

    def start(self) -> None:
        """Serve models, open the session, and start the threads. Raises TransportError."""
        components = self.components
        models = components.transport.serve_models(components.listen, self._model_server)
        self._listeners.append(models)
        address = components.advertise or models.address
        setup = replace(
            components.setup,
            introduction=replace(components.setup.introduction, address=address),
            digest=self._encoder.digest,
            own_copy=self._own_copy,
        )
        guard = Guard(setup.params.guards, components.schema.variances)
        self.machine = WorkerMachine(setup, self._state, guard)
        self._logger.started(
            incarnation=self._state.incarnation,
            version=self._state.version,
            number=self._state.number,
            round=self._state.last_round,
            epoch=self._state.epoch,
        )
        self._updating.start()
        self._training.start()
        session = components.transport.open_session(components.coordinator, self._session)
        self._listeners.append(session)

    def _own_copy(self, model: Publication, round_: int, stage: int) -> Vector | None:
        """Return what peers get of a model in a stage of a round; None: the model itself."""
        if self._copy is None:
            return None
        return self._copy.at(self._outgoing.served(model), round_, stage)

    def wait(self, timeout_s: float | None = None) -> Exit | None:
        """Wait for the end; return None after `timeout_s`."""
        return self.exit if self._ended.wait(timeout_s) else None

    def health(self) -> Health:
        """Return whether the worker works and has joined, after `start`; from any thread."""
        state: HealthState = "joined" if self.machine.session.is_joined else "waiting"
        address = self._listeners[0].address
        return Health(self.components.setup.name, state, self._turned_s, address)

    def run(self) -> Exit:
        """Start and wait for the end."""
        self.start()
        self._ended.wait()
        return self.exit or Exit(1, "the worker ended without an exit action")

    def stop(self, text: str = "stopped") -> None:
        """Save, leave and end, as after a `Stop` of the coordinator; return immediately."""
        self._events.put(MessageFromCoordinator(Stop(2**62, text)))

    def close(self) -> None:
        """End without a message and wait for all threads; the checkpoint stays."""
        self._end(Exit(1, "closed"))
        self._training.join()
        if self._updating.is_alive() and self._updating is not threading.current_thread():
            self._updating.join()

    def _end(self, reason: Exit) -> None:
        """Release everything, once."""
        if self._over.is_set():
            return
        self.exit = reason
        self._over.set()
        self._session.close()
        self._training.close()
        for listener in reversed(self._listeners):
            listener.stop()
        self._model_server.close()
        self._pulls.close()
        self._ended.set()

    # The updating thread -----------------------------------------------------------------------

    def _update(self) -> None:
        """Own the machine: handle events and ticks, execute actions."""
        next_tick_s = time.monotonic()
        try:
            while not self._over.is_set():
                self._turned_s = now_s = time.monotonic()
                if now_s >= next_tick_s:
                    next_tick_s = now_s + TICK_S
                    self._handle(Tick())
                    self._log_resources(now_s)
                with suppress(queue.Empty):
                    self._handle(self._next_event(max(0.0, next_tick_s - time.monotonic())))
        except Exception as error:
            _LOG.exception("the worker cannot continue")
            self._end(Exit(1, f"{type(error).__name__}: {error}"))

    def _next_event(self, timeout_s: float) -> WorkerEvent:
        """Return the oldest event; raise `queue.Empty` if none comes in time."""
        if self._delayed:
            return self._delayed.popleft()
        event = self._events.get(timeout=timeout_s)
        assert not isinstance(event, Future)  # `_answer_pulls_until` takes it
        return event

    def _handle(self, event: WorkerEvent) -> None:
        self._logger.event(event)
        self._outgoing.learn(event)
        if isinstance(event, MessageFromCoordinator):
            self._update_allow_list(event.message)
            self._update_budget(event.message)
        self._carry_out(self.machine.handle(event, time.monotonic()))

    def _update_allow_list(self, message: object) -> None:
        """Allow the peers of a new roster; cut the connections of all others."""
        if not isinstance(message, JoinOk | Roster) or message.epoch < self.machine.state.epoch:
            return
        for name in self.components.allow_list.update(message.peers):
            self._listeners[0].drop(name)

    def _update_budget(self, message: object) -> None:
        """Let peers pull what the coordinator's rounds can have ordered."""
        match message:
            case Execute():
                self._model_server.budget.round_known(message.round, len(message.stages))
            case JoinOk():
                self._model_server.budget.joined(message.round)
            case Heartbeat():
                self._model_server.budget.round_known(message.last_round)

    def _carry_out(self, actions: Sequence[WorkerAction]) -> None:
        for action in actions:
            if self._over.is_set():
                return
            self._logger.action(action)
            self._outgoing.learn(action)
            self._carry_out_one(action)

    def _carry_out_one(self, action: WorkerAction) -> None:
        match action:
            case SendToCoordinator(message):
                self._send(message)
            case StartPull():
                self._pulls.start(action)
            case CancelPull(key):
                self._pulls.cancel(key)
            case StartTraining():
                self._training.submit(action)
            case AnswerPull(key, answer):
                self._model_server.answer(key, answer)
            case SaveCheckpoint():
                self._save(action)
            case Exit():
                self._end(action)

    def _send(self, message: ToCoordinator) -> None:
        self._session.send(message)
        if isinstance(message, ExecuteAck) and message.state in ("accepted", "queued"):
            reach("worker.after_accept")

    def _save(self, action: SaveCheckpoint) -> None:
        """Write the checkpoint, then execute the actions that waited for it."""
        _reach_before_save(action)
        try:
            if self.components.checkpoints is not None:
                self._answer_pulls_until(self.components.checkpoints.start_save(action.state))
        except StorageError as error:
            _LOG.error("%s", error)
            failed = CheckpointFailed(str(error)[:200])
            self._carry_out(self.machine.handle(failed, time.monotonic()))
            return
        self._carry_out(self.machine.handle(CheckpointSaved(), time.monotonic()))
        reach("worker.after_rename_before_report")
        self._carry_out(action.after_save)

    def _answer_pulls_until(self, saved: "Future[None]") -> None:
        """Answer pulls until a save has ended; raise what it raised.

        Other events wait for the save. A pull does not overtake one that could change its answer.
        """
        saved.add_done_callback(self._events.put)
        while (event := self._events.get()) is not saved:
            assert not isinstance(event, Future)  # there is one save at a time
            is_pull = isinstance(event, PullRequested | PullWithdrawn)
            if is_pull and not any(map(_changes_answers, self._delayed)):
                self._handle(event)
            else:
                self._delayed.append(event)
        saved.result()

    def _log_resources(self, now_s: float) -> None:
        if now_s >= self._next_sample_s:
            self._next_sample_s = now_s + SAMPLE_S
            self._logger.sampled()


def _initial_state(components: WorkerComponents) -> tuple[WorkerState, str]:
    """Return the state of the checkpoint, or that of a new worker; and what was damaged, if any."""
    new = first_state(*components.initial, deltas=components.setup.deltas)
    if components.checkpoints is None:
        return new, ""
    loaded = components.checkpoints.load()
    if loaded.state is None:
        return new, loaded.note and f"{loaded.note}; the worker starts untrained"
    if len(loaded.state.published) != components.schema.width:
        return new, "it belongs to another model; the worker starts untrained"
    return loaded.state, loaded.note and f"{loaded.note}; the worker continues from the one before"


def _public_copy(components: WorkerComponents, state: WorkerState) -> PublicCopy | None:
    """Return what others have of this worker's models; None where workers exchange models."""
    codec = components.schema.codec
    if codec is None:
        return None
    is_new = not state.run  # an earlier process has told others of copies that are lost
    initial = components.initial[0] if is_new else None
    return PublicCopy(codec, components.setup.node, initial)


def _held_copies(components: WorkerComponents) -> HeldCopies | None:
    """Return the copies of others; None where workers exchange models."""
    if components.schema.codec is None:
        return None
    return HeldCopies(components.initial[0], components.setup.params.limits.copies)


def _changes_answers(event: WorkerEvent) -> bool:
    """Return whether an event can change what peers get: their models, or whether they may pull."""
    if isinstance(event, MessageFromCoordinator):
        return not isinstance(event.message, Heartbeat | ReportAck)
    return not isinstance(event, PeerIncident)


def _reach_before_save(action: SaveCheckpoint) -> None:
    """Pass the failpoints before a save, by what waits for it."""
    if any(isinstance(a, StartTraining) for a in action.after_save):
        reach("worker.after_aggregate")
    messages = [a.message for a in action.after_save if isinstance(a, SendToCoordinator)]
    if any(isinstance(m, Report) and m.kind == "trained" for m in messages):
        reach("worker.before_publish")
