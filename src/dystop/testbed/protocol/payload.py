"""Models on the wire: a safetensors file whose header a schema determines, and its receiver.

Numbers are float32 or, under the codec int8, whole numbers of one byte with a scale for each
tensor. The other codecs send messages (`protocol.coded`). All parties of a run have the same
setting, and the hash of the schema tells.
"""

import hashlib
import json
import math
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dystop.control.aggregation import kept_coordinates
from dystop.errors import ConfigError
from dystop.exchange.codecs import LEVELS, Codec, dequantise, quantise
from dystop.format import FORMAT
from dystop.rng import uniform
from dystop.sparse import Bools
from dystop.testbed.protocol.codec import MAX_HEADER_BYTES, BadMessage, check_bounds, shown
from dystop.testbed.protocol.messages import Mask, RejectCode
from dystop.testbed.protocol.pulls import ModelHeader, PullBroken, PullRequest

Kind = Literal["model", "delta", "masked"]
Encoding = Literal["F32", "I8"]
Shape = tuple[int, ...]
Bytes = bytes | bytearray | memoryview
Vector = NDArray[np.float32]

FLOAT = np.dtype("<f4")
SCALES = "__scales__"  # tensor of an 8-bit payload: what the whole numbers of each tensor count
MAX_TENSORS = 10_000
MAX_NAME_BYTES = 256
_LENGTH = struct.Struct("<Q")


class BadModel(PullBroken):
    """A payload that is not the requested model. The text is safe to log."""

    def __init__(self, code: RejectCode, text: str = "") -> None:
        """`text` may hold text of the peer: it is escaped and cut here."""
        super().__init__(code)
        self.text = shown(text)
        self.args = (f"{code}: {self.text}",)


@lru_cache(maxsize=64)
def header_bytes(
    tensors: tuple[tuple[str, Shape], ...], kind: Kind, kept: int | None, encoding: Encoding = "F32"
) -> bytes:
    """Return length and JSON header of a safetensors file, padded to align the floats."""
    if kind == "masked" and kept is None:
        raise ValueError("a masked payload needs the number of coordinates that it keeps")
    if kind == "model" and kept is not None:
        raise ValueError("a payload that keeps a part of a model is a masked one")
    head: dict[str, Any] = {"__metadata__": {"kind": kind, "format": str(FORMAT)}}
    at, width = 0, FLOAT.itemsize if encoding == "F32" else 1
    due = tensors if kept is None else (("kept", (kept,)),)
    if encoding == "I8":  # scales come first, so that they are aligned
        at = FLOAT.itemsize * len(sizes_of(due))
        scales = {"dtype": "F32", "shape": [len(sizes_of(due))], "data_offsets": [0, at]}
        head[SCALES] = scales
    for name, shape in due:
        end = at + width * math.prod(shape)
        head[name] = {"dtype": encoding, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH.size)
    return _LENGTH.pack(len(text)) + text


def sizes_of(tensors: tuple[tuple[str, Shape], ...]) -> tuple[int, ...]:
    """Return the numbers in each tensor that is not empty."""
    return tuple(size for _, shape in tensors if (size := math.prod(shape)))


def difference(payload: Bytes, due: bytes) -> BadModel:
    """Return an error that names the first difference of a wrong header; reads a bounded part."""
    head = bytes(payload[: _LENGTH.size + MAX_HEADER_BYTES])
    if len(head) < _LENGTH.size:
        return BadModel("malformed", "the header is cut off")
    length, text = _LENGTH.unpack_from(head)[0], head[_LENGTH.size :]
    if length > len(text):
        return BadModel("malformed", f"the header says that it has {length} bytes")
    try:
        check_bounds(text[:length], MAX_HEADER_BYTES)
        given = json.loads(text[:length])
    except (ValueError, RecursionError, BadMessage) as error:
        return BadModel("malformed", f"the header is not valid JSON: {error}")
    if not isinstance(given, dict):
        return BadModel("malformed", "the header is not an object")
    return BadModel("schema", _first_difference(given, json.loads(due[_LENGTH.size :])))


def _first_difference(given: dict[str, Any], due: dict[str, Any]) -> str:
    for name in due:
        if name not in given:
            return f"tensor {name} is missing"
        if given[name] != due[name]:
            return f"{name} is {str(given[name])[:80]} instead of {due[name]}"
    extra = next((name for name in given if name not in due), None)
    return (
        "the order or the formatting differs" if extra is None else f"tensor {extra} is unexpected"
    )


