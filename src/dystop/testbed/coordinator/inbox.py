"""Messages of members: which are refused, and which part of the machine applies the others.

A message is refused if its sender sends too many, has not joined, or says what cannot be true. If
it claims that a newer coordinator exists, it waits until the ledger has been asked.
"""

from dataclasses import dataclass

from dystop.testbed.coordinator.conduct.accusations import Accusations
from dystop.testbed.coordinator.conduct.misbehaviour import RateLimit
from dystop.testbed.coordinator.conduct.quarantine import EpochClaims, Quarantine, claimed_epoch
from dystop.testbed.coordinator.joining import Joining
from dystop.testbed.coordinator.members import Member
from dystop.testbed.coordinator.message_check import implausible
from dystop.testbed.coordinator.records import Records
from dystop.testbed.coordinator.rounds import Rounds
from dystop.testbed.coordinator.state import CoordinatorState
from dystop.testbed.events import LookUpEpoch, MessageFromMember
from dystop.testbed.names import OBSERVER
from dystop.testbed.protocol.messages import (
    Complaint,
    Heartbeat,
    Incident,
    Join,
    Judged,
    Leave,
    NotTestable,
    Reject,
    Report,
    ReportAck,
    Scored,
    Stop,
    ToCoordinator,
)

IMPLAUSIBLE = "the join names numbers or mail that this run cannot have; delete its folder"


@dataclass
class Inbox:
    """Checks the messages of members and passes them on."""

    state: CoordinatorState
    rounds: Rounds
    records: Records
    joining: Joining
    quarantine: Quarantine
    epoch_claims: EpochClaims
    accusations: Accusations
    rate_limit: RateLimit
    stop: Stop | None = None  # the answer to a member that joins while the run stops

    def on_message(self, event: MessageFromMember) -> None:
        """Check a message, and let the part of the machine that it concerns apply it."""
        state, name, message = self.state, event.name, event.message
        if not self.rate_limit.take(name, state.at_s):
            return
        if isinstance(message, Join):
            self._on_join(event, message)
            return
        member = state.members.get(name)
        if self.epoch_claims.needs_lookup(member, message):
            state.pending.immediate.append(LookUpEpoch(event))
            return
        if member is None or not member.session:
            state.send_now(name, Complaint("not_joined", "join first"))
            return
        if self._refuse_implausible(member, message):
            return
        full = message.disk_full if isinstance(message, Heartbeat) else None
        state.write_member(state.members.message_received(name, state.at_s, full))
        self._on_member_message(member, message)

    def _refuse_implausible(self, member: Member, message: ToCoordinator) -> bool:
        """Give the sender of a message that cannot be true a strike; return whether it got one."""
        setup, t = self.state.setup, self.state.control.t
        order, passed_s = None, None
        if isinstance(message, Report):
            order = self.rounds.order_of(member.node, message.round)
            passed_s = self.rounds.since_opened_s(message.round)
        wrong = implausible(setup.fleet, t, member.node, message, order, passed_s, setup.least_loss)
        if wrong:
            word = type(message).__name__.lower()
            self.joining.roster_due |= self.quarantine.false_message(member, f"{word}: {wrong}")
        return bool(wrong)

    def claim_refuted(self, claim: MessageFromMember) -> None:
        """Handle a message whose sender claims to obey a newer coordinator that does not exist."""
        member, epoch = self.state.members.get(claim.name), claimed_epoch(claim.message)
        if member is not None and self.epoch_claims.needs_lookup(member, claim.message):
            self.joining.roster_due |= self.epoch_claims.refute(member, epoch)
        if member is not None and epoch <= self.state.epoch:
            self.on_message(claim)
            self.rounds.resend(member.node)  # it may have refused an order of the old epoch

    def _on_member_message(self, member: Member, message: ToCoordinator) -> None:
        state = self.state
        if isinstance(message, Heartbeat):
            state.send_now(
                member.name, Heartbeat(message.seq, state.epoch, last_round=state.control.t)
            )
        elif isinstance(message, Report):
            self._on_report(member, message)
        elif isinstance(message, Scored | NotTestable) and member.name == OBSERVER:
            self.records.on_answer(message)
        elif isinstance(message, Incident):
            self._on_incident(member, message)
        elif isinstance(message, Judged) and member.name == OBSERVER:
            self.joining.roster_due |= self.accusations.answered(message)
        elif isinstance(message, Leave):
            state.write_member(state.members.leave(member.name, message.text))
            self.joining.roster_due = True

    def _on_incident(self, reporter: Member, incident: Incident) -> None:
        """Record what a member saw; put a worker on trial that floods several others.

        They refuse its pulls, also those of its orders, so a round would wait long for it.
        """
        state, node = self.state, incident.node
        state.incidents.reported(reporter, incident)
        guards, is_worker = state.params.guards, node < state.setup.fleet.workers
        if incident.kind != "flood" or not is_worker:
            return
        since_s = state.at_s - guards.window_s
        if state.incidents.reporters(node, "flood", since_s) >= guards.reporters:
            state.failures.put_on_trial(node, state.at_s)

    def _on_report(self, member: Member, report: Report) -> None:
        state = self.state
        effect, accusations = self.rounds.apply_report(member.node, report)
        if effect in ("early", "strange"):
            return
        if effect != "known":
            state.write(self.rounds.report_line(member.node, report, effect))
        state.send_after_commit(member.name, ReportAck(report.round, report.kind))
        for accusation in accusations:
            self.accusations.add(accusation)

    def _on_join(self, event: MessageFromMember, join: Join) -> None:
        state, member = self.state, self.state.members.get(event.name)
        refused = self.joining.refusal(event, join)
        if refused is not None or member is None:
            self.joining.refuse(event.name, refused or Reject("unknown", "not enrolled"))
        elif self._refuse_implausible(member, join):
            self.joining.refuse(event.name, Reject("implausible", IMPLAUSIBLE))
        elif self.epoch_claims.needs_lookup(member, join):
            state.pending.immediate.append(LookUpEpoch(event))
        elif self.stop is not None:
            state.send_now(event.name, self.stop)
        else:
            self.joining.admit(member, join, event.fingerprint)
