"""The worker as a state machine (alg:device): events in, actions out, nothing else.

    machine = WorkerMachine(setup, state)            # `first_state(...)` or what the vault has
    for action in machine.handle(event, now_s): ...  # carry out, in order

Rules for the shell. It calls `handle(Tick(), now_s)` a few times a second. It delivers
`WriteFailed` for a `Save` before any other event. It answers each `Fetch` with `Fetched` or
`FetchFailed` unless it was told to `Abandon` it, each `Train` with `TrainingDone` or
`TrainingFailed`, and hands every `Asked` a key of its own.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dystop.testbed.events import (
    Asked,
    AskedNoMore,
    Exit,
    Fetched,
    FetchFailed,
    Say,
    Serve,
    SessionLost,
    SessionOpened,
    Tick,
    Told,
    TrainingDone,
    TrainingFailed,
    WorkerAction,
    WorkerEvent,
    WriteFailed,
)
from dystop.testbed.protocol.messages import (
    Cancel,
    Execute,
    ExecuteAck,
    JoinOk,
    Leave,
    Peer,
    Phase,
    PullRefused,
    Reject,
    ReportAck,
    Roster,
    Stop,
)
from dystop.testbed.worker.durable_state import DurableState, merged
from dystop.testbed.worker.exchange import Fetches
from dystop.testbed.worker.guard import Guard
from dystop.testbed.worker.orders import Orders
from dystop.testbed.worker.session import join
from dystop.testbed.worker.state import WorkerSetup, WorkerState, without_report

SENT_AWAY = 6  # exit code: shut out by the operator or by the others; starting again is no use
Handler = Callable[[Any], list[WorkerAction]]
ROSTER_S = 3.0  # how long an order that names a stranger waits for a newer roster
STRANGER_S = 0.5  # a stranger may be in the next roster: until it asks again


class WorkerMachine:
    """One worker. Owned by one thread."""

    def __init__(self, setup: WorkerSetup, state: WorkerState, guard: Guard | None = None) -> None:
        """Begin, or go on where a checkpoint says.

        Args:
            setup: Who the worker is.
            state: What survived the last process.
            guard: Judges what is fetched; a new one with the guards of the setup if not given.
        """
        guard = guard or Guard(setup.guards)
        self.setup = setup
        self.keeper = DurableState(setup, state, guard)
        self.fetches = Fetches(setup, guard)
        self.orders = Orders(self.keeper, self.fetches)
        self.session = self.keeper.session
        self._booted = self._leaving = self._warm = self._is_met = False
        self._early: tuple[Execute, float] | None = None  # an order, and since when it waits
        self._events = self._event_table()
        self._messages: dict[type, Handler] = {
            JoinOk: self._join_ok,
            Reject: self._reject,
            Execute: self._execute,
            Cancel: self._cancel,
            ReportAck: self._report_ack,
            Roster: self._roster,
            Stop: self._stop,
        }

    def _event_table(self) -> dict[type, Handler]:
        return {
            Tick: self._tick,
            WriteFailed: self._write_failed,
            SessionOpened: self._opened,
            SessionLost: self._lost,
            Told: self._told,
            Fetched: self.orders.fetched,
            FetchFailed: self.orders.fetch_failed,
            TrainingDone: self.orders.training_over,
            TrainingFailed: self.orders.training_over,
            Asked: self._asked,
            AskedNoMore: self._asked_no_more,
        }

    @property
    def state(self) -> WorkerState:
        """What a checkpoint would hold now."""
        return self.keeper.state

    @property
    def phase(self) -> Phase:
        """What the worker is busy with."""
        return self.orders.phase

    def handle(self, event: WorkerEvent, now_s: float) -> list[WorkerAction]:
        """What is to be done about an event.

        Args:
            event: What happened.
            now_s: Monotonic time of this worker; never smaller than before.
        """
        self.keeper.now_s = now_s
        actions: list[WorkerAction] = []
        if not self._booted:
            self._booted = True
            actions += self.orders.training.resume()
        if not isinstance(event, WriteFailed):
            self.keeper.confirm()
        return merged(actions + self._events[type(event)](event))

    # The conversation --------------------------------------------------------------------------

    def _opened(self, event: SessionOpened) -> list[WorkerAction]:
        self.session.opened(self.keeper.now_s)
        return self._join()

    def _join(self) -> list[WorkerAction]:
        return [Say(join(self.setup, self.state, self.phase))]

    def _lost(self, event: SessionLost) -> list[WorkerAction]:
        self.session.lost()
        return []

    def _told(self, event: Told) -> list[WorkerAction]:
        handler = self._messages.get(type(event.message))
        return handler(event.message) if handler else []  # echoes and complaints change nothing

    def _join_ok(self, message: JoinOk) -> list[WorkerAction]:
        """We are in: say again what was not acknowledged; a new worker may begin to train."""
        if message.epoch < self.state.epoch or self.state.run not in ("", message.run):
            return []
        self.keeper.state = replace(self.state, run=message.run)
        self.session.joined(message, self.keeper.now_s)
        actions = self._obey(message.epoch) + self._meet(message.peers)
        self._warm = message.warm_start and self.setup.first_steps > 0
        actions += self._begin() + self._due()
        self._is_met = True
        return actions + self._catch_up(ROSTER_S)

    def _begin(self) -> list[WorkerAction]:
        """A worker without a past trains at once under a warm start, as in the simulator."""
        if self.state.number >= 0 or self.state.flight is not None:
            return []
        if self._warm:
            return self.orders.training.begin()
        self.keeper.state = replace(self.state, number=0)
        return []

    def _obey(self, epoch: int) -> list[WorkerAction]:
        """Never again do what a coordinator of a lower epoch says."""
        if epoch <= self.state.epoch:
            return []
        self.keeper.state = replace(self.state, epoch=epoch)
        return self.keeper.save()

    def _reject(self, message: Reject) -> list[WorkerAction]:
        if message.retry_s <= 0:
            code = SENT_AWAY if message.code in ("quarantined", "revoked") else 2
            return [Exit(code, f"the coordinator refused: {message.code}: {message.text}")]
        self.session.refused(message.retry_s, self.keeper.now_s)
        return []

    def _execute(self, order: Execute) -> list[WorkerAction]:
        if order.epoch < self.state.epoch:
            return [Say(ExecuteAck(order.round, "stale_epoch", self.state.epoch))]
        if not (self._is_met and self.fetches.knows(order)):
            self._early = (order, self.keeper.now_s)
            return []
        return self._obey(order.epoch) + self.orders.execute(order)

    def _catch_up(self, patience_s: float = 0.0) -> list[WorkerAction]:
        """An order that has overtaken our welcome or the roster: its time has come, or is up."""
        if self._early is None or not self._is_met:
            return []
        order, since_s = self._early
        waits = self.keeper.now_s < since_s + patience_s
        if waits and not self.fetches.knows(order):
            return []
        self._early = None
        if order.epoch < self.state.epoch:
            return []
        return self._obey(order.epoch) + self.orders.execute(order)

    def _cancel(self, message: Cancel) -> list[WorkerAction]:
        return [] if message.epoch < self.state.epoch else self.orders.cancel(message)

    def _report_ack(self, message: ReportAck) -> list[WorkerAction]:
        self.session.acknowledged(message.round, message.kind)
        self.keeper.state = without_report(self.state, message.round, message.kind)
        return []

    def _roster(self, message: Roster) -> list[WorkerAction]:
        if message.epoch < self.state.epoch:
            return []
        return self._meet(message.peers) + self._catch_up(ROSTER_S)

    def _meet(self, peers: tuple[Peer, ...]) -> list[WorkerAction]:
        self.fetches.meet(peers)
        return [*self.keeper.slot.expel(self._welcome), *self.orders.roster_changed()]

    def _stop(self, message: Stop) -> list[WorkerAction]:
        """The run is over: save, say goodbye, exit."""
        if message.epoch < self.state.epoch:
            return []
        self._leaving = True
        return self.keeper.save(Say(Leave(message.text)), Exit(0, message.text))

    # Time and disk -----------------------------------------------------------------------------

    def _tick(self, event: Tick) -> list[WorkerAction]:
        keeper = self.keeper
        actions = self._join() if self.session.is_join_due(keeper.now_s) else []
        actions += self._due() + self.orders.expire() + keeper.write_again()
        actions += self._catch_up(ROSTER_S)
        if self._warm and not keeper.disk_full:
            actions += self._begin()
        patience_s = self.setup.timeouts.round_cap_s
        return [*actions, *keeper.slot.expire(keeper.now_s - patience_s)]

    def _due(self) -> list[WorkerAction]:
        """Heartbeat and reports whose time has come."""
        keeper = self.keeper
        said = self.session.beat(self.state, self.phase, keeper.disk_full, keeper.now_s)
        return [*said, *self.session.repeat(keeper.ready_reports, keeper.now_s)]

    def _write_failed(self, event: WriteFailed) -> list[WorkerAction]:
        """Stay up and serve what is on the disk; an order that could not be written has failed."""
        undone = self.keeper.write_failed()
        if self._leaving:
            return [Say(Leave("the disk is full")), Exit(3, event.text)]
        return self.orders.undone(event.text) if undone else []

    # Peers that want a model -------------------------------------------------------------------

    @property
    def _welcome(self) -> set[str]:
        return {p.name for p in self.fetches.peers.values()} | {self.setup.observer}

    def _asked(self, event: Asked) -> list[WorkerAction]:
        if self.state.run and event.request.run != self.state.run:
            return [Serve(event.key, PullRefused("wrong_run"))]
        if not self.state.run or event.peer not in self._welcome:
            return [Serve(event.key, PullRefused("not_authorised", retry_s=STRANGER_S))]
        expected = self.orders.expects(event.request.round)
        return [*self.keeper.slot.ask(event, self.keeper.now_s, expected=expected)]

    def _asked_no_more(self, event: AskedNoMore) -> list[WorkerAction]:
        self.keeper.slot.drop(event.key)
        return []
