"""The transport of an MPI job: sessions and pulls between the ranks of one communicator.

It serves clusters on which a scheduler starts the processes and MPI is the network. Its limits:

- A rank that dies ends the whole job. There is no fault tolerance: no rank can restart or join
  later. A new job resumes a run that broke off.
- There is no TLS and no certificate. The network of the job is trusted, as MPI itself trusts it.
- Names are ranks: rank 0 holds the coordinator and the observer, every other rank one node.
  `allowed` and the roster work as elsewhere, but protect against mistakes only.
- Ranks poll for frames, so an idle rank answers about two milliseconds late.

`mpi4py` is needed (the extra `mpi`) and is imported only when a job is joined.
"""

import threading

from dystop.errors import TransportError
from dystop.testbed.params import Limits
from dystop.testbed.protocol.pulls import PullBroken, PullRequest
from dystop.testbed.transport.admission import Allowed, anyone, check_size
from dystop.testbed.transport.dispatcher import DispatchedTransport
from dystop.testbed.transport.interface import (
    ClientHandler,
    Listener,
    ModelSink,
    ModelSource,
    PullTimeouts,
    SessionHandler,
)
from dystop.testbed.transport.mpi_pulls import MpiModelServer, pull_once
from dystop.testbed.transport.mpi_router import (
    NO_LISTENER,
    Frame,
    FrameKind,
    FrameRouter,
    parse_address,
)

_RETRY_S = 0.05  # pause before a session is asked for again


class _Session:
    """A session at the coordinator; changed by the dispatcher's thread only."""

    def __init__(self, server: "_ControlServer", open_frame: Frame) -> None:
        self.server, self.open_frame, self.ended = server, open_frame, False

    def send(self, message: bytes) -> None:
        check_size(message)
        if not self.ended:
            self.server.router.reply(FrameKind.DOWN, self.open_frame, message)

    def close(self) -> None:
        self.server.router.dispatcher.post(lambda: self.end("closed"))

    def end(self, reason: str) -> None:
        if not self.ended:
            self.ended = True
            self.server.forget(self)
            self.server.router.reply(FrameKind.CLOSED, self.open_frame, reason.encode())
            self.server.handler.closed(self.open_frame.name, self)


class _ControlServer:
    """The coordinator's listener for sessions."""

    def __init__(self, router: FrameRouter, handler: SessionHandler, allowed: Allowed) -> None:
        self.router, self.handler, self.allowed = router, handler, allowed
        self.address = ""
        self._sessions: dict[tuple[int, int], _Session] = {}  # by rank and conversation
        self._names: dict[str, _Session] = {}

    def handle(self, frame: Frame) -> None:
        self.router.dispatcher.post(lambda: self._handle(frame))

    def _handle(self, frame: Frame) -> None:
        session = self._sessions.get((frame.rank, frame.conversation))
        if frame.kind is FrameKind.OPEN:
            self._open(frame)
        elif session is None:
            return
        elif frame.kind is FrameKind.UP:
            self.handler.received(frame.name, session, bytes(frame.body))
        elif frame.kind is FrameKind.BYE:
            session.end("closed")

    def _open(self, frame: Frame) -> None:
        """Start a session; an older one of that name ends."""
        if not self.allowed(frame.name, ""):
            self.router.reply(FrameKind.CLOSED, frame, b"not authorised")
            return
        self._end(frame.name, "replaced by a newer session")
        session = _Session(self, frame)
        self._sessions[frame.rank, frame.conversation] = self._names[frame.name] = session
        self.router.reply(FrameKind.OPENED, frame)
        self.handler.opened(frame.name, session)

    def forget(self, session: _Session) -> None:
        frame = session.open_frame
        self._sessions.pop((frame.rank, frame.conversation), None)
        if self._names.get(frame.name) is session:
            del self._names[frame.name]

    def _end(self, name: str, reason: str) -> None:
        if name in self._names:
            self._names[name].end(reason)

    def drop(self, name: str) -> None:
        self.router.dispatcher.post(lambda: self._end(name, "cut by the coordinator"))

    def stop(self) -> None:
        self.router.release(self.address)
        self.router.dispatcher.post(self._end_all)
        self.router.dispatcher.flush()

    def _end_all(self) -> None:
        for name in list(self._names):
            self._end(name, "the coordinator has stopped")


