"""How long after the close of a round its record appears."""

import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

LOOK_S = 0.5  # between two looks, so a lag is known to half a second


class RecordLag:
    """Compares the rounds that the ledger has closed with those that have a record."""

    def __init__(self, ledger: Path) -> None:
        self._ledger = ledger
        self._due_s = 0.0
        self._unrecorded: dict[int, float] = {}  # when a closed round was first seen, by round
        self._closed = 0
        self.longest_s = 0.0
        self.longest_round = 0

    def look(self, recorded: int) -> None:
        """Look at the ledger if it is time; `recorded` is the last round that has a record."""
        now = time.monotonic()
        if now < self._due_s:
            return
        self._due_s = now + LOOK_S
        closed = max(self._last_closed(), recorded)
        self._unrecorded |= dict.fromkeys(range(self._closed + 1, closed + 1), now)
        self._closed = max(self._closed, closed)
        for round_, since_s in self._unrecorded.items():
            if now - since_s > self.longest_s:
                self.longest_s, self.longest_round = now - since_s, round_
        self._unrecorded = {k: s for k, s in self._unrecorded.items() if k > recorded}

    def _last_closed(self) -> int:
        query = "SELECT round FROM rounds WHERE closed_s IS NOT NULL ORDER BY round DESC LIMIT 1"
        with suppress(sqlite3.Error):  # it does not exist yet, or is being recovered
            base = sqlite3.connect(f"file:{self._ledger}?mode=ro", uri=True, timeout=1)
            with closing(base):
                found = base.execute(query).fetchone()
                return int(found[0]) if found else 0
        return 0
