"""The evaluations of many runs, kept so that a page of a whole study reads no log twice."""

import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from dystop.dashboard.run_folders.discovery import RunLocation
from dystop.dashboard.run_folders.downsample import Value
from dystop.dashboard.run_folders.files import FileStamp, file_stamp
from dystop.dashboard.run_folders.library import Library
from dystop.folders.late_scores import LATE_SCORES
from dystop.folders.record_log import RECORDS

READING_S = 1.0
"""Seconds that one request reads logs; the next request goes on."""
MAX_CURVE = 250
"""Most points of the curve of one run, enough for a screen that shows many."""

Row = list[Value]


@dataclass(frozen=True)
class Curve:
    """The evaluations of a run, in the columns of `history.EVALUATIONS`."""

    rows: tuple[Row, ...] = ()
    is_complete: bool = False  # whether the whole log was read
    tested_s: tuple[float, ...] = ()  # clock of every evaluation; `rows` may have fewer
    scores: tuple[float, ...] = ()


class CurveCache:
    """The curves of the runs of a library; a log is read again only when it has changed."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()
        self._kept: dict[Path, tuple[tuple[FileStamp | None, ...], Curve]] = {}

    def curves(self, locations: Sequence[RunLocation]) -> list[Curve]:
        """Return the curve of every run, as far as it was read within `READING_S`."""
        end_s = time.monotonic() + READING_S
        with self._lock:
            self._forget({place.folder for place in self._library.found().locations.values()})
            return [self._curve(location, end_s) for location in locations]

    def _forget(self, there: Collection[Path]) -> None:
        for gone in [folder for folder in self._kept if folder not in there]:
            del self._kept[gone]

    def _curve(self, location: RunLocation, end_s: float) -> Curve:
        folder = location.folder
        stamps = tuple(file_stamp(folder / name) for name in (RECORDS, LATE_SCORES))
        kept, curve = self._kept.get(folder, ((), Curve()))
        if (kept == stamps and curve.is_complete) or time.monotonic() > end_s:
            return curve
        curve = self._read(location, end_s)
        self._kept[folder] = stamps, curve
        return curve

    def _read(self, location: RunLocation, end_s: float) -> Curve:
        follower, lock = self._library.follower(location)
        with lock:
            follower.update()
            while follower.is_behind and time.monotonic() < end_s:
                follower.update()
            history = follower.history
            rows = [point.row() for point in history.evaluations.points]
            return Curve(
                tuple(thinned(rows)), not follower.is_behind,
                tuple(history.tested_s), tuple(history.scores),
            )  # fmt: skip


def thinned(rows: Sequence[Row]) -> list[Row]:
    """Return at most `MAX_CURVE` rows, evenly chosen; the last one is always among them.

    >>> [row[0] for row in thinned([[k] for k in range(1, 1001)])][-2:], len(thinned([[1]] * 1000))
    ([996, 1000], 250)
    """
    step = max(1, -(-len(rows) // MAX_CURVE))
    return list(rows[::-1][::step][::-1])
