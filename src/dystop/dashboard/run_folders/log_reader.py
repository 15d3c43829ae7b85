"""Reading of record logs: following a log that grows, or reading only its end."""

import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dystop.dashboard.run_folders.files import FileStamp, file_stamp, open_file, read_bytes
from dystop.dashboard.run_folders.history import History
from dystop.folders.late_scores import LATE_SCORES, LateScores, parse_late_score
from dystop.folders.record_log import RECORDS
from dystop.record import RoundRecord

MAX_READ = 8 * 1024 * 1024
"""Bytes of one read; a long log takes several, and the page grows with it."""
MAX_REPLAY_BYTES = 16 * 1024 * 1024
"""Bytes of a log that is read again for one of its rounds; rounds of a longer log are not shown."""
TAIL_BYTES, MAX_TAIL_BYTES = 64 * 1024, 4 * 1024 * 1024  # bytes from the end
_OVERLAP = 256  # bytes before the offset that must not have changed


class LogFollower:
    """A record log, as far as it has been read; starts again if the log is cut or replaced."""

    def __init__(self, folder: Path) -> None:
        self._path, self._folder = folder / RECORDS, folder
        self._late: dict[int, Mapping[str, Any]] = {}
        self._late_stamp: FileStamp | None = None
        self._id = secrets.token_hex(4)  # of this object: pages may outlive it
        self._restarts = 0
        self._restart()

    def _restart(self) -> None:
        self.history = History(self._late)
        self._restarts += 1
        self._offset, self._overlap = 0, b""
        self.size = 0
        self.is_behind = False  # whether there is more to read now
        self.is_stuck = False  # whether a line is longer than one read

    @property
    def offset(self) -> int:
        """Bytes of the log that have been read."""
        return self._offset

    @property
    def version(self) -> str:
        """Changes whenever points that a page already has are no longer valid."""
        lines = self.history.rounds, self.history.evaluations
        return f"{self._id}-{self._restarts}-{sum(line.version for line in lines)}"

    def update(self) -> None:
        """Read what was written since the last update."""
        fd = open_file(self._path)
        if fd is None:
            if self._offset:
                self._restart()
            return
        try:
            if not self._is_same(fd) or not self._read_late_scores():
                self._restart()
            self._read(fd)
        except OSError:  # the disk fails or the folder is gone; the next update tries again
            return
        finally:
            os.close(fd)

    def _read_late_scores(self) -> bool:
        """Read scores that came late; return whether they fit into the history so far."""
        stamp = file_stamp(self._folder / LATE_SCORES)
        if stamp == self._late_stamp:
            return True
        self._late_stamp, found = stamp, late_scores(self._folder)
        new = [round_ for round_ in found if round_ not in self._late]
        self._late.update(found)
        fits = [self.history.add_late_score(round_) for round_ in new]
        return all(fits)

    def _is_same(self, fd: int) -> bool:
        """Return whether the bytes read before are unchanged; a resumed run truncates its log."""
        at = self._offset - len(self._overlap)
        return os.pread(fd, len(self._overlap), at) == self._overlap

    def _read(self, fd: int) -> None:
        self.size = os.fstat(fd).st_size
        data = os.pread(fd, MAX_READ, self._offset)
        end = data.rfind(b"\n") + 1  # an incomplete line is still being written
        self.is_behind = end > 0 and len(data) == MAX_READ
        self.is_stuck = end == 0 and len(data) == MAX_READ
        for line in data[:end].split(b"\n")[:-1]:
            self.history.read(line)
        if end:
            self._offset += end
            self._overlap = data[max(0, end - _OVERLAP) : end]


@dataclass(frozen=True)
class LogTail:
    """The last round of a log, and the last one with an accuracy."""

    last: RoundRecord | None = None
    evaluated: RoundRecord | None = None


def read_tail(folder: Path) -> LogTail:
    """Read the last rounds of a log from its end, without reading all of it."""
    fd = open_file(folder / RECORDS)
    if fd is None:
        return LogTail()
    try:
        return _search(fd, os.fstat(fd).st_size, late_scores(folder))
    except OSError:
        return LogTail()
    finally:
        os.close(fd)


def history_until(folder: Path, round_: int) -> History | None:
    """Read a log up to a round; None if it has no such round, or is too long to be read again."""
    fd = open_file(folder / RECORDS)
    if fd is None:
        return None
    try:
        data = os.pread(fd, MAX_REPLAY_BYTES + 1, 0)
    except OSError:
        return None
    finally:
        os.close(fd)
    history = History()
    for line in data.split(b"\n")[:-1] if len(data) <= MAX_REPLAY_BYTES else ():
        history.read(line)
        if history.last is not None and history.last.round >= round_:
            break
    return history if history.last is not None and history.last.round == round_ else None


def late_scores(folder: Path) -> LateScores:
    """Read the late scores of a run; lines that are none are left out."""
    found = {}
    for line in (read_bytes(folder / LATE_SCORES) or b"").split(b"\n")[:-1]:
        with suppress(ValueError, TypeError, RecursionError):
            round_, score = parse_late_score(line)
            found[round_] = score
    return found


def _search(fd: int, size: int, late: LateScores) -> LogTail:
    length = TAIL_BYTES
    while True:
        start = max(0, size - length)
        found = _last(os.pread(fd, size - start, start), late, whole=start == 0)
        if found.evaluated is not None or start == 0 or length >= MAX_TAIL_BYTES:
            return found
        length *= 4


def _last(data: bytes, late: LateScores, *, whole: bool) -> LogTail:
    """Read lines backwards; the first line is incomplete unless the file starts with it."""
    lines = data.split(b"\n")[:-1]
    history = History(late)
    last: RoundRecord | None = None
    for line in reversed(lines if whole else lines[1:]):
        history.read(line)
        last = last or history.last
        if history.evaluated is not None:
            break
    return LogTail(last, history.evaluated)
