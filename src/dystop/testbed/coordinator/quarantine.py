"""Members that misbehave: quarantine, epoch claims and rate limits."""

from typing import Literal

from dystop.testbed.coordinator.core import Core
from dystop.testbed.coordinator.members import Member
from dystop.testbed.events import Hang, Pardoned
from dystop.testbed.ledger.tables import MetaLine
from dystop.testbed.params import Limits
from dystop.testbed.protocol.messages import (
    ExecuteAck,
    Heartbeat,
    Join,
    Reject,
    ToCoordinator,
)

# MERGED: Who is sent away, and who may come back: quarantine, revoked certificates, pardons. A
#   worker whose models several others refuse, or that lies to the coordinator (`claims`), stays
#   out until an operator pardons it. One whose certificate was revoked stays out until it has a
#   new one; what it then shows must not be the old certificate, on whatever session.


REVOKED = "its certificate was revoked"
Measure = Literal["expel", "pardon", "readmit"]


class Quarantine:
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


# MERGED: Members that say they have obeyed a newer coordinator: is it true? Two coordinators must
#   not plan at once, so one that was replaced has to go. A newer one has raised the epoch in the
#   ledger before anybody could hear of it: the shell looks there (`Consult`), and if the ledger
#   agrees, this coordinator goes. If it does not, the member lies, or the ledger is older than
#   what the member has seen, because somebody put an old copy in its place. One voice cannot tell
#   these apart, and need not: the claim costs its member a strike, and the coordinator takes an
#   epoch above the claimed one, so that an honest member obeys it again. That one never needs to
#   repeat itself; who does is put in quarantine.


LEAP = 1_000_000  # no honest member is so far ahead: starts count one each, restores a thousand
FALSE_EPOCH = "claims of a newer coordinator, of which the ledger knows nothing"


def claimed_epoch(message: ToCoordinator) -> int:
    """The epoch that a member says it has obeyed; 0 where it says nothing about it."""
    return message.epoch if isinstance(message, Join | Heartbeat | ExecuteAck) else 0


class EpochClaims:
    """Judges claims that the ledger does not bear out."""

    def __init__(self, core: Core, sanctions: Quarantine) -> None:
        """Nobody has claimed anything yet."""
        self._core, self._sanctions = core, sanctions

    def is_doubtful(self, member: Member | None, message: ToCoordinator) -> bool:
        """Whether the ledger must be asked before this message is heard."""
        known = member is not None and member.state != "QUARANTINED"
        return known and claimed_epoch(message) > self._core.epoch

    def judge(self, member: Member, epoch: int) -> bool:
        """The ledger knows nothing of it; whether the member was sent away for it."""
        core = self._core
        verdict = core.trust.lied(member.node, core.at_s)
        core.keep_state()
        if verdict == "quarantine":
            count = core.params.guards.strikes
            return self._sanctions.quarantine(member, f"{count} {FALSE_EPOCH}")
        if epoch <= core.epoch + LEAP:
            core.epoch = epoch + 1
            core.keep(MetaLine("epoch", str(core.epoch)))
        return False


# MERGED: How much a peer may say: no single one keeps the coordinator busy.


BURST = 5.0  # seconds' worth of messages that a peer may send at once
PER_ORDER = 4.0  # messages that an order entitles to


class RateLimit:
    """How many messages each peer may still send; orders and joins entitle to more."""

    def __init__(self, limits: Limits) -> None:
        self._rate = float(limits.messages_per_s)
        self._left: dict[str, tuple[float, float]] = {}

    def spend(self, name: str, at_s: float) -> bool:
        """Whether one more message is taken."""
        left, then_s = self._left.get(name, (BURST * self._rate, at_s))
        left = min(BURST * self._rate, left + (at_s - then_s) * self._rate)
        self._left[name] = (max(left - 1.0, 0.0), at_s)
        return left >= 1.0

    def grant(self, name: str) -> None:
        """A few more, for what is expected of it."""
        left, then_s = self._left.get(name, (BURST * self._rate, 0.0))
        self._left[name] = (min(left + PER_ORDER, BURST * self._rate), then_s)
