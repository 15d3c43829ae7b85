"""Workers that answer at once, over the memory transport: a coordinator's load, and no learning."""

import threading
from typing import Any

from coordinator_rig import RUN, SCHEMA

from dystop.runtime.codec import decode, encode
from dystop.runtime.messages import (
    PROTOCOL,
    Execute,
    ExecuteAck,
    Heartbeat,
    Join,
    JoinOk,
    Leave,
    Report,
    Stop,
    Used,
)
from dystop.runtime.transport.memory import MemoryHub, MemoryTransport


class Echo:
    """One worker; all of it runs in the hub's thread."""

    def __init__(self, hub: MemoryHub, name: str, data: tuple[int, tuple[int, ...]]) -> None:
        self.name, self.data = name, data
        self.link: Any = None
        self.number, self.last_round = -1, 0
        self.orders: list[int] = []
        self.said_last: list[Any] = []
        self.transport = MemoryTransport(hub, name)

    def start(self, address: str) -> None:
        self.session = self.transport.open_session(address, self)

    def opened(self, link: Any) -> None:
        self.link = link
        size, counts = self.data
        self.say(
            Join(
                PROTOCOL, RUN, 1, f"mem:{self.name}", SCHEMA, "echo", size, counts, 1, self.number,
                self.last_round, "idle", 0,
            )
        )  # fmt: skip

    def say(self, message: Any) -> None:
        if self.link is not None:
            self.link.send(encode(message))

    def closed(self, reason: str) -> None:
        self.link = None

    def said(self, message: bytes) -> None:
        told = decode(message, "worker")
        if isinstance(told, JoinOk):
            if told.warm_start and self.number == -1:
                self.trained(0)
            for report in self.said_last:
                self.say(report)
        elif isinstance(told, Execute):
            self.execute(told)
        elif isinstance(told, Stop):
            self.say(Leave())
        elif type(told).__name__ == "Roster":
            self.say(Heartbeat(1, told.epoch))

    def execute(self, order: Execute) -> None:
        if order.round <= self.last_round:
            self.say(ExecuteAck(order.round, "duplicate"))
            for report in self.said_last:
                self.say(report)
            return
        self.last_round = order.round
        self.orders.append(order.round)
        used = tuple(
            Used(p.node, k, 1, 0, "ab" * 32, 40_000, 0.001)
            for k, stage in enumerate(order.stages)
            for p in stage.pulls
        )
        mixed = Report(order.round, "mixed", used, seconds=0.001)
        self.said_last = [mixed]
        self.say(ExecuteAck(order.round, "accepted"))
        self.say(mixed)
        if order.train:
            self.trained(order.round)

    def trained(self, round_: int) -> None:
        self.number += 1
        report = Report(round_, "trained", number=self.number, samples=8, loss=0.5)
        self.said_last = [*self.said_last, report]
        self.say(report)


def fleet_of(hub: MemoryHub, setup: Any) -> list[Echo]:
    """One echo for every member but the observer."""
    known = [m for m in setup.members if m.name != "observer"]
    return [Echo(hub, m.name, (m.data_size, m.label_counts)) for m in known]


def in_thread(call: Any) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread
