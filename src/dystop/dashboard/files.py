"""Small files of a run folder, read whole or not at all; symbolic links are not followed."""

import json
import os
import stat
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_BYTES = 64 * 1024 * 1024  # enough for the fleet of a million workers
FileStamp = tuple[int, int, int, int]


def open_file(path: Path) -> int | None:
    """Open a regular file and return its descriptor; None where it is missing or a link."""
    try:
        # Non-blocking, because the path may be a named pipe.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
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
    fd = open_file(path)
    if fd is None:
        return None
    with suppress(OSError), os.fdopen(fd, "rb") as file:
        data = file.read(MAX_BYTES + 1)
        return data if len(data) <= MAX_BYTES else None
    return None
