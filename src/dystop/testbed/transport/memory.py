"""All parties in one process: sessions through a hub's thread, pulls in the puller's own."""

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

from dystop.testbed.params import Limits
from dystop.testbed.protocol.interface import (
    ClientHandler,
    ModelListener,
    ModelSink,
    ModelSource,
    PullBroken,
    PullDenied,
    PullTimeouts,
    ServedModel,
    SessionHandler,
)
from dystop.testbed.protocol.messages import PullRefused, PullRequest
from dystop.testbed.transport.admission import (
    BUSY_S,
    Allowed,
    PullLimiter,
    PullSlot,
    answer_of,
    anyone,
    ask,
    check_size,
)
from dystop.testbed.transport.memory_hub import MemoryHub
from dystop.testbed.transport.pacing import paced
from dystop.testbed.transport.switchboard import SwitchedTransport

__all__ = ["MemoryHub", "MemoryTransport"]

_AGAIN_S = 0.05  # pause before a session that was ended by the other side is opened again
_LOOK_S = 0.05  # how often a waiting pull looks whether it is still wanted


class _Session:
    """A session between a counter and a caller; changed by the hub's thread alone."""

    def __init__(self, counter: "_Counter", caller: "_Caller") -> None:
        self.counter, self.caller = counter, caller
        self.over = False
        self.here, self.there = _End(self, at_counter=True), _End(self, at_counter=False)

    def deliver(self, message: bytes, at_counter: bool) -> None:
        if self.over:
            return
        if at_counter:
            self.caller.ear.said(message)
        else:
            self.counter.desk.said(self.caller.name, self.here, message)

    def end(self, reason: str) -> None:
        if self.over:
            return
        self.over = True
        self.counter.forget(self)
        self.counter.desk.closed(self.caller.name, self.here)
        self.caller.ear.closed(reason)
        self.caller.again()


class _End:
    """One end of a session: what the party at the other end hears."""

    def __init__(self, session: _Session, at_counter: bool) -> None:
        self._session, self._at_counter = session, at_counter

    def send(self, message: bytes) -> None:
        check_size(message)
        session, mine = self._session, self._at_counter
        if not session.over:
            session.caller.hub.dispatcher.post(lambda: session.deliver(message, mine))

    def close(self) -> None:
        session = self._session
        session.caller.hub.dispatcher.post(lambda: session.end("closed"))


class _Counter:
    """Where the coordinator listens."""

    def __init__(self, hub: MemoryHub, desk: SessionHandler, allowed: Allowed) -> None:
        self.hub, self.desk, self.allowed = hub, desk, allowed
        self.address = ""
        self.sessions: dict[str, _Session] = {}

    def open(self, caller: "_Caller") -> None:
        """Begin a session, in the hub's thread; an older one of that name ends."""
        if not self.allowed(caller.name, ""):
            caller.ear.closed("not authorised")
            caller.again()
            return
        if caller.name in self.sessions:
            self.sessions[caller.name].end("replaced by a newer session")
        session = _Session(self, caller)
        self.sessions[caller.name] = caller.session = session
        self.desk.opened(caller.name, session.here)
        caller.ear.opened(session.there)

    def forget(self, session: _Session) -> None:
        if self.sessions.get(session.caller.name) is session:
            del self.sessions[session.caller.name]

    def drop(self, name: str) -> None:
        self.hub.dispatcher.post(lambda: self._end(name))

    def _end(self, name: str) -> None:
        if name in self.sessions:
            self.sessions[name].end("cut by the coordinator")

    def stop(self) -> None:
        self.hub.release(self.address)
        self.hub.dispatcher.post(self._end_all)
        self.hub.dispatcher.flush()

    def _end_all(self) -> None:
        for session in list(self.sessions.values()):
            session.end("the coordinator has stopped")


