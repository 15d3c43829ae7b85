"""Small files of a certificate authority: replaced whole, under a lock, private if needed."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dystop.errors import ConfigError, StorageError
from dystop.storage import FileLock, read_json, write_atomic

_NAME = re.compile(r"[a-z0-9_-]{1,64}")
PUBLIC = 0o644


def checked_name(name: str, what: str = "worker name") -> str:
    """Return the name if it may stand in a file name and in a certificate.

    >>> checked_name("w01")
    'w01'
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} {name[:80]!r} cannot be used: 1 to 64 of a-z, 0-9, _ and - are allowed; "
            "choose a name such as w01"
        )
    return name


def write_file(path: Path, content: bytes, mode: int = PUBLIC) -> None:
    """Replace a file in one step; raise `StorageError` for a symbolic link or a refused write."""
    if path.is_symlink():
        raise StorageError(f"{path} is a symbolic link: remove it; links are never written through")
    try:
        write_atomic(path, content, mode=mode)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, so that no other process or thread reads and replaces it now."""
    lock = FileLock(path.with_name(f"{path.name}.lock"), wait=True)
    try:
        lock.acquire()
    except OSError as error:
        raise StorageError(f"{path}: cannot be locked: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


def read_register(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if the file does not exist."""
    return read_json(path, StorageError) if path.exists() else {}


def write_register(path: Path, content: dict[str, Any], mode: int = PUBLIC) -> None:
    """Replace a file by a JSON object, in one step."""
    write_file(path, (json.dumps(content, indent=1, sort_keys=True) + "\n").encode(), mode)
