"""Follows a record log: reads what is new, and begins again where the log was cut or replaced."""

import os
import secrets
from pathlib import Path

from dystop.dashboard.files import open_file
from dystop.dashboard.history import History
from dystop.experiments.durable import RECORDS

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
