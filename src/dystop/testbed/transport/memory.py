"""All parties in one process: messages pass through one dispatcher, pulls run in their caller."""

import itertools
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from dystop.errors import TransportError
from dystop.testbed.params import Limits
from dystop.testbed.protocol.pulls import PullBroken, PullDenied, PullRefused, PullRequest
from dystop.testbed.transport.admission import (
    BUSY_S,
    Allowed,
    PullLimiter,
    PullSlot,
    anyone,
    check_size,
    request_model,
    result_of,
)
from dystop.testbed.transport.dispatcher import Call, DispatchedTransport, Dispatcher
from dystop.testbed.transport.interface import (
    ClientHandler,
    Listener,
    ModelSink,
    ModelSource,
    PullTimeouts,
    ServedModel,
    SessionHandler,
)
from dystop.testbed.transport.pacing import paced

_RETRY_S = 0.05  # pause before a client reopens a session that the other side ended
_POLL_S = 0.05  # how often a waiting pull checks whether it was cancelled


class MemoryHub:
    """The registry of all listeners in this process, by address.

    >>> with MemoryHub() as hub:
    ...     hub.claim("127.0.0.1:0", "a listener")
    '127.0.0.1:1'
    """

    def __init__(self) -> None:
        self.dispatcher = Dispatcher()
        self._listeners: dict[str, Any] = {}
        self._waiting: dict[str, list[Call]] = {}
        self._ports = itertools.count(1)
        self._lock = threading.Lock()

    def claim(self, address: str, listener: object) -> str:
        """Register a listener and return its address, with a port if none was given."""
        host, _, port = address.rpartition(":")
        with self._lock:
            if port in ("", "0"):
                address = f"{host or 'memory'}:{next(self._ports)}"
            if address in self._listeners:
                raise TransportError(
                    f"cannot listen on {address}: it is taken; stop what listens there or choose "
                    "port 0 for any free one"
                )
            self._listeners[address] = listener
            waiting = self._waiting.pop(address, [])
        for call in waiting:
            self.dispatcher.post(call)
        return address

    def release(self, address: str) -> None:
        """Remove the listener at an address."""
        with self._lock:
            self._listeners.pop(address, None)

    def find(self, address: str) -> Any:
        """Return the listener at an address, or None."""
        with self._lock:
            return self._listeners.get(address)

    def call_when_claimed(self, address: str, call: Call) -> None:
        """Run a call as soon as a server listens at the address."""
        with self._lock:
            if address not in self._listeners:
                self._waiting.setdefault(address, []).append(call)
                return
        self.dispatcher.post(call)

    def close(self) -> None:
        """End the dispatcher's thread."""
        self.dispatcher.close()

    def __enter__(self) -> "MemoryHub":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Session:
    """A session between a server and a client; changed by the dispatcher's thread only."""

    def __init__(self, server: "_ControlServer", client: "_SessionClient") -> None:
        self.server, self.client = server, client
        self.ended = False
        self.server_link = _Link(self, at_server=True)
        self.client_link = _Link(self, at_server=False)

    def deliver(self, message: bytes, from_server: bool) -> None:
        if self.ended:
            return
        if from_server:
            self.client.handler.received(message)
        else:
            self.server.handler.received(self.client.name, self.server_link, message)

    def end(self, reason: str) -> None:
        if self.ended:
            return
        self.ended = True
        self.server.forget(self)
        self.server.handler.closed(self.client.name, self.server_link)
        self.client.handler.closed(reason)
        self.client.retry()


class _Link:
    """One end of a session; what it sends arrives at the other end."""

    def __init__(self, session: _Session, at_server: bool) -> None:
        self._session, self._at_server = session, at_server

    def send(self, message: bytes) -> None:
        check_size(message)
        session, from_server = self._session, self._at_server
        if not session.ended:
            session.client.hub.dispatcher.post(lambda: session.deliver(message, from_server))

    def close(self) -> None:
        session = self._session
        session.client.hub.dispatcher.post(lambda: session.end("closed"))


class _ControlServer:
    """The coordinator's listener for sessions."""

    def __init__(self, hub: MemoryHub, handler: SessionHandler, allowed: Allowed) -> None:
        self.hub, self.handler, self.allowed = hub, handler, allowed
        self.address = ""
        self.sessions: dict[str, _Session] = {}

    def open(self, client: "_SessionClient") -> None:
        """Start a session, in the dispatcher's thread; an older one of that name ends."""
        if not self.allowed(client.name, ""):
            client.handler.closed("not authorised")
            client.retry()
            return
        if client.name in self.sessions:
            self.sessions[client.name].end("replaced by a newer session")
        session = _Session(self, client)
        self.sessions[client.name] = client.session = session
        self.handler.opened(client.name, session.server_link)
        client.handler.opened(session.client_link)

    def forget(self, session: _Session) -> None:
        if self.sessions.get(session.client.name) is session:
            del self.sessions[session.client.name]

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


