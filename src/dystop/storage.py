"""Durable files: the one atomic write, the append log, the file lock, and readers.

Every file that must survive a crash is written here. A reader of such a file sees the old content
or the new content, never a part. The functions let `OSError` through unless their docstring says
otherwise; the caller knows which command the user should run next.

Files that anybody may have written are read by `dystop.foreign_files`.
"""

import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from dystop.errors import DystopError, RunFolderError
from dystop.foreign_files import (
    JSON_BYTES,
    NO_WAIT,
    O_NOFOLLOW,
    check_bounds,
    check_regular,
    open_regular,
    read_bounded,
)
from dystop.strict_json import parse_json

PRIVATE = 0o600
"""Mode of a file that only its owner may read, such as a private key."""

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers that mean: free some space, then try again."""

NO_PERMISSION = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
"""Error numbers that mean: choose another folder, or make this one writable."""

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_NOFOLLOW
_PIECE_BYTES = 1 << 20  # a file is read in pieces of this size
_PROBE_S = 0.05  # longer than `is_unlocked` holds its shared lock


def write_atomic(
    path: Path,
    content: bytes | Callable[[Path], object],
    *,
    mode: int | None = None,
    durable: bool = True,
    previous: Path | None = None,
    on_step: Callable[[str], object] = lambda step: None,
) -> None:
    """Replace a whole file in one step.

    The content goes to a temporary file in the same folder, which is then renamed. If anything
    fails, the temporary file is removed and the old file stays. A symbolic link at `path` is
    replaced, never followed.

    Args:
        path: The file to write; its folder must exist.
        content: The bytes, or a function that writes them into the (empty) file it is given.
        mode: Permissions of the new file; by default those that the umask allows.
        durable: Wait until file and folder are on the disk, so that a power cut loses neither.
        previous: Rename the old file to this path instead of dropping it.
        on_step: Called with `before_fsync`, `after_fsync`, `before_rename` and `after_rename`;
            tests use it to crash there.
    """
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)  # left by a process with the same number
        handle = os.open(temporary, _CREATE, 0o666 if mode is None else mode)
        with os.fdopen(handle, "wb") as file:
            if isinstance(content, bytes):
                file.write(content)
        if not isinstance(content, bytes):
            content(temporary)
        if mode is not None:
            temporary.chmod(mode)  # whatever the umask is
        on_step("before_fsync")
        if durable:
            fsync(temporary)  # by its name: safetensors replaces the file that it is given
        on_step("after_fsync")
        if previous is not None and path.exists():
            os.replace(path, previous)
        on_step("before_rename")
        os.replace(temporary, path)
        if durable:
            fsync(path.parent)
        on_step("after_rename")
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # the name that the caller knows
        raise


def open_private(path: str, flags: int) -> int:
    """Open a file that only its owner may read, and no link; an `opener` for `open`."""
    handle = os.open(path, flags | O_NOFOLLOW | NO_WAIT, PRIVATE)
    with suppress(OSError):  # an older file may be open to others; somebody else's stays as it is
        os.fchmod(handle, PRIVATE)
    return handle


def remove_temporary_files(folder: Path, name: str = "*") -> None:
    """Remove what writers of `name` left behind when they were killed; a pattern is allowed."""
    for stray in folder.glob(f".{name}.tmp*"):
        with suppress(OSError):
            stray.unlink()


def fsync(path: Path) -> None:
    """Wait until a file is on the disk; for a folder, until its renames are."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_failure(error: Exception, path: Path) -> str | None:
    """Say which file could not be written and how to mend it; None if this is no system error.

    safetensors reports a system error by its text only, so that text is searched for the number.
    """
    if isinstance(error, OSError):
        number = error.errno or errno.EIO
    else:
        found = re.search(r"os error (\d+)", str(error))
        if found is None or type(error).__name__ != "SafetensorError":
            return None
        number = int(found[1])
    file = getattr(error, "filename", None) or path
    if number in NO_SPACE:
        advice = "free space"
    elif number in NO_PERMISSION:
        advice = "make the folder writable"
    else:
        advice = "check the disk"
    return (
        f"{file}: cannot be written: {os.strerror(number)}. Everything committed before is safe: "
        f"{advice}"
    )


