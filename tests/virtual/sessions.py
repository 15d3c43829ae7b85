"""Sessions between the coordinator and the other processes, and their faults."""

from typing import Any

from dystop.testbed.events import (
    MemberDisconnected,
    MessageFromCoordinator,
    MessageFromMember,
    SessionLost,
    SessionOpened,
)
from virtual.processes import Process


class Sessions:
    """The part of a cluster that transmits control messages."""

    def connect(self, process: Process) -> None:
        """Open a session, and try again forever, as transports do."""
        free = process.name not in self.sessions and not process.frozen
        if free and self.coordinator.up and not self.is_cut(process.node, -1):
            self.sessions[process.name] = next(self.numbers)
            self.handle(process, SessionOpened())
        self.later(process, self.between(0.2, 0.6), lambda: self.connect(process))

    def break_session(self, name: str) -> None:
        number = self.sessions.pop(name, None)
        if number is None:
            return
        delay = self.between(*self.faults.delay_s)
        self.give(self.by_name[name], 0.0, SessionLost())
        self.later(self.coordinator, delay, lambda: self.disconnected(name))

    def disconnected(self, name: str) -> None:
        if name not in self.sessions:  # else a newer session has taken its place
            self.handle(self.coordinator, MemberDisconnected(name))

    def transmit(self, name: str, way: str, message: Any) -> None:
        """Send a message; the faults delay, drop, duplicate or reorder it."""
        number, process = self.sessions.get(name), self.by_name.get(name)
        if number is None or process is None or self.rng.random() < self.faults.drop:
            return
        copies = self.faults.copies + int(self.rng.random() < self.faults.duplicate)
        for k in range(copies):
            delay = self.between(*self.faults.delay_s)
            if self.faults.shuffle_s:
                delay += self.between(0.0, self.faults.shuffle_s)
            elif k:
                delay += self.between(0.0, 2.0)
            else:
                delay = self.in_order(name, way, delay)
            self.schedule.after(delay, lambda: self.arrive(name, number, way, message))

    def in_order(self, name: str, way: str, delay_s: float) -> float:
        at_s = max(self.schedule.now_s + delay_s, self.last_at.get((name, way), 0.0))
        self.last_at[name, way] = at_s
        return at_s - self.schedule.now_s

    def arrive(self, name: str, number: int, way: str, message: Any) -> None:
        process = self.by_name[name]
        if self.sessions.get(name) != number or self.is_cut(process.node, -1):
            return
        if way == "up" and self.coordinator.up:
            self.handle(self.coordinator, MessageFromMember(name, message))
        elif way == "down" and process.up:
            self.handle(process, MessageFromCoordinator(message))
