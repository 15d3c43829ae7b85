"""The members of a run and their states, derived from messages, sessions and silence.

    ENROLLED --join--> JOINED <--> SUSPECT --silence--> DEAD
                         ^ |          |                  |
                         | +--leave-> LEFT               |
                         +------------join---------------+      any --> QUARANTINED

A round is planned with the members that are JOINED. A broken session, or silence for `suspect_s`,
makes a member SUSPECT. A message makes it JOINED again if its session is still open. Silence for
`dead_s` makes it DEAD: its session is closed, and it has to join again. Only an operator ends a
quarantine.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.messages import Join, Peer

if TYPE_CHECKING:
    from dystop.testbed.ledger.tables import WorkerLine  # slow to import; a worker has no ledger

MemberState = Literal["ENROLLED", "JOINED", "SUSPECT", "DEAD", "LEFT", "QUARANTINED"]
_STATES: tuple[MemberState, ...] = get_args(MemberState)
_ABSENT = ("LEFT", "QUARANTINED")


@dataclass(frozen=True)
class Enrolled:
    """What is known about a member before it joins; fixed for the run."""

    name: str
    node: int
    data_size: int = 0
    label_counts: tuple[int, ...] = ()
    fingerprint: str = ""  # SHA-256 of its certificate; empty where the transport has none


@dataclass(frozen=True)
class Member:
    """The current state of a member."""

    enrolled: Enrolled
    state: MemberState = "ENROLLED"
    incarnation: int = 0  # of the newest process of this member, counted by the coordinator
    address: str = ""
    fingerprint: str = ""  # of the certificate used to join; empty: no certificates
    session: bool = False  # whether messages can be sent to it
    disk_full: bool = False
    note: str = ""  # why it is in this state
    last_round: int = 0  # last round that it had started when it joined

    @property
    def name(self) -> str:
        """Name from the certificate."""
        return self.enrolled.name

    @property
    def node(self) -> int:
        """Number of the node."""
        return self.enrolled.node


class Members:
    """All members by name. A method that changes one returns its new state; None: no change."""

    def __init__(self, enrolled: Iterable[Enrolled], timeouts: Timeouts) -> None:
        self._timeouts = timeouts
        self._by_name = {e.name: Member(e) for e in enrolled}
        self._names = {m.node: m.name for m in self._by_name.values()}
        self._last_message_s = dict.fromkeys(self._by_name, 0.0)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_name.values())

    def get(self, name: str) -> Member | None:
        """Return a member by name."""
        return self._by_name.get(name)

    def of_node(self, node: int) -> Member | None:
        """Return a member by node."""
        name = self._names.get(node)
        return None if name is None else self._by_name[name]

    def restore(self, line: "WorkerLine") -> None:
        """Restore a member from the ledger; after a restart no member has a session."""
        member = self._by_name.get(line.name)
        if member is None:
            return
        state = next(s for s in _STATES if s == line.state)
        state = "SUSPECT" if state == "JOINED" else state
        self._set(
            replace(
                member,
                state=state,
                incarnation=line.incarnation,
                address=line.address,
                note=line.note,
            )
        )

    def start_timeouts(self, now_s: float) -> None:
        """Measure the silence of all members from now on."""
        self._last_message_s = dict.fromkeys(self._by_name, now_s)

    def postpone_timeouts(self, seconds: float) -> None:
        """Do not count these seconds as silence, because the coordinator did not listen."""
        for name in self._last_message_s:
            self._last_message_s[name] += seconds

    def spare_absent(self, now_s: float) -> None:
        """Do not count silence of members without a session: they had no time to join again."""
        for member in self._by_name.values():
            if not member.session:
                self._last_message_s[member.name] = now_s

    def join(self, name: str, join: Join, now_s: float, fingerprint: str = "") -> Member:
        """Register that a member joins, for the first time or again.

        A process that does not state the incarnation of the newest one is a new process. It may
        state one that was never given: the ledger may have been restored from a backup.
        """
        self._last_message_s[name] = now_s
        member = self._by_name[name]
        is_newest = 0 < join.incarnation == member.incarnation
        return self._set(
            replace(
                member,
                state="JOINED",
                incarnation=member.incarnation + (not is_newest),
                address=join.address,
                fingerprint=fingerprint,
                session=True,
                note="",
                last_round=join.last_round,
            )
        )

    def message_received(
        self, name: str, now_s: float, disk_full: bool | None = None
    ) -> Member | None:
        """Register a message of a member that has a session."""
        self._last_message_s[name] = now_s
        member = self._by_name[name]
        if disk_full is not None and disk_full != member.disk_full:
            member = self._set(replace(member, disk_full=disk_full))
        if member.state != "SUSPECT":
            return None
        return self._set(replace(member, state="JOINED", note="active again"))

    def disconnected(self, name: str) -> Member | None:
        """Register that the session of a member broke."""
        member = self._by_name[name]
        if not member.session:
            return None
        without = self._set(replace(member, session=False))
        if member.state != "JOINED":
            return None
        return self._set(replace(without, state="SUSPECT", note="session broke"))

    def leave(self, name: str, note: str) -> Member | None:
        """Register that a member leaves on purpose."""
        member = self._by_name[name]
        if member.state in ("ENROLLED", *_ABSENT):
            return None
        return self._set(replace(member, state="LEFT", session=False, note=note))

    def quarantine(self, name: str, note: str) -> Member | None:
        """Exclude a member until an operator readmits it."""
        member = self._by_name[name]
        if member.state == "QUARANTINED":
            return None
        return self._set(replace(member, state="QUARANTINED", session=False, note=note))

    def readmit(self, name: str, note: str) -> Member | None:
        """Allow an excluded member to join again."""
        member = self._by_name[name]
        if member.state != "QUARANTINED":
            return None
        return self._set(replace(member, state="LEFT", note=note))

    def apply_timeouts(self, now_s: float) -> list[Member]:
        """Change the state of members that are silent for too long; return those members."""
        changed = []
        soonest_s = min(self._timeouts.suspect_s, self._timeouts.dead_s)
        for name, last_s in self._last_message_s.items():
            if now_s - last_s < soonest_s:
                continue
            member = self._by_name[name]
            state = self._state_after_silence(member, now_s - last_s)
            if state != member.state:
                session = member.session and state != "DEAD"
                note = f"silent for {now_s - last_s:.1f} s"
                changed.append(self._set(replace(member, state=state, session=session, note=note)))
        return changed

    def silence_s(self, name: str, now_s: float) -> float:
        """Return the seconds since the last message of a member."""
        return now_s - self._last_message_s[name]

    def _state_after_silence(self, member: Member, silence_s: float) -> MemberState:
        if member.state not in ("JOINED", "SUSPECT"):
            return member.state
        if silence_s >= self._timeouts.dead_s:
            return "DEAD"
        return "SUSPECT" if silence_s >= self._timeouts.suspect_s else member.state

    def _set(self, member: Member) -> Member:
        self._by_name[member.name] = member
        return member

    def roster(self) -> tuple[Peer, ...]:
        """Return the peers that may pull and be pulled from: all that are not excluded.

        Members that have not joined yet are included without an address. A worker can then accept
        their pulls before it knows that they joined.
        """
        return tuple(
            Peer(m.name, m.node, m.address, m.fingerprint or m.enrolled.fingerprint)
            for m in self._by_name.values()
            if m.state not in _ABSENT
        )
