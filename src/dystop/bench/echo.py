"""Workers of a coordinator under load: in this process, they answer at once and learn nothing."""

from collections.abc import Callable
from typing import Any

from dystop.testbed.coordinator.members import Enrolled
from dystop.testbed.coordinator.setup import OBSERVER, CoordinatorSetup
from dystop.testbed.protocol.codec import decode, encode
from dystop.testbed.protocol.interface import Link
from dystop.testbed.protocol.messages import (
    PROTOCOL,
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
from dystop.testbed.transport.memory import MemoryHub, MemoryTransport

PULL_S = 0.001  # what a pull is said to have taken
LOSS = 0.5
_DIGEST = "ab" * 32


class Echo:
    """One worker; all of it runs in the hub's thread. Obeys once, repeats itself when asked."""

    def __init__(self, hub: MemoryHub, setup: CoordinatorSetup, who: Enrolled) -> None:
        """Not connected yet."""
        self.name = who.name
        self.transport = MemoryTransport(hub, who.name)
        self.orders: list[int] = []  # rounds that were carried out
        self._setup, self._who = setup, who
        self._link: Link | None = None
        self._number, self._last_round = -1, 0
        self._last: list[Report] = []
        self._answers: dict[type, Callable[[Any], None]] = {
            JoinOk: self._welcome,
            Execute: self._execute,
            Roster: lambda told: self.say(Heartbeat(1, told.epoch)),
            Stop: lambda told: self.say(Leave()),
        }

    def start(self, address: str) -> None:
        """Call the coordinator."""
        self.transport.open_session(address, self)

    def opened(self, link: Link) -> None:
        """It answers: say who you are."""
        self._link = link
        self.say(
            Join(
                protocol=PROTOCOL,
                run=self._setup.run,
                incarnation=1,
                address=f"mem:{self.name}",
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
        """The session is over."""
        self._link = None

    def said(self, message: bytes) -> None:
        """The coordinator said something."""
        told = decode(message, "worker")
        answer = self._answers.get(type(told))
        if answer is not None:
            answer(told)

    def say(self, message: ToCoordinator) -> None:
        """Send, if there is a session."""
        if self._link is not None:
            self._link.send(encode(message))

    def _welcome(self, told: JoinOk) -> None:
        if told.warm_start and self._number == -1:
            self._train(0)
        self._repeat()

    def _repeat(self) -> None:
        for report in self._last:
            self.say(report)

    def _execute(self, order: Execute) -> None:
        if order.round <= self._last_round:
            self.say(ExecuteAck(order.round, "duplicate"))
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
        self.say(ExecuteAck(order.round, "accepted"))
        self._repeat()
        if order.train:
            self._train(order.round)

    def _train(self, round_: int) -> None:
        self._number += 1
        done = Report(round_, "trained", number=self._number, samples=8, loss=LOSS)
        self._last = [*self._last, done]
        self.say(done)


def echoes(hub: MemoryHub, setup: CoordinatorSetup) -> list[Echo]:
    """One for every member but the observer."""
    return [Echo(hub, setup, who) for who in setup.members if who.name != OBSERVER]
