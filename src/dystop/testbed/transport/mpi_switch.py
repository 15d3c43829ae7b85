"""Conversations over an MPI line: who listens on which port, and who talks with whom.

A frame is a head of 16 bytes and a body. An address is RANK:PORT. A caller numbers its own
conversations; a listener knows them by the caller's rank and that number. The name of a caller
comes from its rank: the head only says which of the names that sit there is meant.
"""

import itertools
import struct
import threading
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, Protocol

from dystop.testbed.protocol.interface import TransportError
from dystop.testbed.transport.memory_hub import Dispatcher
from dystop.testbed.transport.mpi_frames import MpiLine

_HEAD = struct.Struct("<BxHIQ")  # kind, who, port, talk
_CONTROL, _MODELS = 1, 2  # tags: models must not hold up control messages


class Kind(IntEnum):
    """What a frame is. The first group goes to a listener, the second to a caller."""

    OPEN = 1  # a session, please
    UP = 2  # a message of a worker
    BYE = 3  # the worker ends the session
    ASK = 4  # a model, please: the name of who is meant, a line feed, the request
    CREDIT = 5  # a chunk was taken
    GONE = 6  # the puller has given up
    OPENED = 17
    DOWN = 18  # a message of the coordinator
    CLOSED = 19  # the session is over, or there is none
    HEAD = 20  # of a model
    REFUSED = 21
    CHUNK = 22
    END = 23  # no more bytes will come


_TO_CALLER = Kind.OPENED
_OF_MODELS = {Kind.ASK, Kind.CREDIT, Kind.GONE, Kind.HEAD, Kind.REFUSED, Kind.CHUNK, Kind.END}
_REPLY_WHERE_NOBODY = {Kind.OPEN: Kind.CLOSED, Kind.ASK: Kind.END}
NOBODY = b"nobody listens there"


class Frame(NamedTuple):
    """A frame that has arrived."""

    kind: Kind
    rank: int
    name: str  # of the party that sent it
    talk: int
    body: memoryview


class Party(Protocol):
    """Someone who is told of frames, by the line's thread: must not block."""

    def heard(self, frame: Frame) -> None:
        """A frame has come."""
        ...


class Switch:
    """All parties of one process."""

    def __init__(self, line: MpiLine, names: Sequence[Sequence[str]]) -> None:
        if len(names) != line.size:
            raise TransportError(f"names for {len(names)} ranks, but the job has {line.size}")
        self.line, self.names = line, tuple(map(tuple, names))
        self.dispatcher = Dispatcher()
        self._listeners: dict[int, Party] = {}
        self._callers: dict[int, Party] = {}
        self._ports, self._talks = itertools.count(1), itertools.count(1)
        self._lock = threading.Lock()
        line.on_frame(self._received)

    def close(self) -> None:
        """Leave the job."""
        self.line.close()
        self.dispatcher.close()

    def claim(self, address: str, listener: Party) -> str:
        """Let someone listen; returns the address, of which only the port was a wish."""
        wish = address.rpartition(":")[2]
        with self._lock:
            port = int(wish) if wish.isdigit() else 0
            while not port or (wish in ("", "0") and port in self._listeners):
                port = next(self._ports)
            place = f"{self.line.rank}:{port}"
            if port in self._listeners:
                raise TransportError(
                    f"cannot listen on {place}: it is taken; choose port 0 for any free one"
                )
            self._listeners[port] = listener
        return place

    def release(self, address: str) -> None:
        """Stop listening there."""
        with self._lock:
            self._listeners.pop(place_of(address)[1], None)

    def begin(self, caller: Party) -> int:
        """Number a new conversation of a caller."""
        with self._lock:
            talk = next(self._talks)
            self._callers[talk] = caller
        return talk

    def end(self, talk: int) -> None:
        """Forget a conversation; frames that still come are dropped."""
        with self._lock:
            self._callers.pop(talk, None)

    def call(self, kind: Kind, who: int, address: str, talk: int, body: bytes = b"") -> None:
        """Send to a listener."""
        rank, port = place_of(address)
        if 0 <= rank < self.line.size:
            self._send(rank, _HEAD.pack(kind, who, port, talk), body)

    def reply(self, kind: Kind, frame: Frame, body: bytes | memoryview = b"") -> None:
        """Send to the caller of a conversation."""
        self._send(frame.rank, _HEAD.pack(kind, 0, 0, frame.talk), body)

    def _send(self, rank: int, head: bytes, body: bytes | memoryview) -> None:
        self.line.send(rank, _MODELS if head[0] in _OF_MODELS else _CONTROL, head, body)

    def _received(self, rank: int, data: memoryview) -> None:
        kind, who, port, talk = _HEAD.unpack_from(data)
        names = self.names[rank]
        frame = Frame(Kind(kind), rank, names[who], talk, data[_HEAD.size :])
        with self._lock:
            called = frame.kind >= _TO_CALLER
            party = self._callers.get(talk) if called else self._listeners.get(port)
        if party is not None:
            party.heard(frame)
        elif frame.kind in _REPLY_WHERE_NOBODY:
            self.reply(_REPLY_WHERE_NOBODY[frame.kind], frame, NOBODY)


def place_of(address: str) -> tuple[int, int]:
    """Rank and port of an address; a rank that no job has where it is none.

    >>> place_of("3:1"), place_of("somewhere")
    ((3, 1), (-1, 0))
    """
    rank, _, port = address.partition(":")
    return (int(rank), int(port)) if rank.isdigit() and port.isdigit() else (-1, 0)
