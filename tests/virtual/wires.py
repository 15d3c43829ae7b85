"""Sessions between the coordinator and everybody else, and what the faults do to them."""

from typing import Any

from dystop.testbed.events import (
    MemberDisconnected,
    MessageFromCoordinator,
    MessageFromMember,
    SessionLost,
    SessionOpened,
)
from virtual.actors import Actor


class Wires:
    """The part of a cluster that carries control messages."""

    def connect(self, actor: Actor) -> None:
        """Keep trying to have a session, as transports do."""
        free = actor.name not in self.sessions and not actor.frozen
        if free and self.boss.up and not self.is_cut(actor.node, -1):
            self.sessions[actor.name] = next(self.numbers)
            self.handle(actor, SessionOpened())
        self.later(actor, self.between(0.2, 0.6), lambda: self.connect(actor))

    def break_session(self, name: str) -> None:
        number = self.sessions.pop(name, None)
        if number is None:
            return
        delay = self.between(*self.faults.delay_s)
        self.give(self.by_name[name], 0.0, SessionLost())
        self.later(self.boss, delay, lambda: self.gone(name))

    def gone(self, name: str) -> None:
        if name not in self.sessions:  # else a newer session has taken its place
            self.handle(self.boss, MemberDisconnected(name))

    def transmit(self, name: str, way: str, message: Any) -> None:
        """Send over the session: late, lost, twice or out of order, as the faults say."""
        number, actor = self.sessions.get(name), self.by_name.get(name)
        if number is None or actor is None or self.rng.random() < self.faults.drop:
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
            self.agenda.after(delay, lambda: self.arrive(name, number, way, message))

    def in_order(self, name: str, way: str, delay_s: float) -> float:
        at_s = max(self.agenda.now_s + delay_s, self.last_at.get((name, way), 0.0))
        self.last_at[name, way] = at_s
        return at_s - self.agenda.now_s

    def arrive(self, name: str, number: int, way: str, message: Any) -> None:
        actor = self.by_name[name]
        if self.sessions.get(name) != number or self.is_cut(actor.node, -1):
            return
        if way == "up" and self.boss.up:
            self.handle(self.boss, MessageFromMember(name, message))
        elif way == "down" and actor.up:
            self.handle(actor, MessageFromCoordinator(message))
