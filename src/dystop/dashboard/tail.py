"""The end of a record log: its last round, and the last one with an accuracy."""

import os
from dataclasses import dataclass
from pathlib import Path

from dystop.dashboard.files import open_file
from dystop.dashboard.history import History
from dystop.experiments.durable import RECORDS
from dystop.record import RoundRecord

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
