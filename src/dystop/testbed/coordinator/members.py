"""Who takes part: the states of members, by what was heard of them and when.

    ENROLLED --join--> JOINED <--> SUSPECT --silence--> DEAD
                         ^ |          |                  |
                         | +--leave-> LEFT               |
                         +------------join---------------+      any --> QUARANTINED

A round is planned with those that are JOINED. A broken session, or silence for `suspect_s`, makes a
member SUSPECT; a word makes it JOINED again, if its session still stands. Silence for `dead_s`
makes it DEAD: its session is closed, and it has to join anew. Only an operator takes somebody out
of quarantine.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.messages import Join, Peer

if TYPE_CHECKING:
    from dystop.testbed.ledger.tables import WorkerLine  # slow to import; a worker has no ledger

State = Literal["ENROLLED", "JOINED", "SUSPECT", "DEAD", "LEFT", "QUARANTINED"]
_STATES: tuple[State, ...] = get_args(State)
_ABSENT = ("LEFT", "QUARANTINED")


@dataclass(frozen=True)
class Enrolled:
    """What is known of a member before it comes, fixed for the run."""

    name: str
    node: int
    data_size: int = 0
    label_counts: tuple[int, ...] = ()
    fingerprint: str = ""  # SHA-256 of its certificate; empty where the transport has none


@dataclass(frozen=True)
class Member:
    """A member as it stands."""

    enrolled: Enrolled
    state: State = "ENROLLED"
    incarnation: int = 0  # of the newest process of this member
    address: str = ""
    fingerprint: str = ""  # of the certificate with which it joined; empty: no certificates
    session: bool = False  # whether it can be told something
    disk_full: bool = False
    note: str = ""  # why it is in this state
    last_round: int = 0  # that it had taken up when it joined

    @property
    def name(self) -> str:
        """Name from its certificate."""
        return self.enrolled.name

    @property
    def node(self) -> int:
        """Number of its node."""
        return self.enrolled.node


class Members:
    """All members by name. Every change answers the member as it is now, or None: no change."""

    def __init__(self, enrolled: Iterable[Enrolled], timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._by_name = {e.name: Member(e) for e in enrolled}
        self._names = {m.node: m.name for m in self._by_name.values()}
        self._heard_s = dict.fromkeys(self._by_name, 0.0)  # apart: it changes with every message

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Member | None:
        """A member by name."""
        return self._by_name.get(name)

    def of_node(self, node: int) -> Member | None:
        """A member by node."""
        name = self._names.get(node)
        return None if name is None else self._by_name[name]

    def recall(self, line: "WorkerLine") -> None:
        """A member as the ledger remembers it: nobody has a session after a restart."""
        known = self._by_name.get(line.name)
        if known is None:
            return
        state = next(s for s in _STATES if s == line.state)
        state = "SUSPECT" if state == "JOINED" else state
        self._set(
            replace(
                known,
                state=state,
                incarnation=line.incarnation,
                address=line.address,
                note=line.note,
            )
        )

    def touch(self, now_s: float) -> None:
        """Begin to count silence now."""
        self._heard_s = dict.fromkeys(self._by_name, now_s)

    def join(self, name: str, join: Join, now_s: float, fingerprint: str = "") -> Member:
        """A member comes, or comes back."""
        self._heard_s[name] = now_s
        return self._set(
            replace(
                self._by_name[name],
                state="JOINED",
                incarnation=join.incarnation,
                address=join.address,
                fingerprint=fingerprint,
                session=True,
                note="",
                last_round=join.last_round,
            )
        )

    def heard(self, name: str, now_s: float, disk_full: bool | None = None) -> Member | None:
        """A member with a session said something."""
        self._heard_s[name] = now_s
        known = self._by_name[name]
        if disk_full is not None and disk_full != known.disk_full:
            known = self._set(replace(known, disk_full=disk_full))
        if known.state != "SUSPECT":
            return None
        return self._set(replace(known, state="JOINED", note="heard again"))

    def gone(self, name: str, now_s: float) -> Member | None:
        """The session of a member broke."""
        known = self._by_name[name]
        if not known.session:
            return None
        lost = self._set(replace(known, session=False))
        if known.state != "JOINED":
            return None
        return self._set(replace(lost, state="SUSPECT", note="session broke"))

    def leave(self, name: str, note: str) -> Member | None:
        """A member goes on purpose."""
        known = self._by_name[name]
        if known.state in ("ENROLLED", *_ABSENT):
            return None
        return self._set(replace(known, state="LEFT", session=False, note=note))

    def quarantine(self, name: str, note: str) -> Member | None:
        """A member is shut out until an operator lets it in again."""
        known = self._by_name[name]
        if known.state == "QUARANTINED":
            return None
        return self._set(replace(known, state="QUARANTINED", session=False, note=note))

    def readmit(self, name: str, note: str) -> Member | None:
        """A member may come back; it is away until it joins."""
        known = self._by_name[name]
        if known.state != "QUARANTINED":
            return None
        return self._set(replace(known, state="LEFT", note=note))

    def tick(self, now_s: float) -> list[Member]:
        """Who has become silent for too long."""
        changed = []
        soonest_s = min(self._timeouts.suspect_s, self._timeouts.dead_s)
        for name, heard_s in self._heard_s.items():
            if now_s - heard_s < soonest_s:
                continue
            known = self._by_name[name]
            state = self._by_silence(known, now_s - heard_s)
            if state != known.state:
                session = known.session and state != "DEAD"
                note = f"silent for {now_s - heard_s:.1f} s"
                changed.append(self._set(replace(known, state=state, session=session, note=note)))
        return changed

    def _by_silence(self, known: Member, silence_s: float) -> State:
        if known.state not in ("JOINED", "SUSPECT"):
            return known.state
        if silence_s >= self._timeouts.dead_s:
            return "DEAD"
        return "SUSPECT" if silence_s >= self._timeouts.suspect_s else known.state

    def _set(self, member: Member) -> Member:
        self._by_name[member.name] = member
        return member

    def roster(self) -> tuple[Peer, ...]:
        """Who may fetch and be fetched from: all that are enrolled and were not sent away.

        Also those that have not come yet, without an address: a worker can then let somebody in
        before it has heard that they joined.
        """
        return tuple(
            Peer(m.name, m.node, m.address, m.fingerprint or m.enrolled.fingerprint)
            for m in self._by_name.values()
            if m.state not in _ABSENT
        )
