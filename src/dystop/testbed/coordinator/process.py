"""The coordinator's shell: one thread that owns the machine, the ledger and the sessions.

Callbacks of the transport only put things into a queue. The thread takes all that has come, lets
the machine decide in one go (one commit), and carries out what it wants.
"""

import gc
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

from dystop.errors import StorageError
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.coordinator.members import Member
from dystop.testbed.coordinator.quarantine import Measure
from dystop.testbed.events import (
    Commit,
    Consult,
    Consulted,
    CoordinatorAction,
    CoordinatorEvent,
    Finish,
    Gone,
    Hang,
    Heard,
    Pardoned,
    Publish,
    Tell,
    Tick,
    WriteFailed,
)
from dystop.testbed.launch.failpoints import reach
from dystop.testbed.ledger.tables import Ledger, Line, ReportLine, RoundLine
from dystop.testbed.protocol.codec import BadMessage, decode, encode
from dystop.testbed.protocol.messages import Complaint, Execute, ReportAck, ToWorker
from dystop.testbed.transport.interface import Link, Listener, Transport, fingerprint_of

TICK_S = 0.05
BATCH = 2000  # events taken in one go
BACKLOG = 1000  # messages of one peer that may wait; a peer beyond that is cut off
MINUTE_S = 60.0

_What = Measure | Literal["opened", "said", "closed", "interrupt"]
_Item = tuple[_What, str, Link | None, bytes]


def _nothing(value: Any) -> None:
    """Nobody wants to know."""


