"""What runs compile, one line for each function and kind of arguments.

A line is JSON: `[module, function, arguments]`. An argument is a name of numba's for a number,
`"int64[:, :]"` for an array, `"const int64[:]"` for one that must not be written, a list for a
tuple, `{"named": "module:Class", "of": [...]}` for a named one, and `{"records": [...], "dims": n}`
for an array of records. A kind that has no place here is simply not compiled ahead.
"""

import json
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("signatures.jsonl")
_CONST = "const "


def read() -> list[str]:
    """All lines, roughly in the order in which a run needs them."""
    return FILE.read_text(encoding="utf-8").splitlines()


def line_of(function: Any, kinds: Sequence[Any]) -> str:
    """The line of a compiled function and numba's types of its arguments."""
    python = function.py_func
    return json.dumps([python.__module__, python.__qualname__, [written(k) for k in kinds]])


def function_of(line: str) -> tuple[Any, tuple[Any, ...]]:
    """The compiled function that a line names, and the types of its arguments."""
    module, name, kinds = json.loads(line)
    return getattr(import_module(module), name), tuple(kind_of(k) for k in kinds)


def written(kind: Any) -> Any:
    """A type of numba's as a line has it."""
    from numba import types

    if isinstance(kind, types.BaseTuple):
        return _written_tuple(kind)
    if not isinstance(kind, types.Array):
        return str(kind)
    if kind.layout != "C":
        raise ValueError(f"{kind}: only contiguous arrays are compiled ahead")
    if isinstance(kind.dtype, types.Record):
        return _written_records(kind)
    return f"{'' if kind.mutable else _CONST}{kind.dtype}[{', '.join(':' * kind.ndim)}]"


def _written_tuple(kind: Any) -> Any:
    members = [written(k) for k in kind.types]
    named = getattr(kind, "instance_class", None)
    if named in (None, tuple):
        return members
    return {"named": f"{named.__module__}:{named.__qualname__}", "of": members}


def _written_records(kind: Any) -> Any:
    from numba.np.numpy_support import as_dtype

    fields = as_dtype(kind.dtype).descr
    return {"records": fields, "dims": kind.ndim, "const": not kind.mutable}


def kind_of(said: Any) -> Any:
    """The type that was written so."""
    from numba import types

    if isinstance(said, list):
        return _tuple([kind_of(k) for k in said])
    if isinstance(said, dict):
        return _named(said) if "named" in said else _records(said)
    name, _, rest = said.removeprefix(_CONST).partition("[")
    number = types.boolean if name == "bool" else getattr(types, name)
    if not rest:
        return number
    return types.Array(number, rest.count(":"), "C", readonly=said.startswith(_CONST))


def _named(said: dict[str, Any]) -> Any:
    module, _, name = said["named"].partition(":")
    return _tuple([kind_of(k) for k in said["of"]], getattr(import_module(module), name))


def _tuple(members: list[Any], *named: type) -> Any:
    from numba import types

    tuples: Any = types.BaseTuple  # untyped
    return tuples.from_types(members, *named)


def _records(said: dict[str, Any]) -> Any:
    import numpy as np
    from numba import types
    from numba.np.numpy_support import from_dtype

    record = from_dtype(np.dtype([tuple(field) for field in said["records"]]))
    return types.Array(record, said["dims"], "C", readonly=said["const"], aligned=False)
