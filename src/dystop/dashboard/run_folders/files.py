"""Small files of a run folder, and checks of the values in them, which nobody vouches for.

A file is read whole or not at all. Symbolic links are not followed.
"""

import json
import math
import os
import stat
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from dystop.foreign_files import open_regular, read_bounded

MAX_BYTES = 64 * 1024 * 1024  # enough for the fleet of a million workers
MAX_LENGTH = 200  # characters of a text from a file
FileStamp = tuple[int, int, int, int]


def open_file(path: Path) -> int | None:
    """Open a regular file and return its descriptor; None where it is missing or a link."""
    with suppress(OSError, ValueError), open_regular(path) as file:
        return os.dup(file.fileno())
    return None


def is_file(path: Path) -> bool:
    """Return whether the path is a regular file and not a link."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def file_stamp(path: Path) -> FileStamp | None:
    """Return a value that changes whenever the file does; None where it is missing."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def modified_s(path: Path) -> float | None:
    """Return the time of the last write in seconds since 1970."""
    found = file_stamp(path)
    return None if found is None else found[3] / 1e9


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None where the file is missing, damaged or no object."""
    data = read_bytes(path)
    with suppress(ValueError, RecursionError):
        raw = json.loads(data) if data is not None else None
        return raw if isinstance(raw, dict) else None
    return None


def read_toml(path: Path) -> dict[str, Any] | None:
    """Read a TOML file; None where it is missing or damaged."""
    data = read_bytes(path)
    with suppress(ValueError, RecursionError):
        return tomllib.loads(data.decode()) if data is not None else None
    return None


def report_file(folder: Path, name: str = "report.html") -> Path | None:
    """Return a file of the report of a run or study; None where it is missing or a link."""
    path = folder / "report" / name
    return path if not path.parent.is_symlink() and is_file(path) else None


def read_bytes(path: Path) -> bytes | None:
    """Read a whole file; None where it is missing, unreadable or too large."""
    with suppress(OSError, ValueError):
        return read_bounded(path, MAX_BYTES)
    return None


def as_number(value: object) -> float | None:
    """Return the value if it is a finite number, else None.

    >>> as_number(3), as_number(float("nan")), as_number("3"), as_number(True)
    (3.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        out = float(value)
    except OverflowError:
        return None
    return out if math.isfinite(out) else None


def as_count(value: object) -> int | None:
    """Return the value if it is a non-negative integer, else None.

    >>> as_count(3), as_count(-1), as_count(2.5), as_count("3")
    (3, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        return None
    return value


def as_text(value: object, default: str = "") -> str:
    """Return a text from a file, cut to `MAX_LENGTH`; `default` where there is none.

    >>> as_text("dystop"), as_text(None, "not recorded"), as_text(3)
    ('dystop', 'not recorded', '3')
    """
    if isinstance(value, (str, int, float)) and value != "":
        out = str(value)
        return out if len(out) <= MAX_LENGTH else out[: MAX_LENGTH - 1] + "…"
    return default
