"""Who is sent away, and who may come back: quarantine, revoked certificates, pardons.

A worker whose models several others refuse, or that lies to the coordinator (`claims`), stays out
until an operator pardons it. One whose
certificate was revoked stays out until it has a new one; what it then shows must not be the old
certificate, on whatever session.
"""

from typing import Literal

from dystop.runtime.coordinator.core import Core
from dystop.runtime.coordinator.members import Member
from dystop.runtime.events import Hang, Pardoned
from dystop.runtime.wire.messages import Reject

REVOKED = "its certificate was revoked"
Measure = Literal["expel", "pardon", "readmit"]


class Sanctions:
    """What operators want done with members; `carry_out` does it at the next event."""

    def __init__(self, core: Core) -> None:
        """Nobody is wanted yet."""
        self._core = core
        self._asked: list[tuple[Measure, str]] = []
        self._barred: set[str] = set()  # fingerprints of certificates that were sent away

    def ask(self, measure: Measure, name: str) -> None:
        """Expel (revoked), pardon (whatever it did), or readmit (it has a new certificate)."""
        self._asked.append((measure, name))

    def carry_out(self) -> bool:
        """Do what was asked for; whether the roster has changed."""
        changed = False
        while self._asked:
            changed |= self._do(*self._asked.pop(0))
        return changed

    def _do(self, measure: Measure, name: str) -> bool:
        core, member = self._core, self._core.members.get(name)
        if measure == "pardon":
            core.out.then.append(Pardoned(name))  # also where there is nothing to forgive
        if member is None:
            return False
        if measure == "expel":
            self._barred |= {member.fingerprint} - {""}
            return self._send_away(member, Reject("revoked", REVOKED))
        if measure == "readmit" and member.note != REVOKED:
            return False
        return self._readmit(member, forgive=measure == "pardon")

    def _readmit(self, member: Member, *, forgive: bool) -> bool:
        core = self._core
        if member.state != "QUARANTINED":
            return False
        if forgive:
            core.trust.forgive(member.node)
            core.probe.forgive(member.node)
            core.keep_state()
        note = "pardoned" if forgive else "a new certificate was issued"
        core.note(core.members.readmit(member.name, note))
        return False  # rosters name it when it comes

    def shut_out(self, node: int) -> bool:
        """Too many have refused its models; whether the roster has changed."""
        member, guards = self._core.members.of_node(node), self._core.params.guards
        why = f"{guards.strikes} refused models from {guards.reporters} workers"
        return member is not None and self.quarantine(member, why)

    def quarantine(self, member: Member, why: str) -> bool:
        """Send a member away until it is pardoned; whether the roster has changed."""
        return self._send_away(member, Reject("quarantined", why))

    def _send_away(self, member: Member, reject: Reject) -> bool:
        core, had_session = self._core, member.session
        if member.state == "QUARANTINED":
            return False
        core.note(core.members.quarantine(member.name, reject.text))
        if had_session:
            core.tell_then(member.name, reject)
            core.out.then.append(Hang(member.name))
        return True

    def refusal(self, fingerprint: str) -> Reject | None:
        """Whether somebody comes with a certificate that was sent away."""
        return Reject("revoked", REVOKED) if fingerprint in self._barred else None
