"""Mutations of bytes, of JSON inside of bytes, of safetensors headers and of zip archives."""

import io
import json
import re
import struct
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Rng = np.random.Generator
Mutation = Callable[[Rng, bytes], bytes]

HUGE = 2**63 - 1
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 255, 2**31, 2**32, HUGE, HUGE + 1, -HUGE - 1, 3 * 10**8,
    10**30, 0.0, -0.0, 0.5, -1.5, 1e-320, 1e308, -1e308, "", "a", "nan", "NaN", "1e400", "../x",
    "/dev/zero", "a\x00b", "\ud800", "9" * 5000, [], {}, [[]], [0], [-1], [HUGE], [None], ["x"],
    [3 * 10**8], [[0, 1], [2]], {"a": 1}, {"kind": "X"}, {"array": "0"}, {"map": 3},
)  # fmt: skip
RAW = (
    b"NaN", b"Infinity", b"1e400", b"-1e400", b"[" * 5000, b'{"a":' * 3000, b"9" * 5000, b"\xff",
    b"\x00", b"\n", b"\r", b"\x1b[2J", b'"', b"\\", b"{", b"}", b"]", b",", b"-", b"\xe2\x80\xa8",
    b"1" + b"0" * 400, b"--", b"=", b"[[x]]", b"''", b"inf", b"nan",
)  # fmt: skip


def pick(rng: Rng, options: Sequence[Any]) -> Any:
    """Return one of the options."""
    return options[int(rng.integers(len(options)))]


def of_bytes(rng: Rng, data: bytes) -> bytes:
    """Return the bytes after one to four small changes, none of which knows the format."""
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(len(out) + 1))
        to = min(len(out), at + int(2 ** rng.uniform(0, 8)))
        kind = int(rng.integers(7))
        if kind == 0 and at < len(out):
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            del out[at:to]
        elif kind == 2:
            out[at:at] = out[at:to]
        elif kind == 3:
            out[at:at] = pick(rng, RAW)
        elif kind == 4:
            number = pick(rng, (0, 1, 255, 2**31 - 1, 2**32 - 1, HUGE, 2**64 - 1, len(out)))
            form = pick(rng, ("<Q", "<I", ">I", "<H"))
            mask = (1 << 8 * struct.calcsize(form)) - 1
            out[at : at + struct.calcsize(form)] = struct.pack(form, number & mask)
        elif kind == 5:
            del out[at:]
        else:
            digits = [m.span() for m in re.finditer(rb"\d+", bytes(out))]
            if digits:
                lo, hi = pick(rng, digits)
                out[lo:hi] = json.dumps(pick(rng, VALUES[3:16])).encode()
    return bytes(out)


def of_json(rng: Rng, data: bytes) -> bytes:
    """Return a JSON text, or lines of it, in which some values, keys or lines are others."""
    lines = data.split(b"\n")
    at = int(rng.integers(len(lines)))
    try:
        value = json.loads(lines[at])
    except (ValueError, RecursionError):
        return of_bytes(rng, data)
    for _ in range(int(rng.integers(1, 4))):
        value = _changed(rng, value)
    lines[at] = json.dumps(value).encode()
    return b"\n".join(lines)


def of_whole_json(rng: Rng, data: bytes) -> bytes:
    """Return a JSON text of many lines in which some values or keys are others."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return of_bytes(rng, data)
    for _ in range(int(rng.integers(1, 4))):
        value = _changed(rng, value)
    return json.dumps(value).encode()


def _changed(rng: Rng, value: Any) -> Any:
    """Return the value with one node of its tree replaced, removed or repeated."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.1:
        return pick(rng, VALUES)
    kind, copy = int(rng.integers(8)), value.copy()
    key = pick(rng, list(copy) if isinstance(copy, dict) else range(len(copy)))
    if kind == 0:
        del copy[key]
    elif kind == 1 and isinstance(copy, list):
        copy += copy[: int(rng.integers(1, 4))]
    elif kind == 1:
        copy[pick(rng, ("", "x", "round", "kind", "../x"))] = copy.pop(key)
    elif kind == 2:
        copy[key] = copy[pick(rng, list(copy) if isinstance(copy, dict) else range(len(copy)))]
    else:
        text = copy[key]
        try:  # JSON inside of a string, as in the header of a safetensors file
            inside = json.loads(text) if isinstance(text, str) and text[:1] in "{[" else None
        except (ValueError, RecursionError):
            inside = None
        copy[key] = _changed(rng, text) if inside is None else json.dumps(_changed(rng, inside))
    return copy


def of_safetensors(rng: Rng, data: bytes) -> bytes:
    """Return a safetensors file with another header, whose length is right; or other bytes."""
    length = int.from_bytes(data[:8], "little")
    if rng.random() < 0.2 or length > len(data) - 8:
        return of_bytes(rng, data)
    head = of_whole_json(rng, data[8 : 8 + length])
    body = data[8 + length :]
    if rng.random() < 0.1:
        body = of_bytes(rng, body)
    return len(head).to_bytes(8, "little") + head + body


def of_zip(rng: Rng, data: bytes) -> bytes:
    """Return a zip archive with other members, under right checksums; or other bytes."""
    if rng.random() < 0.2:
        return of_bytes(rng, data)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
    except Exception:  # the archive is damaged by an earlier mutation
        return of_bytes(rng, data)
    if not members:
        return of_bytes(rng, data)
    at = int(rng.integers(len(members)))
    name, content = members[at]
    kind = int(rng.integers(6))
    if kind == 0:
        del members[at]
    elif kind == 1:
        members[at] = (name.removesuffix(".npy"), content)
    elif kind == 2:
        members.append((name, pick(rng, members)[1]))
    elif kind == 3:
        members[at] = (name, pick(rng, members)[1])
    elif kind == 4:
        members[at] = (name, _other_array(rng))
    else:
        members[at] = (name, of_bytes(rng, content))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for one, content in members:
            archive.writestr(zipfile.ZipInfo(one), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _other_array(rng: Rng) -> bytes:
    """Return a small array of any shape and type as the content of a .npy file."""
    shape = pick(rng, ((), (0,), (1,), (3,), (2, 0), (4, 2), (4, 1), (2, 2, 2), (1, 1, 1, 1, 1)))
    kind = pick(rng, ("u1", "i2", "i8", "u8", "f4", "f8", "f2", "c8", "U3", "S2", "?", "M8[s]"))
    array = rng.integers(0, 5, shape).astype(kind)
    if array.dtype.kind in "iuf" and array.size:
        array.flat[0] = pick(rng, (0, 1, 127)) if array.dtype.kind == "u" else pick(rng, (-1, 99))
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()
