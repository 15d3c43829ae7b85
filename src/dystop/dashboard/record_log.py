"""Follows a record log: reads what is new, and begins again where the log was cut or replaced."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from dystop.dashboard.files import open_file
from dystop.dashboard.history import History
from dystop.experiments.record_log import RECORDS
from dystop.record import RoundRecord

AT_ONCE = 8 * 1024 * 1024
"""Bytes that one look takes in; a long history arrives in several, and the page grows with it."""
_SEAL = 256  # bytes before the place reached, by which a log is known again


class Follower:
    """One record log, as far as it has been read."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORDS
        self._identity = secrets.token_hex(4)  # of this object: pages may outlive it
        self._begun = 0
        self._begin()

    def _begin(self) -> None:
        self.history = History()
        self._begun += 1
        self._offset, self._seal = 0, b""
        self.size = 0
        self.is_behind = False  # whether there is more to read at once
        self.is_stuck = False  # whether a line has no end

    @property
    def offset(self) -> int:
        """Bytes of the log that have been read."""
        return self._offset

    @property
    def epoch(self) -> str:
        """Changes whenever points that a page has are no longer what they were."""
        lines = self.history.rounds, self.history.tests
        return f"{self._identity}-{self._begun}-{sum(line.epoch for line in lines)}"

    def look(self) -> None:
        """Read what has been written since the last look."""
        fd = open_file(self._path)
        if fd is None:
            if self._offset:
                self._begin()
            return
        try:
            if not self._is_same(fd):
                self._begin()
            self._read(fd)
        except OSError:  # the disk fails, or the folder is gone: the next look will tell
            return
        finally:
            os.close(fd)

    def _is_same(self, fd: int) -> bool:
        """Whether what was read is still there; a run that is resumed cuts its log back."""
        at = self._offset - len(self._seal)
        return os.pread(fd, len(self._seal), at) == self._seal

    def _read(self, fd: int) -> None:
        self.size = os.fstat(fd).st_size
        data = os.pread(fd, AT_ONCE, self._offset)
        end = data.rfind(b"\n") + 1  # a line without its end is still being written
        self.is_behind = end > 0 and len(data) == AT_ONCE
        self.is_stuck = end == 0 and len(data) == AT_ONCE
        for line in data[:end].split(b"\n")[:-1]:
            self.history.read(line)
        if end:
            self._offset += end
            self._seal = data[max(0, end - _SEAL) : end]


# MERGED: The end of a record log: its last round, and the last one with an accuracy.


FIRST, FURTHEST = 64 * 1024, 4 * 1024 * 1024  # bytes from the end


@dataclass(frozen=True)
class Tail:
    """Where a run has got to."""

    last: RoundRecord | None = None
    scored: RoundRecord | None = None


def tail(folder: Path) -> Tail:
    """The last rounds of a log that may be long: it is read from its end, as far as needed."""
    fd = open_file(folder / RECORDS)
    if fd is None:
        return Tail()
    try:
        return _search(fd, os.fstat(fd).st_size)
    except OSError:
        return Tail()
    finally:
        os.close(fd)


def _search(fd: int, size: int) -> Tail:
    reach = FIRST
    while True:
        start = max(0, size - reach)
        found = _last(os.pread(fd, size - start, start), whole=start == 0)
        if found.scored is not None or start == 0 or reach >= FURTHEST:
            return found
        reach *= 4


def _last(data: bytes, *, whole: bool) -> Tail:
    """From the last line backwards; the first is cut, unless the file begins with it."""
    lines = data.split(b"\n")[:-1]
    history = History()
    last: RoundRecord | None = None
    for line in reversed(lines if whole else lines[1:]):
        history.read(line)
        last = last or history.last
        if history.scored is not None:
            break
    return Tail(last, history.scored)
