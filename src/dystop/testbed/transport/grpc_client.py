"""The calling side of gRPC: a session that reconnects, and pulls under a watchdog."""

import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from dystop.rng import stream
from dystop.testbed.protocol.codec import MAX_HEADER_BYTES, BadMessage, decode, encode
from dystop.testbed.protocol.pulls import (
    ModelHeader,
    PullBroken,
    PullDenied,
    PullRefused,
    PullRequest,
)
from dystop.testbed.security.identity import Identity
from dystop.testbed.security.tls import channel_credentials
from dystop.testbed.transport.admission import BUSY_S, check_size
from dystop.testbed.transport.grpc_settings import (
    MODEL_PING_MS,
    PULL,
    SESSION,
    WELCOME,
    client_options,
    explain,
    reject_code,
)
from dystop.testbed.transport.interface import ClientHandler, ModelSink, PullTimeouts
from dystop.testbed.transport.watchdog import Watchdog, WatchedCall

import grpc  # isort: skip

_LOG = logging.getLogger(__name__)
_CONNECT_S = 5.0
_FIRST_S, _MOST_S = 0.2, 2.0  # pauses between attempts to open a session
_MOST_CHANNELS = 64


class _ClientLink:
    """The worker's end of a session."""

    def __init__(self) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._closed = False

    def send(self, message: bytes) -> None:
        check_size(message)
        if not self._closed:
            self._outbox.put(message)

    def close(self) -> None:
        self._closed = True
        self._outbox.put(None)

    def outgoing(self) -> Iterator[bytes]:
        return iter(self._outbox.get, None)


class GrpcSessionClient:
    """Keeps a session open, in its own thread; the pauses between attempts grow and are random."""

    def __init__(self, identity: Identity, name: str, address: str, handler: ClientHandler) -> None:
        self._identity, self._name, self.address, self._handler = identity, name, address, handler
        self._stopped = threading.Event()
        self._call: Any = None
        self._last_reason = ""  # so that the same reason is reported once
        self._dice = stream(os.getpid(), "session pause", identity.fingerprint)
        self._thread = threading.Thread(target=self._run, name="session", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        failures = 0
        while not self._stopped.is_set():
            opened = self._run_session()
            failures = 0 if opened else failures + 1
            pause_s = min(_MOST_S, _FIRST_S * 2 ** min(failures, 8))
            self._stopped.wait(pause_s * float(self._dice.uniform(0.5, 1.5)))

    def _run_session(self) -> bool:
        """Run one session from start to end; return whether it was opened."""
        link, opened, reason = _ClientLink(), False, "closed"
        options = client_options(self._name, _CONNECT_S)
        credentials = channel_credentials(self._identity)
        with grpc.secure_channel(self.address, credentials, options=options) as channel:
            try:
                call = channel.stream_stream(SESSION)(link.outgoing())
                self._call = call
                if self._stopped.is_set():
                    call.cancel()
                if WELCOME[0] in map(tuple, call.initial_metadata() or ()):
                    opened = True
                    self._handler.opened(link)
                for message in call:
                    self._handler.received(message)
            except grpc.RpcError as error:
                reason = explain(error, self.address)
            except Exception:  # a fault in the handler must not end the worker's session for good
                _LOG.exception("a session handler raised an error")
            finally:
                link.close()
        self._report_end("stopped" if self._stopped.is_set() else reason, opened)
        return opened

    def _report_end(self, reason: str, opened: bool) -> None:
        if opened or reason != self._last_reason:
            with suppress(Exception):
                self._handler.closed(reason)
        self._last_reason = "" if opened else reason

    def drop(self, name: str) -> None:
        """Cut the session; the client then reconnects."""
        if self._call is not None:
            self._call.cancel()

    def stop(self) -> None:
        """End the session for good."""
        self._stopped.set()
        self.drop("")
        if threading.current_thread() is not self._thread:
            self._thread.join(_CONNECT_S)


class Channels:
    """Connections to peers, kept for the next pull; a failed one is not reused."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._open: dict[tuple[str, str], Any] = {}
        self._users: dict[Any, int] = {}
        self._lock = threading.Lock()

    @contextmanager
    def to(self, name: str, address: str, connect_s: float) -> Iterator[Any]:
        """Yield a channel to a peer; after PullBroken, the next pull gets a new channel."""
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
            self._close_unused()

    def _dial(self, name: str, address: str, connect_s: float) -> Any:
        credentials = channel_credentials(self._identity)
        options = client_options(name, connect_s, MODEL_PING_MS)
        return grpc.secure_channel(address, credentials, options=options)

    def _forget(self, key: tuple[str, str], channel: Any) -> None:
        with self._lock:
            if self._open.get(key) is channel:
                del self._open[key]

    def _close_unused(self) -> None:
        """Close channels that have no user and are not kept."""
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
        """Close all channels."""
        with self._lock:
            channels = {*self._users, *self._open.values()}
            self._open, self._users = {}, {}
        for channel in channels:
            channel.close()


def pull_once(
    channel: Any, watchdog: Watchdog, request: PullRequest, sink: ModelSink, timeouts: PullTimeouts,
    cancelled: threading.Event,
) -> None:  # fmt: skip
    """Pull once over an open channel."""
    call = channel.unary_stream(PULL)(encode(request))
    first_s = timeouts.connect_s + timeouts.first_byte_s
    with watchdog.watching(call, cancelled, first_s) as watched:
        try:
            _receive_model(call, watched, sink, timeouts.progress_s)
        except grpc.RpcError as error:
            raise _broken_pull(watched, error) from None
        finally:
            call.cancel()  # does nothing once it has ended


def _broken_pull(watched: WatchedCall, error: Any) -> PullBroken:
    if watched.cancelled_by_watchdog:
        return PullBroken("timeout")
    code = reject_code(error)
    if code in ("not_authorised", "busy"):
        return PullDenied(code, BUSY_S if code == "busy" else 0.0)
    return PullBroken(code)


def _receive_model(call: Any, watched: WatchedCall, sink: ModelSink, progress_s: float) -> None:
    """Pass the header and then the bytes to the sink."""
    frame = next(call, None)
    if frame is None:
        raise PullBroken("unreachable")
    header = _header(frame)
    watched.progressed(progress_s)
    sink.begin(header)
    left = header.size - header.offset
    for chunk in call:
        watched.progressed(progress_s)
        sink.write(memoryview(chunk))
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