class CoordinatorProcess:
    """Runs a coordinator machine on a transport and a ledger. `run` blocks until the run is over.

    `Publish` may repeat a round after a restart; rounds up to `published` are not handed on again.
    """

    def __init__(
        self,
        transport: Transport,
        machine: CoordinatorMachine,
        ledger: Ledger,
        address: str,
        on_record: Callable[[Any], None] = _nothing,
        on_trace: Callable[[dict[str, Any]], None] = _nothing,
        on_alarm: Callable[[str], None] = _nothing,
    ) -> None:
        """Listen at once, so that `address` is known before `run`."""
        self._machine, self._ledger = machine, ledger
        self._on_record, self._on_trace, self._on_alarm = on_record, on_trace, on_alarm
        self._items: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self._links: dict[str, Link] = {}
        self._backlog: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._bad: dict[str, deque[float]] = {}
        self._last: tuple[ToWorker | None, bytes] = (None, b"")  # one roster goes to everybody
        self._answers: list[Consulted] = []  # events of the next turn
        self._is_full = False
        self.published = 0
        self.finish: Finish | None = None
        self.on_pardoned: Callable[[str], None] = _nothing
        self._served: Listener = transport.serve_control(address, self)

    @property
    def address(self) -> str:
        """Where members reach the coordinator."""
        return self._served.address

    def members(self) -> list[Member]:
        """Everybody as they stand, from any thread."""
        return list(self._machine.core.members)

    # Called by the transport, from any thread ---------------------------------------------------

    def opened(self, name: str, link: Link) -> None:
        """A peer has opened a session."""
        self._items.put(("opened", name, link, b""))

    def received(self, name: str, link: Link, message: bytes) -> None:
        """A peer sent a message."""
        with self._counting:
            self._backlog[name] += 1
            too_many = self._backlog[name] > BACKLOG
        if too_many:
            link.close()
        self._items.put(("said", name, link, b"" if too_many else message))

    def closed(self, name: str, link: Link) -> None:
        """That session is over."""
        self._items.put(("closed", name, link, b""))

    def interrupt(self, reason: str = "interrupted") -> None:
        """End the run early, from any thread; it can be taken up again later."""
        self._items.put(("interrupt", reason, None, b""))

    def sanction(self, measure: Measure, name: str) -> None:
        """Expel, pardon or readmit a member, from any thread."""
        self._items.put((measure, name, None, b""))

    # The thread that owns everything ------------------------------------------------------------

    def run(self) -> str:
        """Until the run is over; answers why. The ledger stays open.

        Raises:
            PlanError: The mechanism broke its contract.
        """
        gc.freeze()  # what is there now stays: no need to look at it again and again
        try:
            tick_s = time.monotonic()
            while self.finish is None:
                answers, self._answers = self._answers, []
                patience_s = 0.0 if answers else max(tick_s - time.monotonic(), 0.0)
                events = [*answers, *self._gather(patience_s)]
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
            self._served.stop()

    def _gather(self, patience_s: float) -> list[CoordinatorEvent]:
        """All that has come, or nothing after a while."""
        events: list[CoordinatorEvent] = []
        for k in range(BATCH):
            try:
                item = self._items.get(timeout=0.0 if k else patience_s)
            except queue.Empty:
                break
            event = self._event(item)
            if event is not None:
                events.append(event)
        return events

    def _event(self, item: _Item) -> CoordinatorEvent | None:
        what, name, link, message = item
        if what == "interrupt":
            self._machine.interrupt(name)
            return Tick()
        if what in ("expel", "pardon", "readmit"):
            self._machine.sanction(what, name)
            return Tick()
        if link is None:
            return None
        if what == "opened":
            self._links[name] = link
            return None
        if what == "closed":
            if self._links.get(name) is not link:
                return None
            del self._links[name]
            return Gone(name)
        with self._counting:
            self._backlog[name] -= 1
        return self._read(name, link, message) if self._links.get(name) is link else None

    def _read(self, name: str, link: Link, message: bytes) -> Heard | None:
        try:
            return Heard(name, decode(message, "coordinator"), fingerprint_of(link))
        except BadMessage as error:
            link.send(encode(Complaint(error.code, error.text)))
            if self._is_nuisance(name):
                link.close()
            return None

    def _is_nuisance(self, name: str) -> bool:
        """Whether a peer has sent too many bad messages within a minute."""
        now_s, limit = time.monotonic(), self._machine.core.params.limits.malformed
        times = self._bad.setdefault(name, deque(maxlen=limit))
        times.append(now_s)
        return len(times) == limit and now_s - times[0] < MINUTE_S

    # Actions ------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[CoordinatorAction] | tuple[CoordinatorAction, ...]) -> None:
        for action in actions:
            if isinstance(action, Tell):
                self._tell(action.name, action.message, action.data)
            elif isinstance(action, Commit):
                self._commit(action)
            elif isinstance(action, Hang):
                self._hang(action.name)
            elif isinstance(action, Publish):
                self._publish(action)
            elif isinstance(action, Pardoned):
                self.on_pardoned(action.name)
            elif isinstance(action, Consult):
                self._consult(action)
            else:
                self.finish = action

    def _tell(self, name: str, message: ToWorker, data: bytes) -> None:
        link = self._links.get(name)
        if link is None:
            return
        if isinstance(message, ReportAck):
            reach("coordinator.before_ack")
            link.send(_ack(message))
            return
        if self._last[0] is not message:
            self._last = (message, data or encode(message))
        link.send(self._last[1])
        if isinstance(message, Execute):
            reach("coordinator.after_execute")

    def _hang(self, name: str) -> None:
        link = self._links.get(name)
        if link is not None:
            link.close()

    def _consult(self, action: Consult) -> None:
        """Not answered where the ledger cannot be read: whoever claims something says it again."""
        try:
            self._answers.append(Consulted(action.heard, self._ledger.epoch()))
        except StorageError as error:
            self._on_alarm(str(error))

    def _publish(self, action: Publish) -> None:
        if action.record.round <= self.published:
            return
        self.published = action.record.round
        self._on_record(action.record)
        self._on_trace(action.trace)

    def _commit(self, action: Commit) -> None:
        """Write, then do what waited for it; a disk that refuses is the machine's business."""
        sites = _sites(action.entries)
        try:
            for site in sites:
                reach(f"coordinator.before_{site}")
            self._ledger.write(action.entries)
        except (StorageError, OSError) as error:
            if not self._is_full:
                self._on_alarm(str(error))
            self._is_full = True
            self._carry_out(self._machine.handle(WriteFailed(str(error)), time.monotonic()))
            return
        if self._is_full:
            self._is_full = False
            self._on_alarm("the disk takes writes again")
        for site in sites:
            reach(f"coordinator.after_{site}")
        self._carry_out(action.then)


@lru_cache(maxsize=64)
def _ack(message: ReportAck) -> bytes:
    """The same words for everybody who reports on a round."""
    return encode(message)


def _sites(lines: tuple[Line, ...]) -> list[str]:
    """Names of the failpoints around a commit, by what is in it."""
    rounds = [line for line in lines if isinstance(line, RoundLine)]
    found = {
        "report_commit": any(isinstance(line, ReportLine) for line in lines),
        "close": any(line.closed_s is not None for line in rounds),
        "plan_commit": any(line.closed_s is None for line in rounds),
    }
    return [site for site, is_there in found.items() if is_there]
