"""Members join: who is refused, who is admitted, who must be present, and the roster."""

import math
from dataclasses import dataclass, field

from dystop.testbed.coordinator.conduct.misbehaviour import RateLimit
from dystop.testbed.coordinator.conduct.quarantine import Quarantine
from dystop.testbed.coordinator.members import Member
from dystop.testbed.coordinator.records import Records
from dystop.testbed.coordinator.rounds import Rounds
from dystop.testbed.coordinator.setup import join_refusal
from dystop.testbed.coordinator.state import CoordinatorState
from dystop.testbed.events import CloseSession, MessageFromMember
from dystop.testbed.names import OBSERVER, SERVER
from dystop.testbed.protocol.messages import Join, JoinOk, Reject, Roster

ROSTER_S = 0.5  # least pause between two rosters, unless an order needs a newer one


@dataclass
class Joining:
    """Refuses and admits members, waits for a quorum, and tells all members who the others are."""

    state: CoordinatorState
    rounds: Rounds
    records: Records
    quarantine: Quarantine
    rate_limit: RateLimit
    is_new_run: bool
    expected: int = 0  # members that took part before a restart
    roster_due: bool = False
    waiting_since_s: float = 0.0  # when the wait for members started
    _has_quorum: bool = field(default=False, init=False)
    _roster_s: float = field(default=-math.inf, init=False)

    # Joins --------------------------------------------------------------------------------------

    def refusal(self, event: MessageFromMember, join: Join) -> Reject | None:
        """Return why a join is refused, and note it for the operator; None: it is not."""
        state, member = self.state, self.state.members.get(event.name)
        refused = self.quarantine.certificate_refusal(event.fingerprint)
        refused = refused or join_refusal(state.setup, member, join, event.remote)
        if refused is not None and member is not None and member.state != "QUARANTINED":
            text = f"cannot join: {refused.code}: {refused.text}"
            state.incidents.record(member.node, "refused", text)
        return refused

    def refuse(self, name: str, refused: Reject) -> None:
        """Tell a member why it cannot join, and close its session."""
        self.state.send_now(name, refused)
        self.state.pending.immediate.append(CloseSession(name))

    def admit(self, member: Member, join: Join, fingerprint: str) -> None:
        """Make a member part of the run, and send its unanswered order again."""
        state, name = self.state, member.name
        if member.state in ("ENROLLED", "LEFT"):
            self.waiting_since_s = state.at_s  # others may join soon, too
        known = (member.address, member.fingerprint) == (join.address, fingerprint)
        self.roster_due |= not known or member.state in ("ENROLLED", "LEFT")
        joined = state.members.join(name, join, state.at_s, fingerprint)
        state.write_member(joined)
        restarted = joined.incarnation != member.incarnation
        warm = state.setup.mechanism.capabilities().warm_start
        warm = warm and member.node < state.setup.fleet.workers
        state.worker_joined(member.node, join, restarted, warm)
        state.exchange_from_s[member.node] = state.at_s
        state.send_after_commit(name, self._welcome(joined, warm_start=warm))
        self.rate_limit.grant(name)
        self.rounds.resend(member.node)
        if name == OBSERVER:
            self.records.evaluations.observer_joined()

    def _welcome(self, joined: Member, *, warm_start: bool) -> JoinOk:
        state = self.state
        return JoinOk(
            run=state.setup.run,
            epoch=state.epoch,
            round=state.control.t,
            heartbeat_s=state.params.timeouts.heartbeat_s,
            warm_start=warm_start,
            peers=state.members.roster(),
            incarnation=joined.incarnation,
        )

    # Who is present -----------------------------------------------------------------------------

    def are_enough(self) -> bool:
        """Return whether enough members are present for a round; a quorum is needed once."""
        state, n = self.state, self.state.setup.fleet.workers
        if state.setup.fleet.server:
            server = state.members.get(SERVER)
            if server is None or server.state != "JOINED" or server.disk_full:
                return False
        present = sum(m.state == "JOINED" and m.node < n for m in state.members)
        if present == 0:
            return False
        self._has_quorum = self._has_quorum or self._is_quorum(present, n)
        return self._has_quorum

    def _is_quorum(self, present: int, workers: int) -> bool:
        """Return whether enough workers are present for the first round after a start.

        A new run waits for `quorum`; a restarted one for half of the members it had before.
        """
        state = self.state
        waited = state.at_s - self.waiting_since_s >= state.params.timeouts.gather_s
        if not self.is_new_run:
            return waited or 2 * present >= self.expected
        observer = state.members.get(OBSERVER)
        observed = observer is None or not state.params.observer or observer.state == "JOINED"
        return waited or (observed and present >= state.params.quorum * workers)

    def send_roster(self, *, force: bool) -> None:
        """Send the roster to all members if it has changed; at most every `ROSTER_S` seconds."""
        state = self.state
        too_soon = state.at_s - self._roster_s < ROSTER_S
        if not self.roster_due or (too_soon and not force):
            return
        self.roster_due, self._roster_s = False, state.at_s
        roster = Roster(state.epoch, state.members.roster())
        for member in state.members:
            if member.session:
                state.send_after_commit(member.name, roster)