class _Caller:
    """A worker that keeps a session open."""

    def __init__(self, hub: MemoryHub, name: str, address: str, ear: ClientHandler) -> None:
        self.hub, self.name, self.address, self.ear = hub, name, address, ear
        self.session: _Session | None = None
        self._stopped = False

    def dial(self) -> None:
        """Open the session, now or when someone listens there."""
        if self._stopped or (self.session is not None and not self.session.over):
            return
        counter = self.hub.find(self.address)
        if isinstance(counter, _Counter):
            counter.open(self)
        else:
            self.hub.call_when_there(self.address, self.dial)

    def again(self) -> None:
        """Try again a little later."""
        if not self._stopped:
            self.hub.dispatcher.post_later(_AGAIN_S, self.dial)

    def drop(self, name: str) -> None:
        """A caller has one session only."""
        self.hub.dispatcher.post(lambda: self._end("cut"))

    def stop(self) -> None:
        self._stopped = True
        self.hub.dispatcher.post(lambda: self._end("stopped"))
        self.hub.dispatcher.flush()

    def _end(self, reason: str) -> None:
        if self.session is not None:
            self.session.end(reason)


class _Shop:
    """Where a worker serves models."""

    def __init__(self, owner: "MemoryTransport", store: ModelSource) -> None:
        self.hub, self.name, self.allowed = owner.hub, owner.name, owner.allowed
        self.store, self.gate = store, PullLimiter(owner.limits)
        self.address = ""

    def drop(self, name: str) -> None:
        self.gate.drop(name)

    def stop(self) -> None:
        self.hub.release(self.address)
        self.gate.close()


@dataclass
class _Pull:
    """One pull, carried out in the puller's thread."""

    visit: PullSlot
    patience: PullTimeouts
    cancelled: threading.Event
    _moved_at: float = 0.0

    def run(self, answer: "Future[ServedModel | PullRefused]", parcel: ModelSink) -> None:
        shipment = self._answer(answer)
        parcel.begin(shipment.header)
        left = shipment.header.size - shipment.header.offset
        self._moved_at = time.monotonic()
        for chunk in paced(shipment, self.visit.over, self._nap):
            parcel.write(chunk)
            left -= len(chunk)
            self._check(self.patience.progress_s)
            self._moved_at = time.monotonic()
        if left:
            raise PullBroken("unreachable")

    def _answer(self, answer: "Future[ServedModel | PullRefused]") -> ServedModel:
        self._moved_at = time.monotonic()
        answer.add_done_callback(lambda _: self.visit.wake.set())
        first_s = self.patience.connect_s + self.patience.first_byte_s
        try:
            while not answer.done():
                self._check(first_s)
                self.visit.wake.wait(_LOOK_S)
        finally:
            answer.cancel()  # does nothing once it is done
        found = answer_of(answer)
        if isinstance(found, PullRefused):
            raise PullDenied(found.code, found.retry_s)
        return found

    def _nap(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.visit.over.is_set():
            self._check(self.patience.progress_s)
            self.visit.over.wait(min(left, _LOOK_S))

    def _check(self, at_most_s: float) -> None:
        if self.visit.over.is_set():
            raise PullBroken("unreachable")
        if self.cancelled.is_set() or time.monotonic() - self._moved_at > at_most_s:
            raise PullBroken("timeout")


class MemoryTransport(SwitchedTransport):
    """A party's way to the others of its hub; its name is what the others see."""

    def __init__(
        self,
        hub: MemoryHub,
        name: str,
        limits: Limits | None = None,
        allowed: Allowed = anyone,
    ) -> None:
        super().__init__(hub, name, limits, allowed)
        self.hub = hub

    def serve_control(self, address: str, desk: SessionHandler) -> ModelListener:
        """Listen for sessions."""
        return self._listen(address, _Counter(self.hub, desk, self.allowed))

    def open_session(self, address: str, ear: ClientHandler) -> ModelListener:
        """Keep a session to the coordinator open until stopped."""
        return self._dial(_Caller(self.hub, self.name, address, ear))

    def serve_models(self, address: str, store: ModelSource) -> ModelListener:
        """Listen for pulls."""
        return self._listen(address, _Shop(self, store))

    def pull(
        self,
        name: str,
        address: str,
        request: PullRequest,
        parcel: ModelSink,
        patience: PullTimeouts,
        cancelled: threading.Event,
    ) -> None:
        """Pull once, in this thread."""
        shop = self.hub.find(address)
        if not isinstance(shop, _Shop) or shop.name != name:
            raise PullBroken("unreachable")
        if not shop.allowed(self.name, ""):
            raise PullDenied("not_authorised")
        visit = shop.gate.enter(self.name)
        if visit is None:
            raise PullDenied("busy", BUSY_S)
        try:
            _Pull(visit, patience, cancelled).run(ask(shop.store, self.name, request), parcel)
        finally:
            shop.gate.leave(visit)
