"""The runs under one folder with their files, read again only when they change."""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dystop.dashboard.run_folders.discovery import FoundRuns, RunLocation, find_runs
from dystop.dashboard.run_folders.files import (
    FileStamp,
    file_stamp,
    modified_s,
    read_json,
    read_toml,
)
from dystop.dashboard.run_folders.log_reader import LogFollower, LogTail, read_tail
from dystop.folders.late_scores import LATE_SCORES
from dystop.folders.record_log import RECORDS
from dystop.folders.run_folder import CONFIG, FLEET, INFO, is_abandoned

ENROLMENT, INCIDENTS = "enrolment.json", "incidents.json"
MAX_FOLLOWERS = 32  # runs whose series are kept in memory
LISTING_S = 1.0  # seconds for which a listing is valid


@dataclass(frozen=True)
class RunFiles:
    """The small files of a run; None where a file is missing or damaged."""

    info: dict[str, Any] | None
    config: dict[str, Any] | None
    fleet: dict[str, Any] | None
    enrolment: dict[str, Any] | None
    incidents: dict[str, Any] | None = None
    status: str = "unknown"
    changed_s: float | None = None  # when the last round was written


class Library:
    """The runs under one folder, shared by all requests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._found, self._scanned_s = FoundRuns(), float("-inf")
        self._followers: OrderedDict[Path, tuple[LogFollower, threading.Lock]] = OrderedDict()
        self._read: dict[Path, tuple[tuple[FileStamp | None, ...], RunFiles]] = {}
        self._tails: dict[Path, tuple[tuple[FileStamp | None, ...], LogTail]] = {}

    def found(self) -> FoundRuns:
        """Return all runs; scan again when the last listing is too old."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._scanned_s > LISTING_S:
                self._found, self._scanned_s = find_runs(self.root), now_s
                self._forget()
            return self._found

    def _forget(self) -> None:
        """Drop the caches of folders that are gone."""
        folders = {location.folder for location in self._found.locations.values()}
        for cache in (self._followers, self._read, self._tails):
            for gone in [path for path in list(cache) if path not in folders]:
                cache.pop(gone, None)  # other threads read meanwhile

    def find(self, key: str) -> RunLocation | None:
        """Return the run with this key; only keys in the listing lead to a folder."""
        return self.found().locations.get(key)

    def files(self, location: RunLocation) -> RunFiles:
        """Return the small files of a run; read again only when they change."""
        folder = location.folder
        paths = [folder / name for name in (INFO, CONFIG, FLEET, ENROLMENT, INCIDENTS)]
        stamps = tuple(map(file_stamp, paths))
        cached = self._read.get(folder)
        if cached is None or cached[0] != stamps:
            info, config, fleet, enrolment, incidents = paths
            files = RunFiles(
                read_json(info),
                read_toml(config),
                read_json(fleet),
                read_json(enrolment),
                read_json(incidents),
            )
            cached = self._read[folder] = stamps, files
        status = _status(cached[1], folder)
        return replace(cached[1], status=status, changed_s=modified_s(folder / RECORDS))

    def tail(self, location: RunLocation) -> LogTail:
        """Return the last rounds of a run without reading its whole log."""
        now = tuple(file_stamp(location.folder / name) for name in (RECORDS, LATE_SCORES))
        cached = self._tails.get(location.folder)
        if cached is None or cached[0] != now:
            cached = self._tails[location.folder] = now, read_tail(location.folder)
        return cached[1]

    def follower(self, location: RunLocation) -> tuple[LogFollower, threading.Lock]:
        """Return the follower of a run and its lock; followers not used recently are dropped."""
        with self._lock:
            pair = self._followers.get(location.folder)
            if pair is None:
                pair = self._followers[location.folder] = (
                    LogFollower(location.folder),
                    threading.Lock(),
                )
            self._followers.move_to_end(location.folder)
            while len(self._followers) > MAX_FOLLOWERS:
                self._followers.popitem(last=False)
            return pair


def _status(files: RunFiles, folder: Path) -> str:
    """Return the status; a running run without a process is interrupted."""
    cached = (files.info or {}).get("status")
    if cached == "running" and is_abandoned(folder):
        return "interrupted"
    return cached if isinstance(cached, str) and cached else "unknown"
