"""The coordinator's process: one thread owns the machine, the ledger and the sessions.

Callbacks of the transport only put items into a queue. The thread takes all queued items, lets the
machine handle them at once (one commit), and executes the actions.
"""

import gc
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

from dystop.errors import StorageError
from dystop.testbed.coordinator.conduct.incidents import IncidentEntry
from dystop.testbed.coordinator.conduct.quarantine import Sanction
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.coordinator.members import Member
from dystop.testbed.events import (
    CloseSession,
    Commit,
    CommitFailed,
    ConfirmPardon,
    CoordinatorAction,
    CoordinatorEvent,
    EpochFound,
    FinishRun,
    LogWarning,
    LookUpEpoch,
    MemberDisconnected,
    MemberIncident,
    MessageFromMember,
    PublishLateScore,
    PublishRecord,
    RestartFromLedger,
    SendToMember,
    Tick,
)
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.launch.health import Health
from dystop.testbed.ledger.tables import Ledger, Line, ReportLine, RoundLine, restore
from dystop.testbed.log_throttle import throttled_logger
from dystop.testbed.names import COORDINATOR
from dystop.testbed.protocol.codec import BadMessage, decode, encode, kind_of
from dystop.testbed.protocol.messages import (
    Complaint,
    Execute,
    IncidentKind,
    ReportAck,
    ToWorker,
)
from dystop.testbed.transport.interface import Link, Listener, Transport, fingerprint_of, remote_of

_LOG = throttled_logger(__name__)
TICK_S = 0.05
MAX_RESTARTS = 5  # of the machine in one round, after unexpected errors
MAX_BATCH = 2000  # items handled at once
MAX_BACKLOG = 1000  # queued messages of one peer; its session is closed beyond that
MAX_BACKLOG_BYTES = 8 * 2**20
MINUTE_S = 60.0
TOO_LARGE = "the message is larger than any of its kind in this fleet"

_ItemKind = Sanction | Literal["opened", "message", "too_large", "closed", "interrupt"]
_Item = tuple[_ItemKind, str, Link | None, bytes]


def _ignore(value: Any) -> None:
    """Do nothing: the default of all callbacks."""


