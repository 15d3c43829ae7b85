"""The record log of a run folder, its readers, and the lock that lets one process write it."""

import errno
import os
from pathlib import Path
from typing import Any, Self

from dystop.errors import RunFolderError, shell_command
from dystop.folders.folder_kinds import writing
from dystop.folders.late_scores import LATE_SCORES, parse_late_score, with_late_score
from dystop.foreign_files import LOG_BYTES, open_regular, read_bounded, refuse_links
from dystop.record import RoundRecord
from dystop.recorders import read_record
from dystop.storage import (
    AppendLog,
    FileLock,
    LockHeldError,
    file_sha256,
    is_unlocked,
    start_sha256,
)

RECORDS = "records.jsonl"
LOCK = ".lock"


class RunLock(FileLock):
    """The exclusive right to write a run folder, for as long as the `with` block lasts."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / LOCK)

    def acquire(self) -> str:
        """Take the lock; raise `RunFolderError` if another process is writing the folder."""
        folder = self.path.parent
        with writing(folder):
            refuse_links(folder)
            try:
                before = super().acquire()
            except LockHeldError as held:
                raise RunFolderError(
                    f"{folder}: process {held.holder or 'unknown'} is writing this run; "
                    "wait for it to end, or stop it, then try again"
                ) from None
            self.write(str(os.getpid()))
        return before


def is_abandoned(folder: Path) -> bool:
    """Return whether a run was started here that no process is writing now; changes nothing.

    Returns False where the answer cannot be known: without a lock file, or on a file system
    without locks.
    """
    return is_unlocked(folder / LOCK)


def read_lines(folder: Path) -> tuple[list[RoundRecord], list[int]]:
    """Return the complete lines of the record log, and the byte offset at which each one ends.

    A last line without its newline was cut off by a crash and is left out. Any other line that is
    not a record is damage, and raises `RunFolderError`.
    """
    path = folder / RECORDS
    records: list[RoundRecord] = []
    ends: list[int] = []
    try:
        data = read_bounded(path, LOG_BYTES)
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
        return read_record(line.decode())
    except (ValueError, TypeError):
        raise RunFolderError(
            f"{path}: line {number} is damaged; the run cannot be read past it. "
            f"Cut the file before line {number} to keep what came before"
        ) from None


class RecordLog:
    """`records.jsonl`, open for appending.

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
                f"{folder / RECORDS}: ends at round {kept[-1] if kept else 0}, but the run resumes "
                f"after round {keep}; the file was cut or replaced. Start a new run"
            )
        with writing(folder):
            self._log = AppendLog(folder / RECORDS, ends[len(kept) - 1] if kept else 0)

    @property
    def offset(self) -> int:
        """Length of the log in bytes."""
        return self._log.offset

    @property
    def sha256(self) -> str:
        """SHA-256 of all lines as they were written."""
        return self._log.sha256

    @property
    def mark(self) -> str:
        """Length and SHA-256 of the log, for `check_start`."""
        return f"{self.offset} {self.sha256}"

    def append(self, record: RoundRecord) -> None:
        """Write one line; if it does not fit, none of it is kept."""
        with writing(self._folder):
            self._log.append(record.to_json().encode() + b"\n")

    def sync(self) -> None:
        """Wait until every line is on the disk; call before a checkpoint refers to it."""
        with writing(self._folder):
            self._log.sync()

    def close(self) -> None:
        """Close the file. Nothing is buffered, so nothing can be lost here."""
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class RecordTail:
    """Reads the records that were appended to a log since the last call.

    Args:
        path: The record log; late scores are read from the same folder.
    """

    def __init__(self, path: Path) -> None:
        self._records, self._scores = LineTail(path), LineTail(path.with_name(LATE_SCORES))
        self._late: dict[int, dict[str, Any]] = {}  # all late scores, by round
        self._unscored: dict[int, RoundRecord] = {}

    def read(self) -> list[RoundRecord]:
        """Return the new records, and once more the older ones whose score has come since."""
        new = dict(map(parse_late_score, self._scores.read()))
        self._late |= new
        lines = self._records.read()
        records = [with_late_score(read_record(line.decode()), self._late) for line in lines]
        late = [with_late_score(self._unscored.pop(k), new) for k in new if k in self._unscored]
        self._unscored |= {r.round: r for r in records if r.no_score is not None}
        return [*records, *late]


class LineTail:
    """Reads the whole lines that were appended to a file since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[bytes]:
        """Return the new lines; a file that was cut is read from its new end on."""
        try:
            file = open_regular(self._path)
        except FileNotFoundError:
            return []
        with file:
            size = file.seek(0, os.SEEK_END)
            self._offset = min(self._offset, size)
            if size - self._offset > LOG_BYTES:
                raise OSError(errno.EFBIG, f"has {size:,} bytes, at most {LOG_BYTES:,} are read")
            file.seek(self._offset)
            whole = file.read(size - self._offset).rpartition(b"\n")[0]
        self._offset += len(whole) + bool(whole)
        return whole.splitlines()


def records_sha256(folder: Path) -> str:
    """Return the SHA-256 of the record log: two runs are the same if this is."""
    return file_sha256(folder / RECORDS)


def check_start(folder: Path, mark: str, round_: int) -> None:
    """Refuse a log whose lines up to a round are not those that were written.

    Args:
        folder: The run folder.
        mark: `RecordLog.mark` after that round; empty if it is not known.
        round_: The round.
    """
    path = folder / RECORDS
    length, _, sha256 = mark.partition(" ")
    if not mark or (path.is_file() and start_sha256(path, int(length)) == sha256):
        return
    again = shell_command("run", folder / "config.toml", "--name", "NEW")
    raise RunFolderError(
        f"{path}: its lines up to round {round_} were changed or cut after they were written, so "
        f"the run cannot be resumed; restore the file, or run the experiment again with: {again}"
    )