class AppendLog:
    """A file that only grows. The system has the bytes when `append` returns.

    Args:
        path: The file; it is created if it is missing.
        offset: Bytes to keep; everything after them is cut off.
        mode: Permissions of a new file.
    """

    def __init__(self, path: Path, offset: int, mode: int = 0o644) -> None:
        self.offset = offset
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | O_NOFOLLOW | NO_WAIT, mode)
        os.ftruncate(self._fd, offset)
        self._digest = _digest_of_start(self._fd, offset)

    @property
    def sha256(self) -> str:
        """SHA-256 of what was written, whatever the file holds by now."""
        return self._digest.hexdigest()

    def append(self, data: bytes) -> None:
        """Write all of `data`; if it does not fit, cut off the part that did."""
        try:
            self._write(data)
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._fd, self.offset)
            raise
        self.offset += len(data)
        self._digest.update(data)

    def _write(self, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], self.offset + done)

    def sync(self) -> None:
        """Wait until everything so far is on the disk; call before a checkpoint refers to it."""
        os.fsync(self._fd)

    def close(self) -> None:
        """Close the file. Nothing is buffered, so nothing can be lost here."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class LockHeldError(Exception):
    """Another process holds a lock; `holder` is what it wrote into the lock file."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(f"{path}: locked by {holder or 'an unknown process'}")
        self.holder = holder


class FileLock:
    """An exclusive lock on a file. The kernel releases it when the process ends, however it ends.

    Args:
        path: The lock file; it is created if it is missing, and never removed.
        wait: Wait for the lock instead of raising `LockHeldError`.
    """

    def __init__(self, path: Path, *, wait: bool = False) -> None:
        self.path = path
        self._wait = wait
        self._fd = -1

    def acquire(self) -> str:
        """Take the lock and return what its last holder wrote."""
        self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | O_NOFOLLOW | NO_WAIT, 0o644)
        try:
            check_regular(self._fd, self.path)
            self._flock()
        except BlockingIOError:
            holder = self._text()
            self.release()
            raise LockHeldError(self.path, holder) from None
        except BaseException:
            self.release()
            raise
        return self._text()

    def _flock(self) -> None:
        if self._wait:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            return
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_PROBE_S)  # the holder may be `is_unlocked`, which lets go at once
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _text(self) -> str:
        return os.pread(self._fd, 64, 0).decode(errors="replace").strip()

    def write(self, text: str) -> None:
        """Replace the content of the lock file, for whoever finds it locked."""
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{text}\n".encode(), 0)

    def release(self) -> None:
        """Give the lock back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def is_unlocked(path: Path) -> bool:
    """Return whether a lock file exists and no process holds it; changes nothing.

    Returns False where the answer cannot be known: without a lock file, or on a file system
    without locks.
    """
    try:
        with open_regular(path) as file:  # closing it releases the shared lock, too
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def read_json(path: Path, error: type[DystopError] = RunFolderError) -> dict[str, Any]:
    """Return the JSON object in a file; raise `error` if the file cannot be read or is damaged."""
    try:
        content = parse_json(read_bounded(path, JSON_BYTES))
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror}") from None
    except ValueError as problem:
        raise error(f"{path}: not JSON; the file is damaged: {problem}") from None
    if not isinstance(content, dict):
        raise error(f"{path}: not a JSON object; the file is damaged")
    return content


def try_read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if the file is missing or damaged."""
    with suppress(DystopError):
        return read_json(path)
    return {}


def file_sha256(path: Path, most: int | None = None) -> str:
    """Return the SHA-256 of a file, in hexadecimal.

    Raises:
        RunFolderError: It cannot be read, or has more than `most` bytes.
    """
    try:
        with open_regular(path) as file:
            if most is not None:
                check_bounds(file, path, most)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None


def start_sha256(path: Path, length: int) -> str:
    """Return the SHA-256 of the first bytes of a file; of the whole file if it is shorter."""
    with open_regular(path) as file:
        return _digest_of_start(file.fileno(), length).hexdigest()


def _digest_of_start(handle: int, length: int) -> "hashlib._Hash":
    digest, at = hashlib.sha256(), 0
    while at < length and (piece := os.pread(handle, min(_PIECE_BYTES, length - at), at)):
        digest.update(piece)
        at += len(piece)
    return digest
