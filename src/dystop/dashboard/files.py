"""The small files of a run folder, as they are or not at all; no link leads out of the folder."""

import json
import os
import stat
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_BYTES = 64 * 1024 * 1024  # of a file that is read whole: the fleet of a million workers
Mark = tuple[int, int, int, int]


def open_file(path: Path) -> int | None:
    """Descriptor of a plain file; None where there is none, or a link in its place."""
    try:
        # Not to wait: somebody may have put a pipe there.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    return None


def is_file(path: Path) -> bool:
    """Whether this is a plain file, and not a link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (OSError, ValueError):
        return False


def mark(path: Path) -> Mark | None:
    """Changes whenever the file does; None where there is none."""
    try:
        found = os.lstat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def changed_s(path: Path) -> float | None:
    """When a file was last written, in seconds since 1970."""
    found = mark(path)
    return None if found is None else found[3] / 1e9


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object; None where the file is missing, damaged or something else."""
    data = _bytes(path)
    with suppress(ValueError, RecursionError):
        raw = json.loads(data) if data is not None else None
        return raw if isinstance(raw, dict) else None
    return None


def read_toml(path: Path) -> dict[str, Any] | None:
    """A TOML file; None where it is missing or damaged."""
    data = _bytes(path)
    with suppress(ValueError, RecursionError):
        return tomllib.loads(data.decode()) if data is not None else None
    return None


def _bytes(path: Path) -> bytes | None:
    fd = open_file(path)
    if fd is None:
        return None
    with suppress(OSError), os.fdopen(fd, "rb") as file:
        data = file.read(MOST_BYTES + 1)
        return data if len(data) <= MOST_BYTES else None
    return None
