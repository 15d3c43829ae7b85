"""Members that say they have obeyed a newer coordinator: is it true?

Two coordinators must not plan at once, so one that was replaced has to go. A newer one has raised
the epoch in the ledger before anybody could hear of it: the shell looks there (`Consult`), and if
the ledger agrees, this coordinator goes. If it does not, the member lies, or the ledger is older
than what the member has seen, because somebody put an old copy in its place. One voice cannot tell
these apart, and need not: the claim costs its member a strike, and the coordinator takes an epoch
above the claimed one, so that an honest member obeys it again. That one never needs to repeat
itself; who does is put in quarantine.
"""

from dystop.runtime.coordinator.core import Core
from dystop.runtime.coordinator.members import Member
from dystop.runtime.coordinator.sanctions import Sanctions
from dystop.runtime.ledger.tables import MetaLine
from dystop.runtime.wire.messages import ExecuteAck, Heartbeat, Join, ToCoordinator

LEAP = 1_000_000  # no honest member is so far ahead: starts count one each, restores a thousand
FALSE_EPOCH = "claims of a newer coordinator, of which the ledger knows nothing"


def claimed(message: ToCoordinator) -> int:
    """The epoch that a member says it has obeyed; 0 where it says nothing about it."""
    return message.epoch if isinstance(message, Join | Heartbeat | ExecuteAck) else 0


class Claims:
    """Judges claims that the ledger does not bear out."""

    def __init__(self, core: Core, sanctions: Sanctions) -> None:
        """Nobody has claimed anything yet."""
        self._core, self._sanctions = core, sanctions

    def is_doubtful(self, member: Member | None, message: ToCoordinator) -> bool:
        """Whether the ledger must be asked before this message is heard."""
        known = member is not None and member.state != "QUARANTINED"
        return known and claimed(message) > self._core.epoch

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
