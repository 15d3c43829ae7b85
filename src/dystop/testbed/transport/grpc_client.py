"""The calling side over gRPC: keeping a session open, and pulling models under a watchdog."""

import logging
import os
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from dystop.rng import stream
from dystop.testbed.protocol.codec import BadMessage, decode, encode
from dystop.testbed.protocol.interface import (
    MAX_HEADER_BYTES,
    ClientHandler,
    ModelSink,
    PullBroken,
    PullDenied,
    PullTimeouts,
)
from dystop.testbed.protocol.messages import ModelHeader, PullRefused, PullRequest
from dystop.testbed.security.identity import Identity
from dystop.testbed.security.tls import channel_credentials
from dystop.testbed.transport.admission import BUSY_S, check_size
from dystop.testbed.transport.grpc_settings import (
    LADEN_MS,
    PULL,
    SESSION,
    WELCOME,
    code_of,
    dialling,
    explain,
)

import grpc  # isort: skip

_LOG = logging.getLogger(__name__)
_CONNECT_S = 5.0
_FIRST_S, _MOST_S = 0.2, 2.0  # pauses between attempts to open a session
_LOOK_S = 0.1  # how often the watchdog looks
_MOST_CHANNELS = 64


class _Line:
    """The worker's end of a session."""

    def __init__(self) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._over = False

    def send(self, message: bytes) -> None:
        check_size(message)
        if not self._over:
            self._outbox.put(message)

    def close(self) -> None:
        self._over = True
        self._outbox.put(None)

    def outgoing(self) -> Iterator[bytes]:
        return iter(self._outbox.get, None)


class SessionCaller:
    """Keeps a session open from a thread of its own; pauses grow and are never equal."""

    def __init__(self, identity: Identity, name: str, address: str, ear: ClientHandler) -> None:
        self._identity, self._name, self.address, self._ear = identity, name, address, ear
        self._stopped = threading.Event()
        self._call: Any = None
        self._said = ""  # the last reason given, so that it is not repeated all the time
        self._dice = stream(os.getpid(), "session pause", identity.fingerprint)
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            opened = self._once()
            failures = 0 if opened else failures + 1
            pause_s = min(_MOST_S, _FIRST_S * 2 ** min(failures, 8))
            self._stopped.wait(pause_s * float(self._dice.uniform(0.5, 1.5)))

    def _once(self) -> bool:
        """One session, from the first word to the last; whether there was one."""
        line, opened, reason = _Line(), False, "closed"
        options = dialling(self._name, _CONNECT_S)
        credentials = channel_credentials(self._identity)
        with grpc.secure_channel(self.address, credentials, options=options) as channel:
            try:
                call = channel.stream_stream(SESSION)(line.outgoing())
                self._call = call
                if self._stopped.is_set():
                    call.cancel()
                if WELCOME[0] in map(tuple, call.initial_metadata() or ()):
                    opened = True
                    self._ear.opened(line)
                for message in call:
                    self._ear.said(message)
            except grpc.RpcError as error:
                reason = explain(error, self.address)
            except Exception:  # a mistake of the ear must not end the worker's session for good
                _LOG.exception("an ear raised an error")
            finally:
                line.close()
        self._tell("stopped" if self._stopped.is_set() else reason, opened)
        return opened

    def _tell(self, reason: str, opened: bool) -> None:
        if opened or reason != self._said:
            with suppress(Exception):
                self._ear.closed(reason)
        self._said = "" if opened else reason

    def drop(self, name: str) -> None:
        """Cut the session; another one follows."""
        if self._call is not None:
            self._call.cancel()

    def stop(self) -> None:
        """End the session for good."""
        self._stopped.set()
        self.drop("")
        if threading.current_thread() is not self._thread:
            self._thread.join(_CONNECT_S)


@dataclass(eq=False)
class _Watched:
    """A pull that must not stand still."""

    call: Any
    cancelled: threading.Event
    at_most_s: float
    moved_at: float
    bitten: bool = False

    def moved(self, at_most_s: float) -> None:
        self.at_most_s, self.moved_at = at_most_s, time.monotonic()

    def look(self, now: float) -> None:
        if self.cancelled.is_set() or now - self.moved_at > self.at_most_s:
            self.bitten = True
            self.call.cancel()


