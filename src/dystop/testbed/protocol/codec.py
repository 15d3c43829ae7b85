"""Messages as bounded JSON.

A message is one object whose first key is its type: `{"type":"heartbeat","seq":7,...}`. The types
are a fixed table; a name on the wire selects nothing else. All keys are validated strictly: no
unknown key, no key twice, no number out of its bounds, no NaN, no string for a number (an integer
may stand for a float). `encode` refuses what `decode` would refuse.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, overload

import numpy as np
from pydantic import ConfigDict, TypeAdapter, ValidationError

from dystop.errors import DystopError
from dystop.testbed.protocol.messages import ToCoordinator, ToWorker
from dystop.testbed.protocol.pulls import ModelHeader, PullRefused, PullRequest

Peerwise: TypeAlias = PullRequest | ModelHeader | PullRefused
AnyMessage: TypeAlias = ToCoordinator | ToWorker | Peerwise
Side = Literal["coordinator", "worker", "peer"]
Code = Literal["size", "depth", "type", "malformed", "invalid"]

MAX_MESSAGE_BYTES = 2 * 2**20
MAX_HEADER_BYTES = 64 * 2**10  # of a pull request, its refusal or the header of a model
MAX_DEPTH = 16
MAX_OBJECTS = 1 << 15  # these two limit the complaints that a message can cause
MAX_ITEMS = 1 << 17
MAX_TEXT = 200

_HEAD = re.compile(rb'\s*\{\s*"type"\s*:\s*"([a-z_]{1,32})"\s*(,|(?=\}))')
# An open string ends with the message, so that no byte is looked at twice.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, ser_json_inf_nan="constants")


class BadMessage(DystopError):
    """A message that cannot be decoded. Its text is safe to log and to send back."""

    def __init__(self, code: Code, text: str) -> None:
        """`text` may hold text of the peer: it is escaped and cut here."""
        self.code: Code = code
        self.text = shown(text)
        super().__init__(f"{code}: {self.text}")


def shown(text: str, limit: int = MAX_TEXT) -> str:
    r"""Text of a stranger, safe for logs and messages: printable ASCII, cut at `limit`.

    >>> shown("a\nb\x1b[2J")
    'a\\nb\\x1b[2J'
    """
    short = text[: limit + 1].encode("unicode_escape", "backslashreplace").decode("ascii")
    return short if len(short) <= limit else short[: limit - 3] + "..."


class _Kind(NamedTuple):
    """How one type of message is written and read."""

    head: bytes
    dump: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


def _word(message: type) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", message.__name__).lower()


def _kind(message: type) -> _Kind:
    hint: Any = message | None  # a plain dataclass would not take the configuration
    adapter: TypeAdapter[Any] = TypeAdapter(hint, config=_STRICT)
    head = b'{"type":"%s"' % _word(message).encode()
    return _Kind(head, adapter.dump_json, adapter.validate_json)


_SIDES: dict[Side, tuple[type, ...]] = {
    "coordinator": get_args(ToCoordinator),
    "worker": get_args(ToWorker),
    "peer": get_args(Peerwise),
}
_KINDS = {message: _kind(message) for side in _SIDES.values() for message in side}
_READ = {
    side: {_word(message).encode(): _KINDS[message].read for message in known}
    for side, known in _SIDES.items()
}


def encode(message: AnyMessage) -> bytes:
    """Return a message as bytes. Raises BadMessage if the other end would refuse it.

    >>> from dystop.testbed.protocol.messages import Cancel
    >>> encode(Cancel(epoch=1, round=7))
    b'{"type":"cancel","epoch":1,"round":7}'
    """
    kind = _KINDS[type(message)]
    body = kind.dump(message)
    data = kind.head + (b"}" if body == b"{}" else b"," + body[1:])
    check_bounds(data, MAX_HEADER_BYTES if isinstance(message, Peerwise) else MAX_MESSAGE_BYTES)
    _validated(kind.read, body)
    return data


@overload
def decode(data: bytes, side: Literal["coordinator"]) -> ToCoordinator: ...
@overload
def decode(data: bytes, side: Literal["worker"]) -> ToWorker: ...
@overload
def decode(data: bytes, side: Literal["peer"]) -> Peerwise: ...


def decode(data: bytes, side: Side) -> AnyMessage:
    """Read a message that arrived at this side. Raises BadMessage, and nothing else.

    >>> decode(b'{"type":"cancel","epoch":1,"round":7}', "worker")
    Cancel(epoch=1, round=7)
    """
    check_bounds(data, MAX_HEADER_BYTES if side == "peer" else MAX_MESSAGE_BYTES)
    head = _HEAD.match(data)
    if head is None:
        raise BadMessage("malformed", 'a message is a JSON object that begins with {"type": ...}')
    read = _READ[side].get(head[1])
    if read is None:
        raise BadMessage("type", f"{head[1].decode()!r} is not a message that a {side} takes")
    message: AnyMessage = _validated(read, b"{" + data[head.end() :])
    if side != "worker":  # workers trust their coordinator, whose rosters are long
        _refuse_duplicate_keys(data)
    return message


def kind_of(data: bytes) -> str:
    """Return the type that a message claims, without reading the rest; empty: none.

    >>> kind_of(b'{"type":"cancel","epoch":1,"round":7}'), kind_of(b"garbage")
    ('cancel', '')
    """
    head = _HEAD.match(data)
    return "" if head is None else head[1].decode()


def _refuse_duplicate_keys(data: bytes) -> None:
    """Refuse an object that names a key twice: readers differ in which one they take."""
    try:
        json.loads(data, object_pairs_hook=_count_keys)
    except (ValueError, RecursionError) as error:
        raise BadMessage("malformed", str(error)) from None


def _count_keys(pairs: list[tuple[str, Any]]) -> None:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice[:64]} is given twice")


def _validated(read: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return read(body)
    except ValidationError as error:
        raise BadMessage(*_reason(error)) from None


def _reason(error: ValidationError) -> tuple[Code, str]:
    """Return the first error; if there are more than 100, only their number."""
    if error.error_count() > 100:
        return "invalid", f"{error.error_count()} mistakes"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    code: Code = "malformed" if first["type"] == "json_invalid" else "invalid"
    where = ".".join(str(part)[:64] for part in first["loc"])
    return code, f"{where}: {first['msg']}" if where else first["msg"]


def check_bounds(data: bytes, most: int) -> None:
    """Refuse data that is too long, too deep or has too many items, before parsing it."""
    if len(data) > most:
        raise BadMessage("size", f"{len(data)} bytes; at most {most} are taken")
    opened = data.count(b"{") + data.count(b"[")
    if opened <= MAX_DEPTH and data.count(b",") <= MAX_ITEMS:
        return
    bare = _STRING.sub(b"", data)
    if bare.count(b"{") > MAX_OBJECTS or bare.count(b",") > MAX_ITEMS:
        raise BadMessage("size", f"more than {MAX_OBJECTS} objects or {MAX_ITEMS} items")
    if _depth(bare) > MAX_DEPTH:
        raise BadMessage("depth", f"nested deeper than {MAX_DEPTH}")


def _depth(bare: bytes) -> int:
    """Deepest nesting of brackets in JSON without its strings."""
    text = np.frombuffer(bare, np.uint8) | 0x20  # [ and { differ by this bit, as do ] and }
    steps = (text == ord("{")).astype(np.int8) - (text == ord("}")).astype(np.int8)
    return int(np.cumsum(steps, dtype=np.int32).max(initial=0))
