"""The small interface behind which all transports look alike.

Control: a worker opens one session to the coordinator; both ends exchange whole messages (bytes,
at most `MAX_MESSAGE_BYTES`), in order, until one end closes or the session breaks. Models: a worker
asks a peer, which answers with a header and raw bytes in chunks. Names of peers come from the
transport (certificate, rank, or the registry of a memory hub), never from a message.

All callbacks may come from any thread. A transport never raises into a callback's caller.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from dystop.errors import DystopError
from dystop.testbed.protocol.messages import ModelHeader, PullRefused, PullRequest, RejectCode

MAX_MESSAGE_BYTES = 2 * 2**20
MAX_HEADER_BYTES = 64 * 2**10
CHUNK_BYTES = 2**20


class TransportError(DystopError):
    """A port is taken, an address cannot be reached, a certificate is refused."""

    exit_code = 2


@dataclass
class PullBroken(Exception):
    """A pull ended early; what has arrived stays in the buffer and may be resumed."""

    code: RejectCode
    retry_s: float = 0.0


@dataclass
class PullDenied(PullBroken):
    """The peer is there and said no; `retry_s` 0: it will say so again."""


class Link(Protocol):
    """One control session, seen from either end."""

    def send(self, message: bytes) -> None:
        """Queue a message; does nothing once the session is over."""
        ...

    def close(self) -> None:
        """End the session after what is queued."""
        ...


def fingerprint_of(link: Link) -> str:
    """Of the peer's certificate; empty where the transport knows none."""
    return str(getattr(link, "fingerprint", ""))


class SessionHandler(Protocol):
    """The coordinator's side: who came, what they said, who went."""

    def opened(self, name: str, link: Link) -> None:
        """A peer has opened a session. A second one of the same name replaces the first."""
        ...

    def said(self, name: str, link: Link, message: bytes) -> None:
        """A peer sent a message."""
        ...

    def closed(self, name: str, link: Link) -> None:
        """That session is over."""
        ...


class ClientHandler(Protocol):
    """The worker's side of its session."""

    def opened(self, link: Link) -> None:
        """The coordinator has answered."""
        ...

    def said(self, message: bytes) -> None:
        """The coordinator sent a message."""
        ...

    def closed(self, reason: str) -> None:
        """The session is over; the transport tries again by itself until `stop`."""
        ...


@dataclass(frozen=True)
class ServedModel:
    """A model on its way out: what is announced, and the bytes behind it without a copy."""

    header: ModelHeader
    parts: tuple[memoryview, ...]  # safetensors header and tensor bytes, one after another
    bytes_per_s: float = 0.0  # paced by the sender; 0: as fast as it goes


class ModelSource(Protocol):
    """A worker's side that serves models."""

    def asked(self, name: str, request: PullRequest) -> "Future[ServedModel | PullRefused]":
        """A peer wants a model. The future is cancelled when the peer goes away."""
        ...


class ModelSink(Protocol):
    """Where a pull puts what arrives. It alone decides how much memory is taken."""

    def begin(self, header: ModelHeader) -> None:
        """Check the header; raises PullBroken if it is not acceptable."""
        ...

    def write(self, chunk: memoryview) -> None:
        """Append bytes; raises PullBroken if there are more than announced."""
        ...


@dataclass(frozen=True)
class PullTimeouts:
    """How long a pull may stand still."""

    connect_s: float = 5.0
    first_byte_s: float = 5.0  # after the connection; an exact pull may wait until its deadline
    progress_s: float = 3.0  # without a byte


class ModelListener(Protocol):
    """Something that listens."""

    @property
    def address(self) -> str:
        """Where it can be reached, as host:port or what the transport uses."""
        ...

    def drop(self, name: str) -> None:
        """Cut all that is open with this peer, at once."""
        ...

    def stop(self) -> None:
        """Stop listening and cut everything; returns when all threads are gone."""
        ...


class Transport(Protocol):
    """One process's way to the others."""

    def serve_control(self, address: str, desk: SessionHandler) -> ModelListener:
        """Listen for sessions. Raises TransportError where the address cannot be used."""
        ...

    def open_session(self, address: str, ear: ClientHandler) -> ModelListener:
        """Keep a session to the coordinator open, again and again, until stopped."""
        ...

    def serve_models(self, address: str, store: ModelSource) -> ModelListener:
        """Listen for pulls."""
        ...

    def pull(
        self,
        name: str,
        address: str,
        request: PullRequest,
        parcel: ModelSink,
        patience: PullTimeouts,
        cancelled: threading.Event,
    ) -> None:
        """Pull once, blocking; returns when all is in the parcel, or raises PullBroken."""
        ...

    def close(self) -> None:
        """Release what is left."""
        ...


def chunks(shipment: ServedModel, size: int = CHUNK_BYTES) -> Iterator[memoryview]:
    """The bytes of a shipment from its offset on, in pieces of at most `size`.

    >>> from dystop.testbed.protocol.messages import ModelHeader
    >>> head = ModelHeader(1, 0, 0, 5, "", "", offset=1)
    >>> [bytes(c) for c in chunks(ServedModel(head, (memoryview(b"ab"), memoryview(b"cde"))), 2)]
    [b'b', b'cd', b'e']
    """
    skip = shipment.header.offset
    for part in shipment.parts:
        if skip >= len(part):
            skip -= len(part)
            continue
        for lo in range(skip, len(part), size):
            yield part[lo : lo + size]
        skip = 0
