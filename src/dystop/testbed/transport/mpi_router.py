"""Routing of MPI frames: which listener or conversation a frame belongs to.

A frame is a head of 16 bytes and a body. An address is RANK:PORT. A client numbers its own
conversations; a listener identifies them by the client's rank and that number. The name of a client
comes from its rank: the head only selects one of the names at that rank.
"""

import itertools
import struct
import threading
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from dystop.errors import TransportError
from dystop.testbed.transport.dispatcher import Dispatcher
from dystop.testbed.transport.mpi_endpoint import MpiEndpoint

_HEAD = struct.Struct("<BxHIQ")  # kind, sender, port, conversation
_CONTROL, _MODELS = 1, 2  # tags: a model must not delay control messages


class FrameKind(IntEnum):
    """The type of a frame. The first group goes to a listener, the second to a client."""

    OPEN = 1  # request for a session
    UP = 2  # a message of a worker
    BYE = 3  # the worker ends the session
    ASK = 4  # request for a model: name of the peer, a newline, the `PullRequest`
    CREDIT = 5  # the puller has received a chunk
    GONE = 6  # the puller gives up
    OPENED = 17
    DOWN = 18  # a message of the coordinator
    CLOSED = 19  # the session has ended, or was refused
    HEAD = 20  # of a model
    REFUSED = 21
    CHUNK = 22
    END = 23  # no more bytes will come


_TO_CLIENT = FrameKind.OPENED
_OF_MODELS = {
    FrameKind.ASK,
    FrameKind.CREDIT,
    FrameKind.GONE,
    FrameKind.HEAD,
    FrameKind.REFUSED,
    FrameKind.CHUNK,
    FrameKind.END,
}
_NO_LISTENER_REPLY = {FrameKind.OPEN: FrameKind.CLOSED, FrameKind.ASK: FrameKind.END}
NO_LISTENER = b"nobody listens there"


class Frame(NamedTuple):
    """A frame that has arrived."""

    kind: FrameKind
    rank: int
    name: str  # of the party that sent it
    conversation: int
    body: memoryview


class FrameHandler(Protocol):
    """A receiver of frames; the endpoint's thread calls it, so it must not block."""

    def handle(self, frame: Frame) -> None:
        """Handle a frame."""
        ...


class FrameRouter:
    """Delivers the frames of this process to its listeners and its clients."""

    def __init__(self, endpoint: MpiEndpoint, names: Sequence[Sequence[str]]) -> None:
        if len(names) != endpoint.size:
            raise TransportError(
                f"there are names for {len(names)} ranks, but the job has {endpoint.size}"
            )
        self.endpoint, self.names = endpoint, tuple(map(tuple, names))
        self.dispatcher = Dispatcher()
        self._listeners: dict[int, FrameHandler] = {}
        self._clients: dict[int, FrameHandler] = {}
        self._ports, self._conversations = itertools.count(1), itertools.count(1)
        self._lock = threading.Lock()
        endpoint.on_frame(self._received)

    def close(self) -> None:
        """Leave the job."""
        self.endpoint.close()
        self.dispatcher.close()

    def claim(self, address: str, listener: FrameHandler) -> str:
        """Register a listener and return its address; only the port given counts."""
        wanted = address.rpartition(":")[2]
        with self._lock:
            port = int(wanted) if wanted.isdigit() else 0
            while not port or (wanted in ("", "0") and port in self._listeners):
                port = next(self._ports)
            full = f"{self.endpoint.rank}:{port}"
            if port in self._listeners:
                raise TransportError(
                    f"cannot listen on {full}: it is taken; choose port 0 for any free one"
                )
            self._listeners[port] = listener
        return full

    def release(self, address: str) -> None:
        """Remove the listener at an address."""
        with self._lock:
            self._listeners.pop(parse_address(address)[1], None)

    def open_conversation(self, client: FrameHandler) -> int:
        """Return the number of a new conversation of a client."""
        with self._lock:
            conversation = next(self._conversations)
            self._clients[conversation] = client
        return conversation

    def close_conversation(self, conversation: int) -> None:
        """Forget a conversation; later frames of it are dropped."""
        with self._lock:
            self._clients.pop(conversation, None)

    def call(
        self, kind: FrameKind, sender: int, address: str, conversation: int, body: bytes = b""
    ) -> None:
        """Send a frame to a listener."""
        rank, port = parse_address(address)
        if 0 <= rank < self.endpoint.size:
            self._send(rank, _HEAD.pack(kind, sender, port, conversation), body)

    def reply(self, kind: FrameKind, frame: Frame, body: bytes | memoryview = b"") -> None:
        """Send a frame to the client of a conversation."""
        self._send(frame.rank, _HEAD.pack(kind, 0, 0, frame.conversation), body)

    def _send(self, rank: int, head: bytes, body: bytes | memoryview) -> None:
        self.endpoint.send(rank, _MODELS if head[0] in _OF_MODELS else _CONTROL, head, body)

    def _received(self, rank: int, data: memoryview) -> None:
        kind, sender, port, conversation = _HEAD.unpack_from(data)
        names = self.names[rank]
        frame = Frame(FrameKind(kind), rank, names[sender], conversation, data[_HEAD.size :])
        with self._lock:
            to_client = frame.kind >= _TO_CLIENT
            handler = self._clients.get(conversation) if to_client else self._listeners.get(port)
        if handler is not None:
            handler.handle(frame)
        elif frame.kind in _NO_LISTENER_REPLY:
            self.reply(_NO_LISTENER_REPLY[frame.kind], frame, NO_LISTENER)


def parse_address(address: str) -> tuple[int, int]:
    """Return rank and port of an address; (-1, 0), which no job has, if it is malformed.

    >>> parse_address("3:1"), parse_address("somewhere")
    ((3, 1), (-1, 0))
    """
    rank, _, port = address.partition(":")
    return (int(rank), int(port)) if rank.isdigit() and port.isdigit() else (-1, 0)