@dataclass(frozen=True)
class Schema:
    """Names and shapes of a model's float tensors, in the order of the flat vector."""

    tensors: tuple[tuple[str, Shape], ...]
    encoding: Encoding = "F32"  # of the numbers on the wire
    codec: Codec | None = None  # of differences; None: workers exchange models

    def __post_init__(self) -> None:
        names = {name for name, _ in self.tensors}
        long = max((len(name.encode()) for name in names), default=0) > MAX_NAME_BYTES
        if len(names) < len(self.tensors) or len(names) > MAX_TENSORS or long:
            raise ConfigError(
                f"model: the testbed sends at most {MAX_TENSORS} tensors with distinct names of "
                f"at most {MAX_NAME_BYTES} bytes; use fewer modules or shorter names"
            )
        for reserved in {"__metadata__", SCALES} & names:
            raise ConfigError(f"model: no tensor can be called {reserved!r}; rename it")

    @cached_property
    def width(self) -> int:
        """Floats of one model, W."""
        return sum(math.prod(shape) for _, shape in self.tensors)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of format, names, types and shapes; equal where models can be exchanged."""
        facts: list[Any] = [FORMAT, [[name, self.encoding, shape] for name, shape in self.tensors]]
        if self.codec is not None:
            facts += [repr(self.codec)]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    @cached_property
    def variances(self) -> tuple[slice, ...]:
        """Return where the running variances of batch norm are in the vector."""
        ends = np.cumsum([math.prod(shape) for _, shape in self.tensors]).tolist()
        begins = [0, *ends]
        return tuple(
            slice(lo, hi)
            for (name, _), lo, hi in zip(self.tensors, begins, ends, strict=False)
            if name.endswith("running_var")
        )

    def header_bytes(self, kind: Kind = "model", kept: int | None = None) -> bytes:
        """Return all that precedes the vector: the only header that is accepted.

        Args:
            kind: what the payload is.
            kept: numbers in a masked payload; None: the whole vector.
        """
        return header_bytes(self.tensors, kind, kept, self.encoding)

    def sizes(self, kept: int | None = None) -> tuple[int, ...]:
        """Return the numbers in each tensor of a payload; a masked one has one tensor."""
        if kept is not None:
            return (kept,) if kept else ()
        return sizes_of(self.tensors)

    def size(self, kind: Kind = "model", kept: int | None = None) -> int:
        """Return the bytes of a payload."""
        numbers, head = self.width if kept is None else kept, len(self.header_bytes(kind, kept))
        if self.encoding == "I8":
            return head + FLOAT.itemsize * len(self.sizes(kept)) + numbers
        return head + FLOAT.itemsize * numbers

    def pack(
        self, vector: Vector, kind: Kind = "model", kept: int | None = None
    ) -> tuple[memoryview, ...]:
        """Return header and vector, to be sent one after another; floats are not copied.

        A masked vector holds the kept coordinates only. The rounding to 8 bits follows from the
        vector, so that a model has one payload however often it is packed.
        """
        floats = self.width if kept is None else kept
        if vector.dtype != FLOAT or vector.shape != (floats,) or not vector.flags.c_contiguous:
            raise ValueError(f"cannot send {vector.dtype} {vector.shape}; F32 ({floats},) is due")
        head = memoryview(self.header_bytes(kind, kept))
        body = vector.data.cast("B") if floats else memoryview(b"")
        if self.encoding == "F32" or not floats:
            return head, body
        draws = uniform(zlib.crc32(body), "int8", np.arange(floats))
        codes, scales = quantise(vector, self.sizes(kept), draws)
        return head, scales.data.cast("B"), codes.data.cast("B")

    def unpack(
        self,
        payload: Bytes,
        kind: Kind = "model",
        kept: int | None = None,
        *,
        sha256: str | None = None,
    ) -> Vector:
        """Return the vector of a payload; floats are not copied. Raises BadModel.

        Checks size, header and, if given, digest, and the range of 8-bit numbers and their scales;
        `worker.guard` checks the numbers.
        """
        due = self.size(kind, kept)
        if len(payload) != due:
            raise BadModel("size", f"{len(payload)} bytes instead of {due}")
        self.check_header(payload, kind, kept)
        if sha256 is not None and digest([payload]) != sha256:
            raise BadModel("digest", "the bytes are not those that were announced")
        head, sizes = len(self.header_bytes(kind, kept)), self.sizes(kept)
        if self.encoding == "F32" or not sizes:
            return np.frombuffer(payload, FLOAT, offset=head)
        scales = np.frombuffer(payload, FLOAT, len(sizes), head)
        codes = np.frombuffer(payload, np.int8, offset=head + scales.nbytes)
        if not (np.isfinite(scales) & (scales >= 0)).all() or codes.min() < -LEVELS:
            raise BadModel("malformed", "a scale or an 8-bit number is out of range")
        return dequantise(codes, scales, sizes)

    def check_header(self, payload: Bytes, kind: Kind = "model", kept: int | None = None) -> None:
        """Compare the start of a payload with the expected header. Raises BadModel."""
        due = self.header_bytes(kind, kept)
        if payload[: len(due)] != due:
            raise difference(payload, due)


def schema_of(layout: Any, codec: Codec | None = None) -> Schema:
    """Return what a model with the layout of a `training.flat.Layout` looks like on the wire."""
    slots = (*layout.trained, *layout.kept, *layout.carried)
    tensors = tuple((slot.name, tuple(slot.shape)) for slot in slots)
    if codec is None or codec.sends_differences:
        return Schema(tensors, codec=codec)
    return Schema(tensors, "I8")


def digest(parts: Iterable[Bytes]) -> str:
    """Return the SHA-256 of a payload that is given in parts, in hexadecimal.

    >>> digest([b"ab", b"c"]) == digest([b"abc"])
    True
    """
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part)
    return whole.hexdigest()


def wanted(schema: Schema, request: PullRequest) -> tuple[Kind, int | None]:
    """Return what a request asks for: kind of payload, number of kept coordinates (None: all)."""
    if request.mask is None:
        return ("delta" if request.delta else "model"), None
    kept = int(kept_of(request.mask, schema.width).sum())
    return ("delta" if request.delta else "masked"), kept


@lru_cache(maxsize=2)
def kept_of(mask: Mask, width: int) -> Bools:
    """Return the coordinates that a mask keeps, [W]; both ends compute it once per exchange."""
    kept = kept_coordinates(*mask, width)
    kept.flags.writeable = False
    return kept


class PayloadReceiver:
    """The buffer of a pull; its size follows from the schema.

    It survives broken connections: `version` and `received` say where to resume. Bytes are hashed
    as they arrive, and the header is compared as soon as it is complete.
    """

    def __init__(self, schema: Schema, kind: Kind = "model", kept: int | None = None) -> None:
        """`kind` and `kept` as `wanted` gives them for the request."""
        self._schema, self._kind, self._kept = schema, kind, kept
        self._size = schema.size(kind, kept)
        self._head = schema.header_bytes(kind, kept)
        self._buffer: memoryview | None = None
        self._hash = hashlib.sha256()
        self.announced: ModelHeader | None = None  # the last header, also a refused one
        self.header: ModelHeader | None = None
        self.received = 0
        self.total = 0  # bytes received over the network, also those that were dropped

    @property
    def version(self) -> int:
        """Publication to resume; 0: none yet."""
        return self.header.version if self.header is not None and self.received else 0

    @property
    def complete(self) -> bool:
        """Whether all bytes have arrived."""
        return self.header is not None and self.received == self._size

    def request(self, first: PullRequest) -> PullRequest:
        """Return the request that fetches what has not arrived of the first request."""
        return replace(first, version=self.version or first.version, offset=self.received)

    def begin(self, header: ModelHeader) -> None:
        """Check the announced header before any memory is allocated. Raises BadModel."""
        self.announced = header
        if header.schema != self._schema.hash:
            raise BadModel("schema", f"schema {header.schema} instead of {self._schema.hash}")
        if header.size != self._size:
            raise BadModel("size", f"{header.size} bytes announced instead of {self._size}")
        if len(header.sha256) != 64 or header.offset not in (0, self.received):
            raise BadModel("malformed", f"offset {header.offset} or digest cannot be used")
        if header.offset and not self._continues(header):
            raise BadModel("malformed", "this is not the model to resume")
        if header.offset == 0:
            self.received, self._hash = 0, hashlib.sha256()
        if self._buffer is None:
            self._buffer = np.empty(self._size, np.uint8).data
        self.header = header

    def _continues(self, header: ModelHeader) -> bool:
        known = self.header
        return known is not None and (known.version, known.sha256) == (
            header.version,
            header.sha256,
        )

    def write(self, chunk: memoryview) -> None:
        """Append bytes. Raises BadModel if there are too many or the header is wrong."""
        if self._buffer is None:
            raise BadModel("malformed", "bytes arrived before the header")
        before, after = self.received, self.received + len(chunk)
        self.total += len(chunk)
        if after > self._size:
            raise BadModel("size", f"more than the {self._size} bytes announced")
        self._buffer[before:after] = chunk
        self._hash.update(chunk)
        self.received = after
        if before < len(self._head) <= after and self._filled[: len(self._head)] != self._head:
            wrong = difference(self._filled, self._head)
            self.received = 0  # the next pull starts over
            raise wrong

    @property
    def _filled(self) -> memoryview:
        return memoryview(b"") if self._buffer is None else self._buffer[: self.received]

    def finish(self) -> Vector:
        """Return the vector, a view of the buffer. Raises BadModel if bytes lack or differ."""
        if self.header is None or not self.complete:
            raise BadModel("size", f"{self.received} of {self._size} bytes arrived")
        if self._hash.hexdigest() != self.header.sha256:
            self.received = 0
            raise BadModel("digest", "the bytes are not those that were announced")
        vector = self._unpacked(self.header, self._filled)
        self._buffer = None  # it belongs to the vector now
        return vector

    def _unpacked(self, header: ModelHeader, payload: Bytes) -> Vector:
        """Return the vector of a payload whose digest is right."""
        return self._schema.unpack(payload, self._kind, self._kept)
