"""The worker as a state machine (alg:dystop): events in, actions out, no clock, no socket, no disk.

    machine = WorkerMachine(setup, state)            # `first_state(...)` or the checkpoint's state
    for action in machine.handle(event, now_s): ...  # execute in order

Rules for the driver. It calls `handle(Tick(), now_s)` a few times a second. It answers each
`SaveCheckpoint` with `CheckpointSaved` or `CheckpointFailed` before any other event but
`PullRequested` and `PullWithdrawn`, each `StartPull` with `PullFinished` or `PullFailed` unless it
was cancelled, and each `StartTraining` with `TrainingFinished` or `TrainingFailed`. It gives every
`PullRequested` a key of its own.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dystop.testbed.events import (
    AnswerPull,
    CheckpointFailed,
    CheckpointSaved,
    Exit,
    MessageFromCoordinator,
    PeerIncident,
    PullFailed,
    PullFinished,
    PullRequested,
    PullWithdrawn,
    SendToCoordinator,
    SessionLost,
    SessionOpened,
    Tick,
    TrainingFailed,
    TrainingFinished,
    WorkerAction,
    WorkerEvent,
)
from dystop.testbed.names import OBSERVER
from dystop.testbed.protocol.messages import (
    Cancel,
    Complaint,
    Execute,
    ExecuteAck,
    JoinOk,
    Leave,
    Peer,
    Phase,
    Reject,
    ReportAck,
    Roster,
    Stop,
)
from dystop.testbed.protocol.pulls import PullRefused
from dystop.testbed.worker.durable_state import DurableState, with_one_save
from dystop.testbed.worker.exchange import PullTracker
from dystop.testbed.worker.guard import Guard
from dystop.testbed.worker.orders import OrderExecution, order_problem
from dystop.testbed.worker.published_models import MaskLimit
from dystop.testbed.worker.session import PeerIncidents
from dystop.testbed.worker.state import WorkerSetup, WorkerState, without_report

EXCLUDED_CODE = 6  # exit code: quarantined or revoked; a restart would be refused, too
Handler = Callable[[Any], list[WorkerAction]]
ROSTER_S = 3.0  # how long an order with an unknown peer waits for a newer roster
UNKNOWN_PEER_S = 0.5  # pause for an unknown peer: the next roster may contain it


class WorkerMachine:
    """One worker. Owned by one thread."""

    def __init__(self, setup: WorkerSetup, state: WorkerState, guard: Guard | None = None) -> None:
        """Start, or continue from a checkpoint.

        Args:
            setup: The worker's identity and parameters.
            state: The state that survived the last process.
            guard: Judges pulled models; by default a new one with the guards of the setup.
        """
        guard = guard or Guard(setup.params.guards)
        self.setup = setup
        self.durable = DurableState(setup, state, guard)
        self.pulls = PullTracker(setup, guard)
        self.orders = OrderExecution(self.durable, self.pulls)
        self.session = self.durable.session
        self.incidents = PeerIncidents()
        self._masks = MaskLimit()
        self._pulls_after_save: dict[int, PullRequested] = {}  # by key
        self._has_started = self._is_leaving = self._is_warm_start = self._has_joined = False
        self._deferred: tuple[Execute, float] | None = None  # an order, and when it arrived
        self._event_handlers: dict[type, Handler] = {
            Tick: self._on_tick,
            SessionOpened: self._on_session_opened,
            SessionLost: self._on_session_lost,
            MessageFromCoordinator: self._on_message,
            PullFinished: self.orders.pull_finished,
            PullFailed: self.orders.pull_failed,
            TrainingFinished: self.orders.training_ended,
            TrainingFailed: self.orders.training_ended,
            PullRequested: self._on_pull_requested,
            PullWithdrawn: self._on_pull_withdrawn,
            PeerIncident: self._on_peer_incident,
            CheckpointSaved: self._on_checkpoint_saved,
            CheckpointFailed: self._on_checkpoint_failed,
        }
        self._message_handlers: dict[type, Handler] = {
            JoinOk: self._on_join_ok,
            Reject: self._on_reject,
            Execute: self._on_execute,
            Cancel: self._on_cancel,
            ReportAck: self._on_report_ack,
            Roster: self._on_roster,
            Stop: self._on_stop,
        }

    @property
    def state(self) -> WorkerState:
        """The state that a checkpoint would hold now."""
        return self.durable.state

    @property
    def phase(self) -> Phase:
        """What the worker currently does."""
        return self.orders.phase

    def handle(self, event: WorkerEvent, now_s: float) -> list[WorkerAction]:
        """Handle an event; return the actions, with one save at most.

        Args:
            event: The event.
            now_s: Monotonic time of this worker; never smaller than before.
        """
        self.durable.now_s = now_s
        actions: list[WorkerAction] = []
        if not self._has_started:
            self._has_started = True
            actions += self.durable.resume_training()
        return with_one_save(actions + self._event_handlers[type(event)](event))

    # The session -------------------------------------------------------------------------------

    def _on_session_opened(self, event: SessionOpened) -> list[WorkerAction]:
        self.session.opened(self.durable.now_s)
        return self._join()

    def _join(self) -> list[WorkerAction]:
        return [self.session.join(self.setup, self.state, self.phase)]

    def _on_session_lost(self, event: SessionLost) -> list[WorkerAction]:
        self.session.lost()
        return []

    def _on_message(self, event: MessageFromCoordinator) -> list[WorkerAction]:
        handler = self._message_handlers.get(type(event.message))
        return handler(event.message) if handler else []  # heartbeats and complaints: no effect

    def _on_join_ok(self, message: JoinOk) -> list[WorkerAction]:
        """Repeat unacknowledged reports; start the first training of a new worker."""
        if message.epoch < self.state.epoch or self.state.run not in ("", message.run):
            return []
        self.durable.state = replace(self.state, run=message.run, incarnation=message.incarnation)
        self.session.joined(message, self.durable.now_s)
        actions = self._adopt_epoch(message.epoch) + self._set_peers(message.peers)
        self._is_warm_start = message.warm_start and self.setup.first_steps > 0
        actions += self._start_first_training() + self._due_messages()
        self._has_joined = True
        return actions + self._run_deferred_order()

    def _start_first_training(self) -> list[WorkerAction]:
        """Under a warm start, train a new worker immediately, as in the simulator."""
        if self.state.number >= 0 or self.state.training is not None:
            return []
        if self._is_warm_start:
            return self.durable.start_first_training()
        self.durable.state = replace(self.state, number=0)
        return []

    def _adopt_epoch(self, epoch: int) -> list[WorkerAction]:
        """From now on, ignore coordinators of lower epochs."""
        if epoch <= self.state.epoch:
            return []
        self.durable.state = replace(self.state, epoch=epoch)
        return self.durable.save()

    def _on_reject(self, message: Reject) -> list[WorkerAction]:
        if message.retry_s <= 0:
            code = EXCLUDED_CODE if message.code in ("quarantined", "revoked") else 2
            return [Exit(code, f"the coordinator refused: {message.code}: {message.text}")]
        self.session.refused(message.retry_s, self.durable.now_s)
        return []

    def _on_roster(self, message: Roster) -> list[WorkerAction]:
        if message.epoch < self.state.epoch:
            return []
        return self._set_peers(message.peers) + self._run_deferred_order()

    def _set_peers(self, peers: tuple[Peer, ...]) -> list[WorkerAction]:
        self.pulls.set_peers(peers)
        refused = self.durable.published.refuse_others(self._allowed_peers)
        return [*refused, *self.orders.peers_changed()]

    def _on_stop(self, message: Stop) -> list[WorkerAction]:
        """Save, leave and exit: the run is over."""
        if message.epoch < self.state.epoch:
            return []
        self._is_leaving = True
        leave = SendToCoordinator(Leave(message.text))
        return self.durable.save(leave, Exit(0, message.text))

    # Orders ------------------------------------------------------------------------------------

    def _on_execute(self, order: Execute) -> list[WorkerAction]:
        if order.epoch < self.state.epoch:
            stale = ExecuteAck(order.round, "stale_epoch", self.state.epoch)
            return [SendToCoordinator(stale)]
        if problem := order_problem(order, deltas=self.setup.deltas):
            return [SendToCoordinator(Complaint("order", f"round {order.round}: {problem}"))]
        if not (self._has_joined and self.pulls.knows_all(order)):
            self._deferred = (order, self.durable.now_s)
            return []
        return self._adopt_epoch(order.epoch) + self.orders.execute(order)

    def _run_deferred_order(self) -> list[WorkerAction]:
        """Run a deferred order once its peers are known, or when its wait expires."""
        if self._deferred is None or not self._has_joined:
            return []
        order, since_s = self._deferred
        if self.durable.now_s < since_s + ROSTER_S and not self.pulls.knows_all(order):
            return []
        self._deferred = None
        if order.epoch < self.state.epoch:
            return []
        return self._adopt_epoch(order.epoch) + self.orders.execute(order)

    def _on_cancel(self, message: Cancel) -> list[WorkerAction]:
        return [] if message.epoch < self.state.epoch else self.orders.cancel(message)

    def _on_report_ack(self, message: ReportAck) -> list[WorkerAction]:
        self.session.acknowledged(message.round, message.kind)
        self.durable.state = without_report(self.state, message.round, message.kind)
        return []

    # Time and disk -----------------------------------------------------------------------------

    def _on_tick(self, event: Tick) -> list[WorkerAction]:
        durable = self.durable
        actions = self._join() if self.session.take_join_due(durable.now_s) else []
        actions += self._due_messages() + self.orders.expire() + durable.retry_save()
        actions += self._run_deferred_order()
        if self._is_warm_start and not durable.disk_full:
            actions += self._start_first_training()
        longest_wait_s = self.setup.params.timeouts.round_cap_s
        return [*actions, *durable.published.expire(durable.now_s, longest_wait_s)]

    def _due_messages(self) -> list[WorkerAction]:
        """Return the heartbeat, the reports and the incidents that are due."""
        durable, session = self.durable, self.session
        heartbeat = session.heartbeat(self.state, self.phase, durable.disk_full, durable.now_s)
        reports = session.repeated_reports(durable.sendable_reports, durable.now_s)
        if not session.is_joined:
            return [*heartbeat, *reports]
        nodes = {p.name: p.node for p in self.pulls.peers.values()}
        nodes[self.setup.name] = self.setup.node
        return [*heartbeat, *reports, *self.incidents.due(nodes, durable.now_s)]

    def _on_checkpoint_saved(self, event: CheckpointSaved) -> list[WorkerAction]:
        self.durable.save_succeeded()
        return self._answer_pulls_after_save()

    def _on_checkpoint_failed(self, event: CheckpointFailed) -> list[WorkerAction]:
        """Keep running and serve the saved models; report an unsaved order as failed."""
        restored = self.durable.save_failed()
        answers = self._answer_pulls_after_save()
        if self._is_leaving:
            leave = SendToCoordinator(Leave("the disk is full"))
            return [*answers, leave, Exit(3, event.text)]
        return answers + (self.orders.save_failed(event.text) if restored else [])

    # Pull requests of peers --------------------------------------------------------------------

    @property
    def _allowed_peers(self) -> set[str]:
        return {p.name for p in self.pulls.peers.values()} | {OBSERVER}

    def _on_pull_requested(self, event: PullRequested) -> list[WorkerAction]:
        if self.state.run and event.request.run != self.state.run:
            return [AnswerPull(event.key, PullRefused("wrong_run"))]
        if not self.state.run or event.peer not in self._allowed_peers:
            refused = PullRefused("not_authorised", retry_s=UNKNOWN_PEER_S)
            return [AnswerPull(event.key, refused)]
        if not self._masks.allows(self.state.version, event.peer, event.request.mask):
            self.incidents.add(event.peer, "flood", "pulls with many different masks")
            return [AnswerPull(event.key, PullRefused("busy", retry_s=UNKNOWN_PEER_S))]
        if self.durable.must_be_saved_first(event.request):
            self._pulls_after_save[event.key] = event
            return []
        expected = self.orders.expects_snapshot(event.request.round)
        return [*self.durable.published.answer(event, self.durable.now_s, expected=expected)]

    def _answer_pulls_after_save(self) -> list[WorkerAction]:
        waited, self._pulls_after_save = self._pulls_after_save, {}
        return [action for event in waited.values() for action in self._on_pull_requested(event)]

    def _on_pull_withdrawn(self, event: PullWithdrawn) -> list[WorkerAction]:
        self._pulls_after_save.pop(event.key, None)
        self.durable.published.withdraw(event.key)
        return []

    def _on_peer_incident(self, event: PeerIncident) -> list[WorkerAction]:
        self.incidents.add(event.peer, event.kind, event.text)
        return []