class _SessionClient:
    """A worker that keeps its session open."""

    def __init__(self, hub: MemoryHub, name: str, address: str, handler: ClientHandler) -> None:
        self.hub, self.name, self.address, self.handler = hub, name, address, handler
        self.session: _Session | None = None
        self._stopped = False

    def dial(self) -> None:
        """Open the session, now or as soon as a server listens there."""
        if self._stopped or (self.session is not None and not self.session.ended):
            return
        server = self.hub.find(self.address)
        if isinstance(server, _ControlServer):
            server.open(self)
        else:
            self.hub.call_when_claimed(self.address, self.dial)

    def retry(self) -> None:
        """Dial again after a pause."""
        if not self._stopped:
            self.hub.dispatcher.post_later(_RETRY_S, self.dial)

    def drop(self, name: str) -> None:
        """End the only session of this client, whatever the name."""
        self.hub.dispatcher.post(lambda: self._end("cut"))

    def stop(self) -> None:
        self._stopped = True
        self.hub.dispatcher.post(lambda: self._end("stopped"))
        self.hub.dispatcher.flush()

    def _end(self, reason: str) -> None:
        if self.session is not None:
            self.session.end(reason)


class _ModelServer:
    """A worker's listener for pulls."""

    def __init__(self, transport: "MemoryTransport", source: ModelSource) -> None:
        self.hub, self.name, self.allowed = transport.hub, transport.name, transport.allowed
        self.source, self.limiter = source, PullLimiter(transport.limits)
        self.address = ""

    def drop(self, name: str) -> None:
        self.limiter.drop(name)

    def stop(self) -> None:
        self.hub.release(self.address)
        self.limiter.close()


@dataclass
class _Pull:
    """One pull; it runs in the thread of the puller."""

    slot: PullSlot
    timeouts: PullTimeouts
    cancelled: threading.Event
    _progress_at: float = 0.0

    def run(self, answer: "Future[ServedModel | PullRefused]", sink: ModelSink) -> None:
        model = self._answer(answer)
        sink.begin(model.header)
        left = model.header.size - model.header.offset
        self._progress_at = time.monotonic()
        for chunk in paced(model, self.slot.ended, self._sleep):
            sink.write(chunk)
            left -= len(chunk)
            self._check(self.timeouts.progress_s)
            self._progress_at = time.monotonic()
        if left:
            raise PullBroken("unreachable")

    def _answer(self, answer: "Future[ServedModel | PullRefused]") -> ServedModel:
        self._progress_at = time.monotonic()
        answer.add_done_callback(lambda _: self.slot.wake.set())
        first_s = self.timeouts.connect_s + self.timeouts.first_byte_s
        try:
            while not answer.done():
                self._check(first_s)
                self.slot.wake.wait(_POLL_S)
        finally:
            answer.cancel()  # does nothing once it is done
        found = result_of(answer)
        if isinstance(found, PullRefused):
            raise PullDenied(found.code, found.retry_s)
        return found

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self.slot.ended.is_set():
            self._check(self.timeouts.progress_s)
            self.slot.ended.wait(min(left, _POLL_S))

    def _check(self, at_most_s: float) -> None:
        if self.slot.ended.is_set():
            raise PullBroken("unreachable")
        if self.cancelled.is_set() or time.monotonic() - self._progress_at > at_most_s:
            raise PullBroken("timeout")


class MemoryTransport(DispatchedTransport):
    """The transport of one party of a hub; the other parties know it by its name."""

    def __init__(
        self,
        hub: MemoryHub,
        name: str,
        limits: Limits | None = None,
        allowed: Allowed = anyone,
    ) -> None:
        super().__init__(hub, name, limits, allowed)
        self.hub = hub

    def serve_control(self, address: str, handler: SessionHandler) -> Listener:
        """Listen for sessions."""
        return self._listen(address, _ControlServer(self.hub, handler, self.allowed))

    def open_session(self, address: str, handler: ClientHandler) -> Listener:
        """Keep a session to the coordinator open until stopped."""
        return self._dial(_SessionClient(self.hub, self.name, address, handler))

    def serve_models(self, address: str, source: ModelSource) -> Listener:
        """Listen for pulls."""
        return self._listen(address, _ModelServer(self, source))

    def pull(
        self,
        name: str,
        address: str,
        request: PullRequest,
        sink: ModelSink,
        timeouts: PullTimeouts,
        cancelled: threading.Event,
    ) -> None:
        """Pull once, in this thread."""
        server = self.hub.find(address)
        if not isinstance(server, _ModelServer) or server.name != name:
            raise PullBroken("unreachable")
        if not server.allowed(self.name, ""):
            raise PullDenied("not_authorised")
        slot = server.limiter.enter(self.name)
        if slot is None:
            raise PullDenied("busy", BUSY_S)
        try:
            answer = request_model(server.source, self.name, request)
            _Pull(slot, timeouts, cancelled).run(answer, sink)
        finally:
            server.limiter.leave(slot)
