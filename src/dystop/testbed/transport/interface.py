"""The interface of all transports: control sessions and model pulls.

Control: a worker opens one session to the coordinator. Both ends exchange whole messages (bytes, at
most `codec.MAX_MESSAGE_BYTES`), in order, until one end closes or the session breaks. Models: a
worker requests a model from a peer, which answers with a header and raw bytes in chunks. The name
of a peer comes from the transport (certificate, rank, or registry of a memory hub), never from a
message.

Any thread may call a handler. An error in a handler never reaches the peer.
"""

import threading
from concurrent.futures import Future
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Protocol
from urllib.parse import unquote

from dystop.testbed.protocol.messages import IncidentKind
from dystop.testbed.protocol.pulls import ModelHeader, PullRefused, PullRequest

CHUNK_BYTES = 2**20


class Link(Protocol):
    """One control session, seen from either end."""

    def send(self, message: bytes) -> None:
        """Queue a message; does nothing once the session has ended."""
        ...

    def close(self) -> None:
        """End the session after the queued messages are sent."""
        ...


def fingerprint_of(link: Link) -> str:
    """Return the fingerprint of the peer's certificate; empty if the transport has none."""
    return str(getattr(link, "fingerprint", ""))


def remote_of(link: Link) -> str:
    """Return the IP address that a session comes from; empty if the transport has none.

    >>> class Session:
    ...     remote = "ipv6:%5B::ffff:10.0.0.7%5D:50312"
    >>> remote_of(Session())
    '10.0.0.7'
    """
    peer = unquote(str(getattr(link, "remote", "")))
    host = peer.partition(":")[2].rpartition(":")[0].strip("[]").partition("%")[0]
    return plain_ip(host)


def plain_ip(host: str) -> str:
    """Return an IP address in its usual form, IPv4 in IPv6 as IPv4; empty: it is none.

    >>> plain_ip("::ffff:10.0.0.7"), plain_ip("example.org")
    ('10.0.0.7', '')
    """
    try:
        found = ip_address(host)
    except ValueError:
        return ""
    return str(getattr(found, "ipv4_mapped", None) or found)


class SessionHandler(Protocol):
    """The coordinator's side of all sessions."""

    def opened(self, name: str, link: Link) -> None:
        """Handle a new session. A second session of the same name replaces the first."""
        ...

    def received(self, name: str, link: Link, message: bytes) -> None:
        """Handle a message of a peer."""
        ...

    def closed(self, name: str, link: Link) -> None:
        """Handle the end of a session."""
        ...

    def incident(self, name: str, kind: IncidentKind, text: str) -> None:
        """Take note of what a peer did wrong."""
        ...


class ClientHandler(Protocol):
    """The worker's side of its session."""

    def opened(self, link: Link) -> None:
        """Handle the start of a session: the coordinator has answered."""
        ...

    def received(self, message: bytes) -> None:
        """Handle a message of the coordinator."""
        ...

    def closed(self, reason: str) -> None:
        """Handle the end of a session. The transport reconnects by itself until `stop`."""
        ...


@dataclass(frozen=True)
class ServedModel:
    """A model that is sent to a peer: its header, and its bytes without a copy."""

    header: ModelHeader
    parts: tuple[memoryview, ...]  # safetensors header and tensor bytes, one after another
    bytes_per_s: float = 0.0  # rate at which the sender paces it; 0: no limit


class ModelSource(Protocol):
    """A worker's side that serves models."""

    def requested(self, name: str, request: PullRequest) -> "Future[ServedModel | PullRefused]":
        """Answer the request of a peer. The future is cancelled when the peer goes away."""
        ...

    def incident(self, name: str, kind: IncidentKind, text: str) -> None:
        """Take note of what a peer did wrong."""
        ...


class ModelSink(Protocol):
    """Where a pull puts the bytes that arrive. Only the sink allocates memory for them."""

    def begin(self, header: ModelHeader) -> None:
        """Check the header; raises PullBroken if it is not acceptable."""
        ...

    def write(self, chunk: memoryview) -> None:
        """Append bytes; raises PullBroken if there are more than announced."""
        ...


@dataclass(frozen=True)
class PullTimeouts:
    """How long a pull may make no progress."""

    connect_s: float = 5.0
    first_byte_s: float = 5.0  # after the connection; an exact pull may wait until its deadline
    progress_s: float = 3.0  # between two chunks


class Listener(Protocol):
    """Something that listens, or keeps a session open."""

    @property
    def address(self) -> str:
        """Where it can be reached: host:port, or what the transport uses instead."""
        ...

    def drop(self, name: str) -> None:
        """Close everything that is open with this peer, at once."""
        ...

    def stop(self) -> None:
        """Stop listening and close everything; returns when all threads have ended."""
        ...


class Transport(Protocol):
    """A party's connection to all other parties."""

    def serve_control(self, address: str, handler: SessionHandler) -> Listener:
        """Listen for sessions. Raises TransportError if the address cannot be used."""
        ...

    def open_session(self, address: str, handler: ClientHandler) -> Listener:
        """Keep a session to the coordinator open, and reconnect until stopped."""
        ...

    def serve_models(self, address: str, source: ModelSource) -> Listener:
        """Listen for pulls."""
        ...

    def pull(
        self,
        name: str,
        address: str,
        request: PullRequest,
        sink: ModelSink,
        timeouts: PullTimeouts,
        cancelled: threading.Event,
    ) -> None:
        """Pull once, blocking; returns when the sink has all bytes, or raises PullBroken."""
        ...

    def close(self) -> None:
        """Stop everything that was opened here."""
        ...