class Watchdog:
    """One thread that cancels pulls which stand still, or which nobody wants any more."""

    def __init__(self) -> None:
        self._watched: set[_Watched] = set()
        self._changed = threading.Condition()
        self._over = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def over(self, call: Any, cancelled: threading.Event, at_most_s: float) -> Iterator[_Watched]:
        """Watch a call while the block runs."""
        watched = _Watched(call, cancelled, at_most_s, time.monotonic())
        with self._changed:
            self._watched.add(watched)
            if self._thread is None and not self._over:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield watched
        finally:
            with self._changed:
                self._watched.discard(watched)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._watched)
                if self._over:
                    return
                watched = list(self._watched)
            for one in watched:
                one.look(time.monotonic())
            time.sleep(_LOOK_S)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._over, thread = True, self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()


class Channels:
    """Connections to peers, kept for the next pull; one that failed is not used again."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._open: dict[tuple[str, str], Any] = {}
        self._users: dict[Any, int] = {}
        self._lock = threading.Lock()

    @contextmanager
    def to(self, name: str, address: str, connect_s: float) -> Iterator[Any]:
        """A channel to a peer; if the block raises an error, the next one gets a new channel."""
        key = (name, address)
        with self._lock:
            channel = self._open.pop(key, None) or self._dial(name, address, connect_s)
            self._open[key] = channel  # the newest last
            self._users[channel] = self._users.get(channel, 0) + 1
        try:
            yield channel
        except PullDenied:
            raise  # the connection itself is good
        except PullBroken:
            self._forget(key, channel)
            raise
        finally:
            with self._lock:
                self._users[channel] -= 1
            self._tidy()

    def _dial(self, name: str, address: str, connect_s: float) -> Any:
        credentials = channel_credentials(self._identity)
        options = dialling(name, connect_s, LADEN_MS)
        return grpc.secure_channel(address, credentials, options=options)

    def _forget(self, key: tuple[str, str], channel: Any) -> None:
        with self._lock:
            if self._open.get(key) is channel:
                del self._open[key]

    def _tidy(self) -> None:
        """Close what nobody uses and nobody will use."""
        with self._lock:
            while len(self._open) > _MOST_CHANNELS:
                del self._open[next(iter(self._open))]
            kept = set(self._open.values())
            idle = [one for one, users in self._users.items() if not users and one not in kept]
            for channel in idle:
                del self._users[channel]
        for channel in idle:
            channel.close()

    def close(self) -> None:
        """Close all."""
        with self._lock:
            channels = {*self._users, *self._open.values()}
            self._open, self._users = {}, {}
        for channel in channels:
            channel.close()


def pull_once(
    channel: Any, dog: Watchdog, request: PullRequest, parcel: ModelSink, patience: PullTimeouts,
    cancelled: threading.Event,
) -> None:  # fmt: skip
    """One pull over an open channel."""
    call = channel.unary_stream(PULL)(encode(request))
    first_s = patience.connect_s + patience.first_byte_s
    with dog.over(call, cancelled, first_s) as watched:
        try:
            _take(call, watched, parcel, patience.progress_s)
        except grpc.RpcError as error:
            raise _breach(watched, error) from None
        finally:
            call.cancel()  # nothing once it is over


def _breach(watched: _Watched, error: Any) -> PullBroken:
    if watched.bitten:
        return PullBroken("timeout")
    code = code_of(error)
    if code in ("not_authorised", "busy"):
        return PullDenied(code, BUSY_S if code == "busy" else 0.0)
    return PullBroken(code)


def _take(call: Any, watched: _Watched, parcel: ModelSink, progress_s: float) -> None:
    """Header, then bytes, into the parcel."""
    frame = next(call, None)
    if frame is None:
        raise PullBroken("unreachable")
    header = _header(frame)
    watched.moved(progress_s)
    parcel.begin(header)
    left = header.size - header.offset
    for chunk in call:
        watched.moved(progress_s)
        parcel.write(memoryview(chunk))
        left -= len(chunk)
    if left > 0:
        raise PullBroken("unreachable")


def _header(frame: bytes) -> ModelHeader:
    try:
        first = decode(frame, "peer") if len(frame) <= MAX_HEADER_BYTES else None
    except BadMessage:
        first = None
    if isinstance(first, PullRefused):
        raise PullDenied(first.code, first.retry_s)
    if not isinstance(first, ModelHeader):
        raise PullBroken("malformed")
    return first
