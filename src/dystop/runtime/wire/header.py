"""The header of a payload: written from a schema, compared, and explained where it differs."""

import json
import math
import struct
from functools import lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dystop.runtime.wire.codec import BadMessage, check_bounds, shown
from dystop.runtime.wire.interface import MAX_HEADER_BYTES, PullBroken
from dystop.runtime.wire.messages import PROTOCOL, RejectCode

Kind = Literal["model", "delta", "masked"]
Shape = tuple[int, ...]
Bytes = bytes | bytearray | memoryview
Vector = NDArray[np.float32]

FLOAT = np.dtype("<f4")
_LENGTH = struct.Struct("<Q")


class BadModel(PullBroken):
    """A payload that is not the model that was asked for. The text is safe to log."""

    def __init__(self, code: RejectCode, text: str = "") -> None:
        """`text` may hold words of the peer: they are escaped and cut here."""
        super().__init__(code)
        self.text = shown(text)
        self.args = (f"{code}: {self.text}",)


@lru_cache(maxsize=64)
def header_bytes(tensors: tuple[tuple[str, Shape], ...], kind: Kind, kept: int | None) -> bytes:
    """Length and JSON header of a safetensors file, padded so that the floats are aligned."""
    if kind == "masked" and kept is None:
        raise ValueError("a masked payload needs the number of coordinates that it keeps")
    if kind == "model" and kept is not None:
        raise ValueError("a payload that keeps a part of a model is a masked one")
    head: dict[str, Any] = {"__metadata__": {"kind": kind, "protocol": str(PROTOCOL)}}
    at = 0
    for name, shape in tensors if kept is None else (("kept", (kept,)),):
        end = at + FLOAT.itemsize * math.prod(shape)
        head[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH.size)
    return _LENGTH.pack(len(text)) + text


def difference(payload: Bytes, due: bytes) -> BadModel:
    """Name the first difference of a wrong header, for the log; a bounded look and no more."""
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
        return BadModel("malformed", f"the header is not JSON of ours: {error}")
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
    return "the order or the spelling differs" if extra is None else f"tensor {extra} is too many"
