"""Trees of dataclasses, lists, dicts and arrays as JSON plus tensors, without pickle.

`pack` turns a value into JSON. It passes every value to `keep`, which stores an array elsewhere and
returns the JSON that stands for it. `to_bytes` and `from_bytes` do both for NumPy arrays: one
safetensors blob with the JSON in its header.
"""

import json
from collections.abc import Callable
from dataclasses import fields
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


class Kinds(dict[str, type]):
    """The dataclasses that may occur in a tree, by their names. Reading creates no other class.

    >>> Kinds(str)["str"]
    <class 'str'>
    """

    def __init__(self, *classes: type) -> None:
        super().__init__((cls.__name__, cls) for cls in classes)


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
    name = type(value).__name__
    is_kind = kinds.get(name) is type(value)
    if is_kind:
        inside = ((f.name, getattr(value, f.name)) for f in fields(value))
        packed = {k: pack(v, kinds, keep, f"{where}/{k}") for k, v in inside}
        return {"kind": name, "fields": packed}
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
        return kinds[inside](**values)
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