class _SessionClient:
    """A worker that keeps its session open; changed by the dispatcher's thread only."""

    def __init__(
        self, router: FrameRouter, sender: int, address: str, handler: ClientHandler
    ) -> None:
        self.router, self.sender, self.address, self.handler = router, sender, address, handler
        self._conversation = 0  # conversation that is open or being opened
        self._open = self._stopped = False

    def dial(self) -> None:
        """Request a session."""
        if not self._stopped and not self._conversation:
            self._conversation = self.router.open_conversation(self)
            self.router.call(FrameKind.OPEN, self.sender, self.address, self._conversation)

    def handle(self, frame: Frame) -> None:
        self.router.dispatcher.post(lambda: self._handle(frame))

    def _handle(self, frame: Frame) -> None:
        if frame.conversation != self._conversation:
            return
        if frame.kind is FrameKind.OPENED:
            self._open = True
            self.handler.opened(_ClientLink(self, self._conversation))
        elif frame.kind is FrameKind.DOWN:
            self.handler.received(bytes(frame.body))
        elif frame.kind is FrameKind.CLOSED:
            self._ended(bytes(frame.body), notify=self._open or frame.body != NO_LISTENER)

    def _ended(self, reason: bytes, *, notify: bool) -> None:
        self.router.close_conversation(self._conversation)
        self._conversation, self._open = 0, False
        if notify:
            self.handler.closed(reason.decode(errors="replace"))
        if not self._stopped:
            self.router.dispatcher.post_later(_RETRY_S, self.dial)

    def send(self, conversation: int, message: bytes) -> None:
        """Send a message of the worker; does nothing once that session has ended."""
        if conversation == self._conversation:
            self.router.call(FrameKind.UP, self.sender, self.address, conversation, message)

    def hang_up(self, conversation: int, reason: bytes) -> None:
        """End the session from this side."""
        if conversation and conversation == self._conversation:
            self.router.call(FrameKind.BYE, self.sender, self.address, conversation)
            self._ended(reason, notify=self._open)

    def drop(self, name: str) -> None:
        self.router.dispatcher.post(lambda: self.hang_up(self._conversation, b"cut"))

    def stop(self) -> None:
        self._stopped = True
        self.router.dispatcher.post(lambda: self.hang_up(self._conversation, b"stopped"))
        self.router.dispatcher.flush()


class _ClientLink:
    """The worker's end of one session."""

    def __init__(self, client: _SessionClient, conversation: int) -> None:
        self._client, self._conversation = client, conversation

    def send(self, message: bytes) -> None:
        check_size(message)
        self._client.send(self._conversation, message)

    def close(self) -> None:
        self._client.router.dispatcher.post(
            lambda: self._client.hang_up(self._conversation, b"closed")
        )


class MpiTransport(DispatchedTransport):
    """The transport of one party of an MPI job; its name is one of those at this rank."""

    def __init__(
        self,
        router: FrameRouter,
        name: str,
        limits: Limits | None = None,
        allowed: Allowed = anyone,
    ) -> None:
        here = router.names[router.endpoint.rank]
        if name not in here:
            raise TransportError(f"{name!r} is not at rank {router.endpoint.rank}: {here}")
        super().__init__(router, name, limits, allowed)
        self.router, self._sender = router, here.index(name)

    def serve_control(self, address: str, handler: SessionHandler) -> Listener:
        """Listen for sessions; only the port of the address counts."""
        return self._listen(address, _ControlServer(self.router, handler, self.allowed))

    def open_session(self, address: str, handler: ClientHandler) -> Listener:
        """Keep a session to the coordinator open until stopped."""
        return self._dial(_SessionClient(self.router, self._sender, address, handler))

    def serve_models(self, address: str, source: ModelSource) -> Listener:
        """Listen for pulls; only the port of the address counts."""
        server = MpiModelServer(self.router, self.name, source, self.limits, self.allowed)
        return self._listen(address, server)

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
        rank, _ = parse_address(address)
        if not 0 <= rank < self.router.endpoint.size or name not in self.router.names[rank]:
            raise PullBroken("unreachable")
        pull_once(self.router, self._sender, (name, address), request, sink, timeouts, cancelled)
