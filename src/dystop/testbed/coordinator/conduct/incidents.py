"""Incidents: what went wrong with which member, for the operator.

An incident changes nothing by itself: strikes, quarantine, exclusions and trials are decided
elsewhere. Incidents of the same member, kind and reporter are counted together. The coordinator
reports most of them itself. A worker may report what it saw of a peer; its name then stands beside
the incident.

The ledger holds one row for each entry, written at most once a second. `dystop check`, the status
file and the dashboard show them. The log gets a line when an entry is new, and then one a minute.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from dystop.testbed.events import LogWarning
from dystop.testbed.ledger.tables import INCIDENT, KeptLine
from dystop.testbed.names import COORDINATOR
from dystop.testbed.protocol.codec import shown
from dystop.testbed.protocol.messages import Incident, IncidentKind

if TYPE_CHECKING:
    from dystop.testbed.coordinator.members import Member
    from dystop.testbed.coordinator.state import CoordinatorState

WRITE_S = 1.0  # least pause between two writes
LOG_S = 60.0  # least pause between two lines of the log about the same entry
MAX_REPORTED = 64  # entries that one reporter may cause


@dataclass(frozen=True)
class IncidentEntry:
    """All incidents of one member and kind from one reporter."""

    member: str
    kind: str
    reporter: str = ""  # empty: the coordinator
    count: int = 0
    first_s: float = 0.0  # seconds of the run
    last_s: float = 0.0
    text: str = ""  # of the last one

    @property
    def key(self) -> tuple[str, str, str]:
        """What is counted together."""
        return self.member, self.kind, self.reporter

    def __str__(self) -> str:
        """Return a sentence for the operator.

        >>> str(IncidentEntry("w03", "flood", "w01", 2, 1.0, 7.5, "40 pulls a second"))
        'w03: flood, 2 times, last after 7.5 s, reported by w01: 40 pulls a second'
        """
        times = "once" if self.count == 1 else f"{self.count} times"
        by = f", reported by {self.reporter}" if self.reporter else ""
        when = f"{times}, last after {self.last_s:.1f} s{by}"
        words = self.kind.replace("_", " ")
        return f"{self.member}: {words}, {when}" + (f": {self.text}" if self.text else "")


def entry_from_json(blob: bytes) -> IncidentEntry:
    """Return the entry that a row of the ledger holds."""
    return IncidentEntry(**json.loads(blob))


class Incidents:
    """All incidents of a run. `written` may be read from any thread."""

    def __init__(self, state: "CoordinatorState") -> None:
        self._state = state
        self._entries: dict[tuple[str, str, str], IncidentEntry] = {}
        self._unwritten: set[tuple[str, str, str]] = set()
        self._written_s = -math.inf
        self._logged_s: dict[tuple[str, str, str], float] = {}
        self.written: tuple[IncidentEntry, ...] = ()  # as the ledger has them

    def record(self, node: int, kind: IncidentKind, text: str = "", count: int = 1) -> None:
        """Record that something went wrong with a member, as the coordinator saw it."""
        member = self._state.members.of_node(node)
        if member is not None:
            self._add(IncidentEntry(member.name, kind), text, count)

    def record_own(self, kind: IncidentKind, text: str) -> None:
        """Record that something went wrong with the coordinator itself."""
        self._add(IncidentEntry(COORDINATOR, kind), text, 1)

    def reported(self, reporter: "Member", message: Incident) -> None:
        """Record what a member saw of another one, or that its own checkpoint was damaged."""
        member = self._state.members.of_node(message.node)
        is_own = member is reporter and message.kind != "damaged_checkpoint"
        if member is None or is_own:
            self.record(reporter.node, "bad_message", f"incident of node {message.node}")
            return
        entry = IncidentEntry(member.name, message.kind, reporter.name)
        caused = sum(e.reporter == reporter.name for e in self._entries.values())
        if entry.key in self._entries or caused < MAX_REPORTED:
            self._add(entry, message.text, message.count)

    def reporters(self, node: int, kind: IncidentKind, since_s: float) -> int:
        """Return how many parties have reported incidents of this kind of a member since then."""
        member = self._state.members.of_node(node)
        if member is None:
            return 0
        about = [e for e in self._entries.values() if (e.member, e.kind) == (member.name, kind)]
        return sum(e.last_s >= since_s for e in about)

    def _add(self, entry: IncidentEntry, text: str, count: int) -> None:
        at_s = self._state.at_s
        known = self._entries.get(entry.key, replace(entry, first_s=at_s))
        entry = replace(known, count=known.count + count, last_s=at_s, text=shown(text))
        self._entries[entry.key] = entry
        self._unwritten.add(entry.key)
        if at_s - self._logged_s.get(entry.key, -math.inf) >= LOG_S:
            self._logged_s[entry.key] = at_s
            self._state.pending.immediate.append(LogWarning(f"incident: {entry}"))

    # Persistence --------------------------------------------------------------------------------

    def write_due(self) -> None:
        """Write what is new, at most once a second."""
        if self._unwritten and self._state.at_s - self._written_s >= WRITE_S:
            self.write_all()

    def write_all(self) -> None:
        """Add everything that is new to the next commit."""
        self._written_s = self._state.at_s
        for key in sorted(self._unwritten):
            blob = json.dumps(asdict(self._entries[key])).encode()
            self._state.write(KeptLine(INCIDENT + ":".join(key), blob))
        self._unwritten.clear()
        self.written = tuple(self._entries.values())

    def restore(self, blobs: Iterable[bytes]) -> None:
        """Continue with the entries of the ledger."""
        self._entries = {e.key: e for e in map(entry_from_json, blobs)}
        self.written = tuple(self._entries.values())


def as_rows(entries: Iterable[IncidentEntry]) -> list[dict[str, Any]]:
    """Return entries as JSON, the newest first."""
    return [asdict(e) for e in sorted(entries, key=lambda e: -e.last_s)]
