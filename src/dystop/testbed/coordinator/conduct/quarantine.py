"""Exclude members and readmit them: quarantine, revoked certificates, pardons, false epoch claims.

A worker whose models several others and the observer refuse, or that makes false claims, stays out
until an operator pardons it. A worker whose certificate was revoked stays out until it has a new
one. The old certificate is refused on every session.

A member may claim that it has obeyed a newer coordinator. Two coordinators must not plan at once,
so a replaced one has to stop. A newer coordinator raises the epoch in the ledger before it sends
anything. The process therefore looks up the epoch there (`LookUpEpoch`). If the ledger confirms the
claim, this coordinator stops. If it does not, either the claim is false, or an operator restored an
old copy of the ledger. One member alone cannot show which. Its claim costs it a strike, and the
coordinator takes an epoch above the claimed one, so that an honest member obeys it again. An honest
member never needs to repeat its claim; one that does is quarantined.
"""

from typing import Literal

from dystop.testbed.coordinator.members import Member
from dystop.testbed.coordinator.state import CoordinatorState
from dystop.testbed.events import CloseSession, ConfirmPardon
from dystop.testbed.ledger.tables import MetaLine
from dystop.testbed.protocol.messages import ExecuteAck, Heartbeat, Join, Reject, ToCoordinator

REVOKED = "its certificate was revoked"
MAX_EPOCH_LEAP = 1_000_000  # no honest member is further ahead: a start adds 1, a restore 1000
FALSE_EPOCH = "claims of a newer coordinator, of which the ledger knows nothing"
FALSE_MESSAGE = "messages that cannot be true"
Sanction = Literal["expel", "pardon", "readmit", "strike"]


class Quarantine:
    """Excludes and readmits members. `apply_requests` executes the requests of operators."""

    def __init__(self, state: CoordinatorState) -> None:
        self._state = state
        self._requests: list[tuple[Sanction, str]] = []
        self._revoked: set[str] = set()  # fingerprints of revoked certificates

    def request(self, sanction: Sanction, name: str) -> None:
        """Request to expel (revoked), pardon, readmit (new certificate) or strike a member."""
        self._requests.append((sanction, name))

    def take_over(self, other: "Quarantine") -> None:
        """Continue with the requests and the revoked certificates of another machine."""
        self._requests, self._revoked = [*other._requests], {*other._revoked}

    def apply_requests(self) -> bool:
        """Apply all requested sanctions; return whether the roster has changed."""
        changed = False
        while self._requests:
            changed |= self._apply(*self._requests.pop(0))
        return changed

    def _apply(self, sanction: Sanction, name: str) -> bool:
        state, member = self._state, self._state.members.get(name)
        if sanction == "pardon":
            state.pending.after_commit.append(ConfirmPardon(name))  # even without a strike
        if member is None:
            return False
        if sanction == "expel":
            self._revoked |= {member.fingerprint} - {""}
            return self._exclude(member, Reject("revoked", REVOKED))
        if sanction == "strike":
            return self.false_message(member, "a message that raised an error; see the log")
        if sanction == "readmit" and member.note != REVOKED:
            return False
        self._readmit(member, pardoned=sanction == "pardon")
        return False  # the roster names the member when it joins again

    def _readmit(self, member: Member, *, pardoned: bool) -> None:
        state = self._state
        if member.state != "QUARANTINED":
            return
        if pardoned:
            state.strikes.clear(member.node)
            state.observations.clear_exclusions(member.node)
            state.write_state()
        note = "pardoned" if pardoned else "a new certificate was issued"
        state.write_member(state.members.readmit(member.name, note))

    def false_message(self, member: Member, what: str) -> bool:
        """Register a message that cannot be true; return whether the roster has changed."""
        state = self._state
        state.incidents.record(member.node, "bad_message", what)
        consequence = state.strikes.false_claim(member.node, state.at_s)
        state.write_state()
        count = state.params.guards.strikes
        return consequence == "quarantine" and self.quarantine(member, f"{count} {FALSE_MESSAGE}")

    def quarantine(self, member: Member, reason: str) -> bool:
        """Exclude a member until it is pardoned; return whether the roster has changed."""
        return self._exclude(member, Reject("quarantined", reason))

    def _exclude(self, member: Member, reject: Reject) -> bool:
        state, had_session = self._state, member.session
        if member.state == "QUARANTINED":
            return False
        state.write_member(state.members.quarantine(member.name, reject.text))
        if had_session:
            state.send_after_commit(member.name, reject)
            state.pending.after_commit.append(CloseSession(member.name))
        return True

    def certificate_refusal(self, fingerprint: str) -> Reject | None:
        """Return the answer to a join with a revoked certificate."""
        return Reject("revoked", REVOKED) if fingerprint in self._revoked else None


def claimed_epoch(message: ToCoordinator) -> int:
    """Return the epoch that a member claims to have obeyed; 0 if the message contains none."""
    return message.epoch if isinstance(message, Join | Heartbeat | ExecuteAck) else 0


class EpochClaims:
    """Handles claims of a newer epoch."""

    def __init__(self, state: CoordinatorState, quarantine: Quarantine) -> None:
        self._state, self._quarantine = state, quarantine

    def needs_lookup(self, member: Member | None, message: ToCoordinator) -> bool:
        """Return whether the ledger must be read before this message is handled."""
        known = member is not None and member.state != "QUARANTINED"
        return known and claimed_epoch(message) > self._state.epoch

    def refute(self, member: Member, epoch: int) -> bool:
        """Handle a claim that the ledger does not confirm; return whether the roster changed."""
        state = self._state
        consequence = state.strikes.false_claim(member.node, state.at_s)
        state.write_state()
        if consequence == "quarantine":
            count = state.params.guards.strikes
            return self._quarantine.quarantine(member, f"{count} {FALSE_EPOCH}")
        if epoch <= state.epoch + MAX_EPOCH_LEAP:
            state.epoch = epoch + 1
            state.write(MetaLine("epoch", str(state.epoch)))
        return False
