"""Messages of a codec on the wire: their layout, their checks, and the receiver of a public copy.

A worker that pulls says which public copy of its peer it holds, by the SHA-256 of the copy's
numbers (`PullRequest.holds`). The peer answers with the messages since that copy or, if it does not
know the copy or the messages were longer, with a whole copy. The header says which copy the bytes
lead to (`ModelHeader.copy`), and the receiver compares. So nobody has to know what became of an
earlier transfer, or of an earlier process (ADR 0059).

Several messages are one safetensors file: each of their parts is a tensor with a row per message.
"""

import hashlib
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from dystop.exchange.codecs import Codec, Message, Part
from dystop.format import FORMAT
from dystop.testbed.protocol.payload import (
    FLOAT,
    BadModel,
    Bytes,
    PayloadReceiver,
    Schema,
    Vector,
)
from dystop.testbed.protocol.pulls import ModelHeader, PullRequest

_TYPES: dict[str, np.dtype[Any]] = {
    "F32": FLOAT,
    "U32": np.dtype("<u4"),
    "I64": np.dtype("<i8"),
    "U8": np.dtype("u1"),
}
_LENGTH = struct.Struct("<Q")


@lru_cache(maxsize=64)
def messages_header(codec: Codec, count: int) -> bytes:
    """Return what precedes some messages: the only header that is accepted."""
    head: dict[str, object] = {"__metadata__": {"kind": "messages", "format": str(FORMAT)}}
    at = 0
    for part in codec.parts:
        end = at + count * part.count * _TYPES[part.type].itemsize
        head[part.name] = {
            "dtype": part.type, "shape": [count, part.count], "data_offsets": [at, end],
        }  # fmt: skip
        at = end
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH.size)
    return _LENGTH.pack(len(text)) + text


def messages_size(codec: Codec, count: int) -> int:
    """Return the bytes of some messages with their header."""
    each = sum(part.count * _TYPES[part.type].itemsize for part in codec.parts)
    return len(messages_header(codec, count)) + count * each


def pack_messages(codec: Codec, messages: Sequence[Message]) -> tuple[memoryview, ...]:
    """Return header and messages, to be sent one after another."""
    head = memoryview(messages_header(codec, len(messages)))
    columns = [_column(part, messages) for part in codec.parts]
    return head, *(column.data.cast("B") for column in columns if column.size)


def _column(part: Part, messages: Sequence[Message]) -> NDArray[Any]:
    """Return one part of all messages, a row for each."""
    rows = np.empty((len(messages), part.count), _TYPES[part.type])
    for row, message in zip(rows, messages, strict=True):
        row[:] = message[part.name]
    return rows


def unpack_messages(codec: Codec, payload: Bytes, count: int) -> list[Message]:
    """Return the messages of a payload. Raises BadModel if one of them cannot be a message."""
    head = messages_header(codec, count)
    if len(payload) != (due := messages_size(codec, count)):
        raise BadModel("size", f"{len(payload)} bytes instead of {due}")
    at, columns = len(head), dict[str, NDArray[Any]]()
    for part in codec.parts:
        column = np.frombuffer(payload, _TYPES[part.type], count * part.count, at)
        columns[part.name] = column.reshape(count, part.count)
        at += column.nbytes
        if part.type == "F32" and not np.isfinite(column).all():
            raise BadModel("not_finite", "a number of a message is not finite")
    return [{name: column[k] for name, column in columns.items()} for k in range(count)]


def digest_of(copy: Vector) -> str:
    """Return the name of a public copy: the SHA-256 of its numbers."""
    return hashlib.sha256(np.ascontiguousarray(copy, FLOAT).data).hexdigest()


@dataclass(frozen=True)
class HeldCopy:
    """A public copy of a peer, under the digest of its numbers."""

    digest: str = ""  # empty: none
    vector: Vector | None = None


NO_COPY = HeldCopy()


