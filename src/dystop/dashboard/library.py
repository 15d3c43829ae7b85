"""The runs under one folder and what is in them, read again only where it has changed."""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dystop.dashboard.discovery import Discovery, Place, scan
from dystop.dashboard.files import Mark, changed_s, mark, read_json, read_toml
from dystop.dashboard.record_log import Follower, Tail, tail
from dystop.experiments.record_log import RECORDS
from dystop.experiments.run_folder import CONFIG, FLEET, INFO, is_abandoned

ENROLMENT = "enrolment.json"
FOLLOWED = 32  # runs whose curves are kept in memory
FRESH_S = 1.0  # how long a listing holds


@dataclass(frozen=True)
class Card:
    """What a run says about itself."""

    info: dict[str, Any] | None
    config: dict[str, Any] | None
    fleet: dict[str, Any] | None
    enrolment: dict[str, Any] | None
    status: str = "unknown"
    changed_s: float | None = None  # when the last round was written


class Library:
    """The runs under one folder, for all who ask at once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._lock = threading.Lock()
        self._shelf, self._looked_s = Discovery(), float("-inf")
        self._followers: OrderedDict[Path, tuple[Follower, threading.Lock]] = OrderedDict()
        self._read: dict[Path, tuple[tuple[Mark | None, ...], Card]] = {}
        self._tails: dict[Path, tuple[Mark | None, Tail]] = {}

    def shelf(self) -> Discovery:
        """All runs; looked for anew when the last time is a while ago."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._looked_s > FRESH_S:
                self._shelf, self._looked_s = scan(self.root), now_s
                self._forget()
            return self._shelf

    def _forget(self) -> None:
        """Drop what is remembered of folders that are gone."""
        here = {place.folder for place in self._shelf.places.values()}
        for memory in (self._followers, self._read, self._tails):
            for gone in [path for path in list(memory) if path not in here]:
                memory.pop(gone, None)  # others read meanwhile

    def find(self, key: str) -> Place | None:
        """The run of this name; nothing but a name in the listing leads to a folder."""
        return self.shelf().places.get(key)

    def card(self, place: Place) -> Card:
        """The small files of a run; read again only where they have changed."""
        folder = place.folder
        files = [folder / name for name in (INFO, CONFIG, FLEET, ENROLMENT)]
        marks = tuple(map(mark, files))
        noted = self._read.get(folder)
        if noted is None or noted[0] != marks:
            info, config, fleet, enrolment = files
            card = Card(read_json(info), read_toml(config), read_json(fleet), read_json(enrolment))
            noted = self._read[folder] = marks, card
        status = _status(noted[1], folder)
        return replace(noted[1], status=status, changed_s=changed_s(folder / RECORDS))

    def tail(self, place: Place) -> Tail:
        """Where a run has got to, without reading all of its history."""
        now = mark(place.folder / RECORDS)
        noted = self._tails.get(place.folder)
        if noted is None or noted[0] != now:
            noted = self._tails[place.folder] = now, tail(place.folder)
        return noted[1]

    def follower(self, place: Place) -> tuple[Follower, threading.Lock]:
        """What follows a run, and the lock to hold meanwhile; those not asked for are dropped."""
        with self._lock:
            pair = self._followers.get(place.folder)
            if pair is None:
                pair = self._followers[place.folder] = Follower(place.folder), threading.Lock()
            self._followers.move_to_end(place.folder)
            while len(self._followers) > FOLLOWED:
                self._followers.popitem(last=False)
            return pair


def _status(card: Card, folder: Path) -> str:
    """finished, failed, interrupted or running; a run whose process is gone was interrupted."""
    noted = (card.info or {}).get("status")
    if noted == "running" and is_abandoned(folder):
        return "interrupted"
    return noted if isinstance(noted, str) and noted else "unknown"
