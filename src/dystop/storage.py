"""Writes that survive: atomic files, an append-only record log, and a lock on a folder.

Every failed write becomes a `StorageError` that says what to do next; whatever was committed
before it is still there.
"""

import errno
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from dystop.errors import RunFolderError, StorageError
from dystop.experiments.folder_kinds import RUN, kind_of
from dystop.record import RoundRecord, from_json

RECORDS = "records.jsonl"
LOCK = ".lock"
_GLANCE_S = 0.05  # longer than anybody who only looks keeps a lock
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EROFS, errno.EACCES, errno.EPERM}


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Turn a refused write into a StorageError that names the folder and the way on."""
    try:
        yield
    except Exception as error:
        number = _system_error(error)
        if number is None:
            raise
        what = getattr(error, "filename", None) or folder
        way = (kind_of(folder) or RUN).way_on(folder)
        raise StorageError(
            f"{what}: cannot be written: {os.strerror(number)}. Everything committed before is "
            f"safe: {_advice(number)}, then: {way}"
        ) from error


def _system_error(error: Exception) -> int | None:
    """Number of the system's error; safetensors keeps it only in its text."""
    if isinstance(error, OSError):
        return error.errno or errno.EIO
    told = re.search(r"os error (\d+)", str(error))
    return int(told[1]) if told and type(error).__name__ == "SafetensorError" else None


def _advice(number: int) -> str:
    if number in _FULL:
        return "free space"
    return "make the folder writable" if number in _FORBIDDEN else "check the disk"


def sync_folder(folder: Path) -> None:
    """Make renames in this folder last through a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file so that readers see the old one or the new one, never a part.

    The raw OSError comes through; wrap in `writing` where a run folder is concerned.
    """
    part = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


class RunLock:
    """Exclusive right to write a run folder, for as long as the `with` block lasts.

    The kernel gives the lock back when the process ends, however it ends.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._fd = -1

    def __enter__(self) -> Self:
        with writing(self._folder):
            self._fd = os.open(self._folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                self._take()
            except BaseException:
                os.close(self._fd)
                raise
        return self

    def _take(self) -> None:
        try:
            self._seize()
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip() or "unknown"
            raise RunFolderError(
                f"{self._folder}: process {holder} is writing this run; "
                "wait for it to end, or stop it, then try again"
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def _seize(self) -> None:
        wanted = fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.flock(self._fd, wanted)
        except BlockingIOError:
            time.sleep(_GLANCE_S)  # it may have been `is_abandoned` that looked
            fcntl.flock(self._fd, wanted)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)


def is_abandoned(folder: Path) -> bool:
    """Whether a run was begun here that no process is writing now.

    Nothing is made or changed by asking. False where it cannot be told: without a lock file, or
    where locks cannot be had.
    """
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)  # gives the lock back, too
    return True


def read_lines(folder: Path) -> tuple[list[RoundRecord], list[int]]:
    """All finished lines of the record log, and the byte offset at which each one ends.

    A last line without its newline was cut off by a crash and is left out. Any other line that is
    not a record is damage, and an error.
    """
    path = folder / RECORDS
    records: list[RoundRecord] = []
    ends: list[int] = []
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return records, ends
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None
    at = 0
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        at += len(line)
        if line.endswith(b"\n"):
            records.append(_record(path, number, line))
            ends.append(at)
    return records, ends


def _record(path: Path, number: int, line: bytes) -> RoundRecord:
    try:
        return from_json(line.decode())
    except (ValueError, TypeError):
        raise RunFolderError(
            f"{path}: line {number} is damaged; the run cannot be read past it. "
            f"Cut the file before line {number} to keep what came before"
        ) from None


class RecordLog:
    """`records.jsonl`, open for appending. A line is handed to the system before `append` returns.

    Args:
        folder: The run folder.
        keep: Last round to keep; later lines and a cut-off last line are removed. None keeps all.
    """

    def __init__(self, folder: Path, keep: int | None = None) -> None:
        self._folder = folder
        records, ends = read_lines(folder)
        kept = [r.round for r in records if keep is None or r.round <= keep]
        if keep and (not kept or kept[-1] < keep):
            raise RunFolderError(
                f"{folder / RECORDS}: ends at round {kept[-1] if kept else 0}, but round {keep} "
                "is needed to go on; the file was cut or replaced, start the run afresh"
            )
        self.offset = ends[len(kept) - 1] if kept else 0
        with writing(folder):
            self._fd = os.open(folder / RECORDS, os.O_RDWR | os.O_CREAT, 0o644)
            os.ftruncate(self._fd, self.offset)

    def append(self, record: RoundRecord) -> None:
        """Write one line; a line that does not fit is taken back whole."""
        data = record.to_json().encode() + b"\n"
        with writing(self._folder):
            try:
                self._write(data)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(self._fd, self.offset)
                raise
        self.offset += len(data)

    def _write(self, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += os.pwrite(self._fd, data[done:], self.offset + done)

    def sync(self) -> None:
        """Make every line so far last through a power cut; call before a checkpoint names it."""
        with writing(self._folder):
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file; nothing is buffered, so nothing can be lost here."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def records_sha256(folder: Path) -> str:
    """Fingerprint of the record log: two runs are the same if this is."""
    return file_sha256(folder / RECORDS)


def file_sha256(path: Path) -> str:
    """Fingerprint of a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RunFolderError(f"{path}: cannot be read: {error.strerror}") from None