class CopyStore(Protocol):
    """Where a receiver finds the copy that it holds of a peer, and keeps a newer one."""

    def of(self, node: int) -> HeldCopy:
        """Return the copy of a peer."""
        ...

    def keep(self, node: int, copy: HeldCopy | None) -> None:
        """Replace the copy of a peer; None: forget it."""
        ...


class NothingHeld:
    """The copies of a receiver that holds none; a peer sends it whole copies."""

    def of(self, node: int) -> HeldCopy:
        """Return no copy."""
        return NO_COPY

    def keep(self, node: int, copy: HeldCopy | None) -> None:
        """Forget the copy."""


class CodedReceiver(PayloadReceiver):
    """The buffer of a pull whose answer a codec has made: a public copy, or an update.

    Sizes follow from the schema and the number of messages, which is bounded. The held copy is
    replaced only after all checks.
    """

    def __init__(self, schema: Schema, node: int, copies: CopyStore, *, delta: bool) -> None:
        """Prepare to receive from a node.

        Args:
            schema: The schema, with a codec of differences.
            node: The peer; part of the address of random places.
            copies: The copies that this worker holds.
            delta: Whether an update was requested.
        """
        super().__init__(schema)
        if schema.codec is None:
            raise ValueError("the schema has no codec of differences")
        self._codec = schema.codec
        self._node, self._copies, self._delta = node, copies, delta
        self._held = NO_COPY if delta else copies.of(node)

    def request(self, first: PullRequest) -> PullRequest:
        """Return the request, with the digest of the held copy; masks apply after decoding."""
        return replace(super().request(first), mask=None, holds=self._held.digest)

    def begin(self, header: ModelHeader) -> None:
        """Check the announced header before any memory is allocated. Raises BadModel."""
        self.announced = header
        self._check_form(header)
        count, size = header.messages, self._size
        if count is None:
            self._size, self._head = self._schema.size(), self._schema.header_bytes()
        else:
            self._size = messages_size(self._codec, count)
            self._head = messages_header(self._codec, count)
        if self._size != size:
            self._buffer = None
        super().begin(header)

    def _check_form(self, header: ModelHeader) -> None:
        """Refuse an answer of another form than the requested one."""
        count, most = header.messages, self._codec.most_messages
        if self._delta:
            if header.copy is not None or count != 1:
                raise BadModel("malformed", "an update is one message")
        elif header.copy is None or len(header.copy) != 64:
            raise BadModel("malformed", "the digest of the public copy is missing")
        elif count is not None and (count > most or self._held.vector is None):
            raise BadModel("malformed", f"{count} messages; at most {most} are taken")

    def _unpacked(self, header: ModelHeader, payload: Bytes) -> Vector:
        try:
            return self._decoded(header, payload)
        except BadModel:
            self.received = 0
            if not self._delta:
                self._copies.keep(self._node, None)  # the next pull begins at the initial model
            raise

    def _decoded(self, header: ModelHeader, payload: Bytes) -> Vector:
        if header.messages is None:
            vector = self._schema.unpack(payload)
        else:
            vector = self._restored(payload, header.messages)
            if self._delta:
                return vector
        if digest_of(vector) != header.copy:
            raise BadModel("digest", "the numbers are not those of the announced copy")
        if not np.isfinite(vector).all():
            raise BadModel("not_finite", "the public copy is not finite")
        self._copies.keep(self._node, HeldCopy(header.copy, vector))
        return vector

    def _restored(self, payload: Bytes, count: int) -> Vector:
        """Return the update of a message, or the held copy after some messages."""
        messages = unpack_messages(self._codec, payload, count)
        try:
            if self._delta:
                return self._codec.restored(messages[0], self._node)
            assert self._held.vector is not None  # `_check_form`
            return self._codec.added(self._held.vector, messages, self._node)
        except ValueError as error:
            raise BadModel("malformed", str(error)) from None
