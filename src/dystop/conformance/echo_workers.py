"""Workers that answer a coordinator at once, for tests and measurements of coordinators."""

from collections.abc import Callable
from typing import Any

from dystop.format import FORMAT
from dystop.testbed.coordinator.members import Enrolled
from dystop.testbed.coordinator.setup import CoordinatorSetup
from dystop.testbed.names import OBSERVER
from dystop.testbed.protocol.codec import decode, encode
from dystop.testbed.protocol.messages import (
    Execute,
    ExecuteAck,
    Heartbeat,
    Join,
    JoinOk,
    Leave,
    Report,
    Roster,
    Stop,
    ToCoordinator,
    Used,
)
from dystop.testbed.transport.interface import Link
from dystop.testbed.transport.memory import MemoryHub, MemoryTransport

PULL_S = 0.001  # duration that an echo worker reports for a pull
LOSS = 0.5
_DIGEST = "ab" * 32


class EchoWorker:
    """A worker that acknowledges every order at once. All of it runs in the hub's thread."""

    def __init__(self, hub: MemoryHub, setup: CoordinatorSetup, who: Enrolled) -> None:
        """Create a worker that is not connected yet."""
        self.name, self.address = who.name, f"mem:{who.name}"
        self.transport = MemoryTransport(hub, who.name)
        self.orders: list[int] = []  # rounds that were executed
        self._setup, self._who = setup, who
        self._link: Link | None = None
        self._number, self._last_round = -1, 0
        self._last: list[Report] = []
        self._answers: dict[type, Callable[[Any], None]] = {
            JoinOk: self._joined,
            Execute: self._execute,
            Roster: lambda roster: self.send(Heartbeat(1, roster.epoch)),
            Stop: lambda message: self.send(Leave()),
        }

    def start(self, address: str) -> None:
        """Open a session with the coordinator."""
        self.transport.open_session(address, self)

    def opened(self, link: Link) -> None:
        """Join when the session is open."""
        self._link = link
        self.send(
            Join(
                format=FORMAT,
                run=self._setup.run,
                incarnation=0,
                address=self.address,
                schema=self._setup.schema,
                software="echo",
                data_size=self._who.data_size,
                label_counts=self._who.label_counts,
                version=1,
                number=self._number,
                last_round=self._last_round,
                phase="idle",
                epoch=0,
            )
        )

    def closed(self, reason: str) -> None:
        """Forget the session."""
        self._link = None

    def received(self, message: bytes) -> None:
        """Answer a message of the coordinator."""
        received = decode(message, "worker")
        answer = self._answers.get(type(received))
        if answer is not None:
            answer(received)

    def send(self, message: ToCoordinator) -> None:
        """Send a message, if there is a session."""
        if self._link is not None:
            self._link.send(encode(message))

    def _joined(self, answer: JoinOk) -> None:
        if answer.warm_start and self._number == -1:
            self._train(0)
        self._repeat()

    def _repeat(self) -> None:
        for report in self._last:
            self.send(report)

    def _execute(self, order: Execute) -> None:
        if order.round <= self._last_round:
            self.send(ExecuteAck(order.round, "duplicate"))
            self._repeat()
            return
        self._last_round = order.round
        self.orders.append(order.round)
        size = self._setup.fleet.model_bytes
        used = tuple(
            Used(pull.node, k, 1, 0, _DIGEST, size, PULL_S)
            for k, stage in enumerate(order.stages)
            for pull in stage.pulls
        )
        self._last = [Report(order.round, "mixed", used, seconds=PULL_S)]
        self.send(ExecuteAck(order.round, "accepted"))
        self._repeat()
        if order.train:
            self._train(order.round)

    def _train(self, round_: int) -> None:
        self._number += 1
        done = Report(round_, "trained", number=self._number, samples=8, loss=LOSS)
        self._last = [*self._last, done]
        self.send(done)


def echo_workers(hub: MemoryHub, setup: CoordinatorSetup) -> list[EchoWorker]:
    """Return an echo worker for every member but the observer."""
    return [EchoWorker(hub, setup, who) for who in setup.members if who.name != OBSERVER]
