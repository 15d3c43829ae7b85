"""Small files that matter: whole or not at all, private if need be, never through a link."""

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dystop.errors import ConfigError, StorageError

_NAME = re.compile(r"[a-z0-9_-]{1,64}")
PRIVATE, PUBLIC = 0o600, 0o644


def checked_name(name: str, what: str = "worker name") -> str:
    """The name, if it is one that can stand in a file name and in a certificate.

    >>> checked_name("w01")
    'w01'
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} {name[:80]!r} cannot be used: 1 to 64 of a-z, 0-9, _ and - are allowed; "
            "choose a name such as w01"
        )
    return name


def write_atomically(path: Path, content: bytes, mode: int = PUBLIC) -> None:
    """Replace a file in one step; whoever reads sees the old content or the new one."""
    if path.is_symlink():
        raise StorageError(f"{path} is a symbolic link: remove it; links are never written through")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
    try:
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, flags, mode), "wb") as file:
            os.fchmod(file.fileno(), mode)  # whatever the umask says
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"cannot write {path}: {error.strerror}") from None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Nobody else changes this file meanwhile, in this process or another: read, then replace."""
    try:
        lock = open(path.with_name(f"{path.name}.lock"), "a")  # noqa: SIM115
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_json(path: Path) -> dict[str, Any]:
    """An object from a file; empty where the file is missing."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except (ValueError, OSError) as error:
        raise StorageError(f"{path} cannot be read as JSON: {error}; restore it") from None
    if not isinstance(found, dict):
        raise StorageError(f"{path} must hold one JSON object; restore it from a copy")
    return found


def write_json(path: Path, tree: dict[str, Any], mode: int = PUBLIC) -> None:
    """Replace a file by an object, in one step."""
    write_atomically(path, (json.dumps(tree, indent=1, sort_keys=True) + "\n").encode(), mode)
