"""Trees of dataclasses, lists, dicts and arrays as JSON plus tensors, without pickle.

`pack` turns a value into JSON. It passes every value to `keep`, which stores an array elsewhere and
returns the JSON that stands for it. `to_bytes` and `from_bytes` do both for NumPy arrays: one
safetensors blob with the JSON in its header.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save

_HEADER = 8  # bytes of the length of a safetensors header
UNREADABLE = (
    SafetensorError, LookupError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
"""What reading a tree raises, beside ValueError, if the bytes do not hold one."""


@dataclass(frozen=True)
class Stored:
    """A class as it is stored: some fields may have other names in files than in the code."""

    cls: type
    names: Mapping[str, str] = field(default_factory=dict)  # field -> name in files

    def values(self, value: Any) -> dict[str, Any]:
        """Return the fields of a value by their names in files."""
        every = (f.name for f in fields(value))
        return {self.names.get(name, name): getattr(value, name) for name in every}

    def make(self, values: dict[str, Any]) -> Any:
        """Return the value from fields by their names in files."""
        back = {stored: name for name, stored in self.names.items()}
        return self.cls(**{back.get(name, name): value for name, value in values.items()})


class Kinds:
    """The dataclasses that may occur in a tree, each under a tag that never changes.

    Tags and names of fields are data: files of earlier releases hold them. A class may be renamed,
    its tag may not. Reading a tree creates only these classes.

    >>> Kinds(Fraction=float).tag_of(1.0)
    'Fraction'
    """

    def __init__(self, **classes: type | Stored) -> None:
        """Register classes by tag."""
        self._stored = {
            tag: entry if isinstance(entry, Stored) else Stored(entry)
            for tag, entry in classes.items()
        }
        self._tags = {stored.cls: tag for tag, stored in self._stored.items()}

    def tag_of(self, value: Any) -> str | None:
        """Return the tag of a value's class; None if it has none."""
        return self._tags.get(type(value))

    def __getitem__(self, tag: str) -> Stored:
        """Return how values under this tag are stored."""
        return self._stored[tag]


def pack(value: Any, kinds: Kinds, keep: Callable[[Any], Any], where: str = "value") -> Any:
    """Turn a value into JSON.

    Args:
        value: What to store.
        kinds: Dataclasses that may occur.
        keep: Returns the JSON that stands for an array, or None for anything else.
        where: Path to the value, for error messages.
    """
    if (kept := keep(value)) is not None:
        return kept
    if (tag := kinds.tag_of(value)) is not None:
        inside = kinds[tag].values(value)
        packed = {k: pack(v, kinds, keep, f"{where}/{k}") for k, v in inside.items()}
        return {"kind": tag, "fields": packed}
    if isinstance(value, dict) and all(type(k) in (str, int) for k in value):
        return {"map": [[k, pack(v, kinds, keep, f"{where}/{k}")] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        tag = "tuple" if isinstance(value, tuple) else "list"
        return {tag: [pack(v, kinds, keep, f"{where}/{k}") for k, v in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if isinstance(value, np.generic):
        return {"value": value.item()}
    raise TypeError(f"{where}: {type(value).__name__} cannot be stored in a checkpoint")


def unpack(packed: Any, kinds: Kinds, take: Callable[[str, str], Any]) -> Any:
    """Return the value; `take` returns what `keep` has stored, by tag and name."""
    (tag, inside), *rest = packed.items()
    if tag == "kind":
        values = {k: unpack(v, kinds, take) for k, v in rest[0][1].items()}
        return kinds[inside].make(values)
    if tag == "map":
        return {k: unpack(v, kinds, take) for k, v in inside}
    if tag in ("list", "tuple"):
        values_ = (unpack(v, kinds, take) for v in inside)
        return list(values_) if tag == "list" else tuple(values_)
    return inside if tag == "value" else take(tag, inside)


def to_bytes(value: Any, kinds: Kinds) -> bytes:
    """Return a value with NumPy arrays as one safetensors blob.

    >>> from_bytes(to_bytes({"a": np.arange(3), "b": (1, None)}, Kinds()), Kinds())
    {'a': array([0, 1, 2]), 'b': (1, None)}
    """
    arrays: dict[str, NDArray[Any]] = {}

    def keep(value: Any) -> Any:
        if not isinstance(value, np.ndarray) or value.dtype == object:
            return None
        name = str(len(arrays))
        arrays[name] = np.array(value, order="C")
        return {"array": name}

    tree = json.dumps(pack(value, kinds, keep))
    blob: bytes = save(arrays, metadata={"tree": tree})
    return blob


def from_bytes(blob: bytes, kinds: Kinds) -> Any:
    """Return the value; raises ValueError if the blob does not come from `to_bytes`."""
    try:
        head = int.from_bytes(blob[:_HEADER], "little")
        header = json.loads(blob[_HEADER : _HEADER + head])
        tree = json.loads(header.pop("__metadata__")["tree"])
        data = memoryview(blob)[_HEADER + head :]
        return unpack(tree, kinds, lambda tag, name: _array(header[name], data))
    except UNREADABLE as error:
        raise ValueError(f"not a tree of values: {error!r}") from error


_TYPES = {
    "BOOL": np.bool_, "I64": np.int64, "I32": np.int32, "F64": np.float64, "F32": np.float32,
    "U8": np.uint8, "U64": np.uint64,
}  # fmt: skip


def _array(entry: Any, data: memoryview) -> NDArray[Any]:
    """Return one array with its own memory; every length is checked against the blob."""
    lo, hi = entry["data_offsets"]
    if not 0 <= lo <= hi <= len(data):
        raise ValueError("not a tree of values: an array exceeds the blob")
    return np.frombuffer(data[lo:hi], _TYPES[entry["dtype"]]).reshape(entry["shape"]).copy()