class CoordinatorProcess:
    """Runs a coordinator machine on a transport and a ledger. `run` blocks until the run ends.

    After a restart the machine may publish a round again; rounds up to `published` and `traced` are
    skipped. What the disk refuses, a commit or a published line, goes back to the machine together
    with all actions behind it (`CommitFailed`); the machine retries them in the same order.
    """

    def __init__(
        self,
        transport: Transport,
        machine: CoordinatorMachine,
        ledger: Ledger,
        address: str,
        on_record: Callable[[Any], None] = _ignore,
        on_trace: Callable[[dict[str, Any]], None] = _ignore,
        on_alarm: Callable[[str], None] = _ignore,
    ) -> None:
        """Listen immediately, so that `address` is known before `run`."""
        self._machine, self._ledger = machine, ledger
        self._on_record, self._on_trace, self._on_alarm = on_record, on_trace, on_alarm
        self._items: queue.SimpleQueue[_Item | MemberIncident] = queue.SimpleQueue()
        self._links: dict[str, Link] = {}
        self._backlog: Counter[str] = Counter()
        self._backlog_bytes: Counter[str] = Counter()
        self._backlog_lock = threading.Lock()
        self._malformed_s: dict[str, deque[float]] = {}  # times of bad messages, by peer
        self._last_encoded: tuple[ToWorker | None, bytes] = (None, b"")  # for rosters
        self._epochs_found: list[EpochFound] = []  # events for the next turn
        self._is_disk_full = False
        self._restarts: list[int] = []  # rounds in which the machine started again
        self.published = self.traced = 0  # the last rounds in the record log and in the trace
        self.finish: FinishRun | None = None
        self.turned_s = time.monotonic()  # when the loop of `run` turned last
        self.on_pardoned: Callable[[str], None] = _ignore
        self.on_late_score: Callable[[Any], None] = _ignore
        self._listener: Listener = transport.serve_control(address, self)

    @property
    def address(self) -> str:
        """Address where members reach the coordinator."""
        return self._listener.address

    def members(self) -> list[Member]:
        """Return the current state of all members; callable from any thread."""
        return list(self._machine.state.members)

    def incidents(self) -> tuple[IncidentEntry, ...]:
        """Return the incidents so far; callable from any thread."""
        return self._machine.state.incidents.written

    def health(self) -> Health:
        """Return whether the coordinator works; callable from any thread."""
        return Health(COORDINATOR, "coordinating", self.turned_s, self.address)

    # Called by the transport, from any thread ---------------------------------------------------

    def opened(self, name: str, link: Link) -> None:
        """Queue a new session."""
        self._items.put(("opened", name, link, b""))

    def received(self, name: str, link: Link, message: bytes) -> None:
        """Queue a message; close the session of a peer that sends too many.

        A message that is larger than one of its kind can be is dropped unread.
        """
        kind: _ItemKind = "message"
        if len(message) > self._machine.most_bytes(kind_of(message)):
            kind, message = "too_large", b""
        with self._backlog_lock:
            too_large = self._backlog_bytes[name] + len(message) > MAX_BACKLOG_BYTES
            too_many = too_large or self._backlog[name] >= MAX_BACKLOG
            message = b"" if too_many else message
            self._backlog[name] += 1
            self._backlog_bytes[name] += len(message)
        if too_many:
            link.close()
        self._items.put((kind, name, link, message))

    def closed(self, name: str, link: Link) -> None:
        """Queue the end of a session."""
        self._items.put(("closed", name, link, b""))

    def incident(self, name: str, kind: IncidentKind, text: str) -> None:
        """Queue what a peer did wrong."""
        self._items.put(MemberIncident(name, kind, text))

    # Called by operators, from any thread -------------------------------------------------------

    def interrupt(self, reason: str = "interrupted") -> None:
        """End the run early; it can be resumed later."""
        self._items.put(("interrupt", reason, None, b""))

    def sanction(self, sanction: Sanction, name: str) -> None:
        """Expel, pardon or readmit a member."""
        self._items.put((sanction, name, None, b""))

    # The thread that owns everything ------------------------------------------------------------

    def run(self) -> str:
        """Run until the end; return the reason. The ledger stays open.

        Raises:
            PlanError: The mechanism broke its contract.
        """
        gc.freeze()  # the objects that exist now stay: the collector need not scan them again
        try:
            tick_s = time.monotonic()
            while self.finish is None:
                self.turned_s = time.monotonic()
                found, self._epochs_found = self._epochs_found, []
                timeout_s = 0.0 if found else max(tick_s - time.monotonic(), 0.0)
                events = [*found, *self._next_events(timeout_s)]
                if time.monotonic() >= tick_s:
                    events.append(Tick())
                    tick_s = time.monotonic() + TICK_S
                if events:
                    self._carry_out(self._machine.handle_all(events, time.monotonic()))
            return self.finish.reason
        finally:
            gc.unfreeze()
            for link in self._links.values():
                link.close()
            self._listener.stop()

    def _next_events(self, timeout_s: float) -> list[CoordinatorEvent]:
        """Return the events of all queued items; wait up to `timeout_s` for the first one."""
        events: list[CoordinatorEvent] = []
        for k in range(MAX_BATCH):
            try:
                item = self._items.get(timeout=0.0 if k else timeout_s)
            except queue.Empty:
                break
            event = self._event(item)
            if event is not None:
                events.append(event)
        return events

    def _event(self, item: _Item | MemberIncident) -> CoordinatorEvent | None:
        if isinstance(item, MemberIncident):
            return item
        kind, name, link, message = item
        if kind == "interrupt":
            self._machine.interrupt(name)
            return Tick()
        if kind in ("expel", "pardon", "readmit"):
            self._machine.sanction(kind, name)
            return Tick()
        if link is None:
            return None
        if kind == "opened":
            self._links[name] = link
            return None
        if kind == "closed":
            if self._links.get(name) is not link:
                return None
            del self._links[name]
            return MemberDisconnected(name)
        return self._read(kind, name, link, message)

    def _read(
        self, kind: _ItemKind, name: str, link: Link, message: bytes
    ) -> CoordinatorEvent | None:
        with self._backlog_lock:
            self._backlog[name] -= 1
            self._backlog_bytes[name] -= len(message)
        if self._links.get(name) is not link:
            return None
        if kind == "too_large":
            return self._refused(name, link, BadMessage("size", TOO_LARGE))
        return self._decoded(name, link, message)

    def _decoded(self, name: str, link: Link, message: bytes) -> CoordinatorEvent:
        try:
            found = decode(message, "coordinator")
            return MessageFromMember(name, found, fingerprint_of(link), remote_of(link))
        except BadMessage as error:
            return self._refused(name, link, error)

    def _refused(self, name: str, link: Link, error: BadMessage) -> MemberIncident:
        """Answer a bad message; close the session of a peer that sends too many of them."""
        link.send(encode(Complaint(error.code, error.text)))
        if self._sends_too_many_bad_messages(name):
            link.close()
        return MemberIncident(name, "bad_message", str(error))

    def _sends_too_many_bad_messages(self, name: str) -> bool:
        """Count a bad message; return whether its peer exceeds the limit per minute."""
        now_s, limit = time.monotonic(), self._machine.state.params.limits.malformed
        times_s = self._malformed_s.setdefault(name, deque(maxlen=limit))
        times_s.append(now_s)
        return len(times_s) == limit and now_s - times_s[0] < MINUTE_S

    # Actions ------------------------------------------------------------------------------------

    def _carry_out(self, actions: Sequence[CoordinatorAction]) -> bool:
        """Execute actions in order; return False if the disk refused one of them.

        The machine then gets the actions from that one on back, and retries them.
        """
        for k, action in enumerate(actions):
            try:
                self._carry_out_one(action)
            except _DiskRefusedError as refused:
                waiting = Commit((), tuple(actions[k:]))
                self._hold(action if isinstance(action, Commit) else waiting, str(refused))
                return False
        return True

    def _carry_out_one(self, action: CoordinatorAction) -> None:
        match action:
            case SendToMember(name, message, data):
                self._send(name, message, data)
            case Commit():
                self._commit(action)
            case CloseSession(name):
                self._close_session(name)
            case PublishRecord() | PublishLateScore():
                with _refusals():
                    self._publish(action)
            case LogWarning(text):
                _LOG.warning("%s", text)
            case _:
                self._carry_out_rare(action)

    def _carry_out_rare(self, action: CoordinatorAction) -> None:
        match action:
            case ConfirmPardon(name):
                self.on_pardoned(name)
            case LookUpEpoch(claim):
                self._look_up_epoch(claim)
            case RestartFromLedger():
                self._restart(action)
            case FinishRun():
                self.finish = action

    def _send(self, name: str, message: ToWorker, data: bytes) -> None:
        link = self._links.get(name)
        if link is None:
            return
        if isinstance(message, ReportAck):
            reach("coordinator.before_ack")
            link.send(_encoded_ack(message))
            return
        if self._last_encoded[0] is not message:
            self._last_encoded = (message, data or encode(message))
        link.send(self._last_encoded[1])
        if isinstance(message, Execute):
            reach("coordinator.after_execute")

    def _restart(self, action: RestartFromLedger) -> None:
        """Continue from the ledger after an unexpected error; raise it if that does not help."""
        old = self._machine
        self._restarts = [*self._restarts[-MAX_RESTARTS:], old.round]
        if self._restarts.count(old.round) > MAX_RESTARTS:
            raise action.error
        blame = f" in a message of {action.name}" if action.name else ""
        _LOG.error(
            "an error%s; the coordinator continues from its ledger", blame, exc_info=action.error
        )
        self._machine = CoordinatorMachine(old.state.setup, restore(self._ledger))
        self._machine.continue_after(old, action)
        for link in self._links.values():
            link.close()

    def _close_session(self, name: str) -> None:
        link = self._links.get(name)
        if link is not None:
            link.close()

    def _look_up_epoch(self, claim: MessageFromMember) -> None:
        """Read the epoch from the ledger; if that fails, the member repeats its claim."""
        try:
            self._epochs_found.append(EpochFound(claim, self._ledger.epoch()))
        except StorageError as error:
            self._on_alarm(str(error))

    def _publish(self, action: PublishRecord | PublishLateScore) -> None:
        if isinstance(action, PublishLateScore):
            self.on_late_score(action.record)
            return
        round_ = action.record.round
        if round_ > self.published:
            self._on_record(action.record)
            self.published = round_
        if round_ > self.traced:
            self._on_trace(action.trace)
            self.traced = round_

    def _commit(self, action: Commit) -> None:
        """Write to the ledger, then execute the actions that waited for it."""
        sites = _failpoint_sites(action.entries)
        with _refusals():
            for site in sites:
                reach(f"coordinator.before_{site}")
            self._ledger.write(action.entries)
        for site in sites:
            reach(f"coordinator.after_{site}")
        if self._carry_out(action.after_commit) and self._is_disk_full:
            self._is_disk_full = False
            self._on_alarm("the disk takes writes again")

    def _hold(self, refused: Commit, text: str) -> None:
        """Give the machine back what the disk refused."""
        if not self._is_disk_full:
            self._on_alarm(text)
        self._is_disk_full = True
        self._carry_out(self._machine.handle(CommitFailed(refused, text), time.monotonic()))


class _DiskRefusedError(Exception):
    """A commit or a published line could not be written."""


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (StorageError, OSError) as error:
        raise _DiskRefusedError(str(error)) from error


@lru_cache(maxsize=64)
def _encoded_ack(message: ReportAck) -> bytes:
    """Encode an acknowledgement once for all members that report on a round."""
    return encode(message)


def _failpoint_sites(lines: Sequence[Line]) -> list[str]:
    """Return the names of the failpoints around a commit, by its content."""
    rounds = [line for line in lines if isinstance(line, RoundLine)]
    found = {
        "report_commit": any(isinstance(line, ReportLine) for line in lines),
        "close": any(line.closed_s is not None for line in rounds),
        "plan_commit": any(line.closed_s is None for line in rounds),
    }
    return [site for site, is_there in found.items() if is_there]
