"""The listening side of gRPC: sessions for the coordinator, pulls for every party."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from dystop.errors import TransportError
from dystop.testbed.params import Limits
from dystop.testbed.protocol.codec import (
    MAX_HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    BadMessage,
    decode,
    encode,
)
from dystop.testbed.protocol.pulls import PullRefused, PullRequest
from dystop.testbed.security.identity import Identity
from dystop.testbed.security.tls import Peer, peer_of, server_credentials
from dystop.testbed.transport.admission import (
    Allowed,
    PullLimiter,
    PullSlot,
    check_size,
    request_model,
    result_of,
)
from dystop.testbed.transport.grpc_calls import (
    Handler,
    OpenCalls,
    Pace,
    Refused,
    Responses,
    ThreadPerCall,
)
from dystop.testbed.transport.grpc_settings import (
    MODELS,
    PULL,
    SESSION,
    SESSIONS,
    WELCOME,
    Options,
    listen_problem,
    split_address,
)
from dystop.testbed.transport.interface import ModelSource, SessionHandler
from dystop.testbed.transport.pacing import TokenBucket, paced

import grpc  # isort: skip

_LOG = logging.getLogger(__name__)
MAX_SESSIONS = 1024
MAX_QUEUED = 4096  # messages for one worker; the session of a worker with more is closed
MAX_QUEUED_BYTES = 32 * 2**20
OPEN_PULLS = 16  # calls of one peer that have a thread, half-open ones among them
_MAX_PULLS = 32 * OPEN_PULLS  # of all peers
SESSIONS_AT_ONCE, SESSIONS_PER_S = 10, 1.0  # new sessions of one peer
_OPEN_SESSIONS = 8  # calls of one peer; all but the newest are about to end
_REASON_S = 0.2  # for sending the reason to a session that is cut
_STOP_S = 5.0
_BURST = 10  # seconds whose messages may arrive at once
_HALF_OPEN = "it opened a pull and sent no request"
_MANY_BYTES, _LONG_S = "it sends messages faster than they are read", 1.0
_MANY_SESSIONS = "it opens sessions faster than once a second"


def _certificate_of(context: Any) -> str:
    """Return the fingerprint of a caller.

    Calls are counted by certificate, not by name: the holder of a revoked one takes nothing from a
    peer that has a newer one under the same name.
    """
    peer = peer_of(context.auth_context())
    return peer.fingerprint if peer else ""


class _Listener:
    """A gRPC server with one method."""

    def __init__(
        self, identity: Identity, allowed: Allowed, calls: OpenCalls, most: int, options: Options
    ) -> None:
        self._identity, self._allowed, self._calls = identity, allowed, calls
        self._threads = ThreadPerCall()
        self._server = grpc.server(self._threads, options=options, maximum_concurrent_rpcs=most)
        self.address = ""

    def listen(self, address: str, path: str, handler: Handler) -> None:
        """Start to listen."""
        host, _ = split_address(address)
        service, method = path[1:].split("/")
        methods = {method: self._calls.method(_certificate_of, handler)}
        generic = grpc.method_handlers_generic_handler(service, methods)
        self._server.add_generic_rpc_handlers((generic,))
        try:
            port = self._server.add_secure_port(address, server_credentials(self._identity))
        except (RuntimeError, ValueError):
            port = 0
        if not port:
            raise TransportError(
                f"cannot listen on {address}: {listen_problem(address)}; "
                "stop what listens there, or choose another host or port (0: any free one)"
            )
        self._server.start()
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _authorised_peer(self, context: Any) -> Peer:
        """Return the peer of a call; refuse the call if it is not allowed."""
        peer = peer_of(context.auth_context())
        if peer is None:
            text = "the certificate has no single name"
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, text)
        if not self._allowed(peer.name, peer.fingerprint):
            text = f"the certificate of {peer.name} is revoked or not enrolled; ask the operator"
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, text)
        return peer

    def stop(self) -> None:
        """Stop listening, cut everything, wait for the threads."""
        self._server.stop(None).wait(_STOP_S)
        self._threads.join(_STOP_S)
        self._calls.close()


class ModelServer(_Listener):
    """Serves pulls."""

    def __init__(
        self, identity: Identity, allowed: Allowed, limits: Limits, source: ModelSource
    ) -> None:
        super().__init__(identity, allowed, OpenCalls(OPEN_PULLS), _MAX_PULLS, MODELS)
        self._limiter, self._source = PullLimiter(limits), source

    def start(self, address: str) -> "ModelServer":
        """Start to listen."""
        self.listen(address, PULL, self._pull)
        return self

    def _pull(self, requests: Iterator[bytes], context: Any) -> Responses:
        peer = self._authorised_peer(context)
        raw = self._calls.request(requests, context)
        if raw is None:
            _call_handler(self._source.incident, peer.name, "half_open", _HALF_OPEN)
            return
        slot = self._limiter.enter(peer.name)
        if slot is None:
            raise _busy()
        try:
            if context.add_callback(slot.cancel):
                slot.on_cancel = context.cancel
                yield from self._frames(peer, slot, raw)
        finally:
            slot.on_cancel = _do_nothing
            self._limiter.leave(slot)

    def _frames(self, peer: Peer, slot: PullSlot, raw: bytes) -> Responses:
        """Yield the header or the refusal, then the bytes."""
        request = _request(raw)
        if request is None:
            yield encode(PullRefused("malformed"))
            return
        asked = request_model(self._source, peer.name, request)
        asked.add_done_callback(lambda _: slot.wake.set())
        slot.wake.wait()
        asked.cancel()  # does nothing if there is an answer
        if slot.ended.is_set():
            return
        answer = result_of(asked)
        if isinstance(answer, PullRefused):
            if answer.code == "busy":
                raise _busy()
            yield encode(answer)
            return
        yield encode(answer.header)
        for chunk in paced(answer, slot.ended):
            yield bytes(chunk)

    def drop(self, name: str) -> None:
        """Cancel the pulls of a peer."""
        self._limiter.drop(name)

    def stop(self) -> None:
        """Stop listening and cancel all pulls."""
        self._limiter.close()
        super().stop()


def _do_nothing() -> None:
    pass


def _busy() -> Refused:
    return Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many pulls")


def _request(raw: bytes) -> PullRequest | None:
    try:
        found = decode(raw, "peer") if len(raw) <= MAX_HEADER_BYTES else None
    except BadMessage:
        return None
    return found if isinstance(found, PullRequest) else None


class _Session:
    """One session at the coordinator; also the link that its handler holds."""

    def __init__(self, peer: Peer, context: Any) -> None:
        self.name, self.fingerprint, self._context = *peer, context
        self.remote = str(context.peer())
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._queued, self._sent = 0, 0  # bytes since the session began
        self.reason = ""  # why it was cut; empty if it was not
        self.ended = threading.Event()  # set when gRPC is done with the call
        self.reported = threading.Event()  # set when the handler knows of the end

    def send(self, message: bytes) -> None:
        """Queue a message."""
        check_size(message)
        too_many = self._queued - self._sent > MAX_QUEUED_BYTES
        if too_many or self._outbox.qsize() > MAX_QUEUED:
            self._context.cancel()
        elif not self.ended.is_set():
            self._queued += len(message)
            self._outbox.put(message)

    def close(self) -> None:
        """End the session after the queued messages."""
        self._outbox.put(None)

    def end(self) -> None:
        """Note that the call has ended, for whatever reason."""
        self.ended.set()
        self._outbox.put(None)

    def cut(self, reason: str) -> None:
        """End the session at once; the peer gets the reason if it still listens."""
        self.reason = reason
        self._outbox.put(None)
        if not self.ended.wait(_REASON_S):
            self._context.cancel()

    def outgoing(self) -> Iterator[bytes]:
        """Yield what gRPC sends."""
        for message in iter(self._outbox.get, None):
            yield message
            self._sent += len(message)
        if self.reason:
            self._context.abort(grpc.StatusCode.ABORTED, self.reason)


class ControlServer(_Listener):
    """Serves sessions, one per peer."""

    def __init__(
        self, identity: Identity, allowed: Allowed, limits: Limits, handler: SessionHandler
    ) -> None:
        super().__init__(identity, allowed, OpenCalls(_OPEN_SESSIONS), MAX_SESSIONS, SESSIONS)
        self._handler, self._limits = handler, limits
        self._pace = Pace(SESSIONS_AT_ONCE, SESSIONS_PER_S, 1.0 / SESSIONS_PER_S)
        self._sessions: dict[str, _Session] = {}
        self._buckets: dict[str, tuple[TokenBucket, TokenBucket]] = {}  # by certificate
        self._lock = threading.Lock()

    def start(self, address: str) -> "ControlServer":
        """Start to listen."""
        self.listen(address, SESSION, self._session)
        return self

    def _session(self, requests: Iterator[bytes], context: Any) -> Responses:
        peer = self._authorised_peer(context)
        if self._pace.delay_s(peer.fingerprint) > 0:
            _call_handler(self._handler.incident, peer.name, "flood", _MANY_SESSIONS)
            text = "too many sessions; wait a second"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, text)
        session = _Session(peer, context)
        with self._lock:
            older = self._sessions.get(peer.name)
            self._sessions[peer.name] = session
        if older is not None:
            older.cut("replaced by a newer session")
            older.reported.wait(_REASON_S)
        if not context.add_callback(session.end):
            session.end()
        context.send_initial_metadata(WELCOME)
        _call_handler(self._handler.opened, peer.name, session)
        reader = threading.Thread(
            target=self._read, args=(session, requests), name="session", daemon=True
        )
        reader.start()
        yield from session.outgoing()

    def _read(self, session: _Session, requests: Iterator[bytes]) -> None:
        """Pass messages to the handler, no faster than allowed, until the session ends.

        A message is read when the ones before may pass. So gRPC stops a peer that sends too much.
        """
        messages, size = self._buckets_of(session.fingerprint)
        try:
            for message in requests:
                wait_s = size.reserve(len(message))
                if wait_s > _LONG_S:
                    _call_handler(self._handler.incident, session.name, "flood", _MANY_BYTES)
                session.ended.wait(max(wait_s, messages.reserve(1)))
                if session.reason:
                    break
                _call_handler(self._handler.received, session.name, session, message)
        except grpc.RpcError:
            pass  # the peer has gone
        except Exception as error:  # gRPC raises a bare Exception when a call is aborted
            _LOG.debug("session of %s: %s", session.name, error)
        session.close()
        with self._lock:
            if self._sessions.get(session.name) is session:
                del self._sessions[session.name]
        _call_handler(self._handler.closed, session.name, session)
        session.reported.set()

    def _buckets_of(self, fingerprint: str) -> tuple[TokenBucket, TokenBucket]:
        """Return the buckets for messages and for bytes; a new session does not refill them."""
        with self._lock:
            if fingerprint not in self._buckets:
                per_s, bytes_per_s = self._limits.messages_per_s, self._limits.bytes_per_s
                burst = max(bytes_per_s * _BURST, MAX_MESSAGE_BYTES)
                self._buckets[fingerprint] = (
                    TokenBucket(per_s, per_s * _BURST, full=True),
                    TokenBucket(bytes_per_s, burst, full=True),
                )
            return self._buckets[fingerprint]

    def drop(self, name: str) -> None:
        """Cut the session of a peer."""
        with self._lock:
            session = self._sessions.get(name)
        if session is not None:
            session.cut("cut by the coordinator")

    def stop(self) -> None:
        """Stop listening and end all sessions."""
        super().stop()
        with self._lock:
            left = list(self._sessions.values())
        for session in left:
            session.reported.wait(_STOP_S)


def _call_handler(call: Callable[..., None], *args: Any) -> None:
    try:
        call(*args)
    except Exception:  # a fault in the handler must not end the session of a worker
        _LOG.exception("a session handler raised an error")
