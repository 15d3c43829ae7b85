"""The coordinator as a state machine (alg:dystop): events in, actions out, no clock, no socket.

A driver calls `handle`, or `handle_all` for several events at once, which costs one commit, and
executes the actions in their order. It reports a refused commit as `CommitFailed` before any
other event. `now_s` is monotonic. A machine that is built from a ledger continues where the last
one stopped, under an epoch of its own.

After the events, `_advance` does what they made possible, in this order: detect silent members,
close the open round, publish records, finish the run or open the next round, send the roster.
"""

from collections.abc import Sequence

from dystop.errors import DystopError, RunFolderError
from dystop.testbed.coordinator.conduct.accusations import Accusations
from dystop.testbed.coordinator.conduct.misbehaviour import RateLimit
from dystop.testbed.coordinator.conduct.quarantine import EpochClaims, Quarantine, Sanction
from dystop.testbed.coordinator.inbox import Inbox
from dystop.testbed.coordinator.joining import Joining
from dystop.testbed.coordinator.message_check import most_bytes
from dystop.testbed.coordinator.records import Records
from dystop.testbed.coordinator.rounds import Rounds
from dystop.testbed.coordinator.setup import CoordinatorSetup
from dystop.testbed.coordinator.state import CommitBatcher, CoordinatorState, PendingActions
from dystop.testbed.events import (
    CloseSession,
    CommitFailed,
    CoordinatorAction,
    CoordinatorEvent,
    EpochFound,
    FinishRun,
    MemberDisconnected,
    MemberIncident,
    MessageFromMember,
    RestartFromLedger,
    SendToMember,
)
from dystop.testbed.ledger.tables import STANDS, MetaLine, Restored, read_blob
from dystop.testbed.names import COORDINATOR, OBSERVER
from dystop.testbed.protocol.codec import decode
from dystop.testbed.protocol.messages import Report, Stop

REPLACED = "a newer coordinator is in charge"
REPLACED_CODE = 3
INTERRUPTED_CODE = 130
STOP_S = 5.0  # time that the members have to leave at the end
PAUSE_S = 2.0  # a driver calls the machine several times a second


class CoordinatorMachine:
    """Plans rounds, keeps the control state, and commits every promise to the ledger."""

    def __init__(self, setup: CoordinatorSetup, restored: Restored) -> None:
        """Start, or continue from what the ledger holds (`ledger.tables.restore`)."""
        self.state = CoordinatorState(setup, restored.epoch)
        self.rounds, self.records = Rounds(self.state), Records(self.state)
        self._commits = CommitBatcher()
        self._rate_limit = RateLimit(setup.params.limits)
        self._quarantine = Quarantine(self.state)
        self._accusations = Accusations(self.state, self._quarantine)
        self._start_s: float | None = None  # machine time of the first event
        self._offset_s = restored.at_s
        self._joining = Joining(
            self.state,
            self.rounds,
            self.records,
            self._quarantine,
            self._rate_limit,
            is_new_run=restored.state is None,
            waiting_since_s=restored.at_s,
        )
        self._inbox = Inbox(
            self.state,
            self.rounds,
            self.records,
            self._joining,
            self._quarantine,
            EpochClaims(self.state, self._quarantine),
            self._accusations,
            self._rate_limit,
        )
        self._stopping_since_s: float | None = None
        self._finished = False
        self._interrupted = ""
        self._sender = ""  # the member whose message is being handled
        self._restore(restored)

    @property
    def epoch(self) -> int:
        """Number of this coordinator; workers obey only the highest epoch they have seen."""
        return self.state.epoch

    @property
    def round(self) -> int:
        """The round that is open or opens next."""
        return self.state.control.t

    def _restore(self, restored: Restored) -> None:
        """Restore the state, the open round, and the reports that arrived after both."""
        state = self.state
        if restored.run not in ("", state.setup.run):
            raise RunFolderError(
                f"the ledger belongs to run {restored.run[:16]}..., not to run "
                f"{state.setup.run[:16]}...; choose another folder or resume that run"
            )
        state.at_s = restored.at_s
        if restored.state is not None:
            state.stop_clock(restored.stands_s)
        for worker in restored.workers:
            state.members.restore(worker)
            was_present = worker.state in ("JOINED", "SUSPECT")
            self._joining.expected += was_present and worker.name != OBSERVER
        if restored.state is not None:
            state.restore(restored.state)
        if restored.memories is not None:
            state.memories = read_blob(restored.memories)
        state.incidents.restore(restored.incidents)
        self.rounds.restore(restored)
        self.records.restore(restored)
        counted = state.seq
        for line in restored.reports:
            report = decode(line.json.encode(), "coordinator")
            assert isinstance(report, Report)
            state.at_s = line.at_s
            if line.seq <= counted:
                self.rounds.mark_answered(line.node, report)
            else:
                self.rounds.apply_report(line.node, report)
                state.seq = line.seq
        state.at_s, state.pending = restored.at_s, PendingActions()

    def interrupt(self, reason: str) -> None:
        """End the run at the next event; the ledger does not mark it as finished."""
        self._interrupted = reason

    def sanction(self, sanction: Sanction, name: str) -> None:
        """Expel, pardon or readmit a member at the next event."""
        self._quarantine.request(sanction, name)

    def most_bytes(self, kind: str) -> int:
        """Return the largest size of a message of this kind; callable from any thread."""
        return most_bytes(kind, self.state.setup.fleet, self.rounds.most_pulls)

    # Events -------------------------------------------------------------------------------------

    def handle(self, event: CoordinatorEvent, now_s: float) -> list[CoordinatorAction]:
        """Handle one event; return the actions."""
        return self.handle_all([event], now_s)

    def handle_all(
        self, events: Sequence[CoordinatorEvent], now_s: float
    ) -> list[CoordinatorAction]:
        """Handle the events of one moment; return the actions, with one commit at most.

        An unexpected error may leave the state half changed. The machine then ends, with a
        `RestartFromLedger` as its only action. An error of the mechanism is raised.
        """
        if self._finished:
            return []
        self._sender = ""
        try:
            return self._handle_all(events, now_s)
        except DystopError:
            raise
        except Exception as error:
            self._finished = True
            return [RestartFromLedger(error, self._sender)]

    def _handle_all(
        self, events: Sequence[CoordinatorEvent], now_s: float
    ) -> list[CoordinatorAction]:
        self.state.pending = PendingActions()
        self._set_time(now_s)
        self._joining.roster_due |= self._quarantine.apply_requests()
        for event in events:
            self._sender = _sender_of(event)
            self._on_event(event)
        self._sender = ""
        self._advance()
        return self._commits.actions(self.state)

    def continue_after(self, other: "CoordinatorMachine", restart: RestartFromLedger) -> None:
        """Take over what operators asked of a machine that ended with an unexpected error."""
        self._interrupted = other._interrupted
        self._quarantine.take_over(other._quarantine)
        if restart.name:
            self._quarantine.request("strike", restart.name)

    def _set_time(self, now_s: float) -> None:
        state = self.state
        if self._start_s is None:
            self._start_s = now_s
            state.members.start_timeouts(self._offset_s)
            state.write(
                MetaLine("run", state.setup.run),
                MetaLine("queue_bound", repr(state.setup.mechanism.capabilities().queue_bound)),
                MetaLine("away", state.params.away),
            )
            if state.stands_since_s is not None:
                state.write(MetaLine(STANDS, repr(state.stands_since_s)))
        at_s = self._offset_s + max(now_s - self._start_s, 0.0)
        if at_s - state.at_s > PAUSE_S:  # this process was stopped: nobody else was late
            state.members.postpone_timeouts(at_s - state.at_s)
            self.rounds.postpone_deadline(at_s - state.at_s)
        state.at_s = at_s

    def _on_event(self, event: CoordinatorEvent) -> None:
        state = self.state
        if isinstance(event, CommitFailed):
            self._commits.failed(event.commit, state.at_s)
        elif isinstance(event, MessageFromMember):
            self._inbox.on_message(event)
        elif isinstance(event, EpochFound):
            self._on_epoch_found(event)
        elif isinstance(event, MemberDisconnected) and state.members.get(event.name):
            state.write_member(state.members.disconnected(event.name))
        elif isinstance(event, MemberIncident) and event.name == COORDINATOR:
            state.incidents.record_own(event.kind, event.text)
        elif isinstance(event, MemberIncident) and (member := state.members.get(event.name)):
            state.incidents.record(member.node, event.kind, event.text)
            if event.kind == "left_behind":  # its process cannot go on: nobody waits for it
                state.write_member(state.members.leave(member.name, "its process cannot go on"))
                self._joining.roster_due = True

    def _on_epoch_found(self, event: EpochFound) -> None:
        """Step down if the ledger confirms a newer coordinator; otherwise refute the claim."""
        if event.epoch > self.state.epoch:
            self._step_down()
        else:
            self._inbox.claim_refuted(event.claim)

    def _step_down(self) -> None:
        """Finish without a message to anybody: a newer coordinator owns this ledger."""
        self.state.pending = PendingActions(immediate=[FinishRun(REPLACED, REPLACED_CODE)])
        self._finished = True

    # Progress -----------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Do what time and events have made possible."""
        state = self.state
        if self._finished:
            return
        self._await_return()
        for member in state.members.apply_timeouts(state.at_s):
            state.write_member(member)
            if member.state == "DEAD":
                state.pending.immediate.append(CloseSession(member.name))
        state.incidents.write_due()
        self._accusations.expire()
        if self._interrupted:
            self._stop(self._interrupted, INTERRUPTED_CODE)
            return
        if self.rounds.is_complete:
            self.records.add(self.rounds.close())
        self.records.publish_ready(mark=not self._commits.is_blocked)
        if self.records.evaluations.ask():
            self._rate_limit.grant(OBSERVER)
        if self._is_done():
            self._stop(self.records.stop_reason)
        elif self._may_open_round():
            self._open_round()
        self._joining.send_roster(force=False)

    def _await_return(self) -> None:
        """After a restart, let the clock run once those who are needed have joined again.

        These are the members that the open round waits for, for `gather_s` at most; between rounds,
        enough members for the next one. Until then nobody's silence counts.
        """
        state, stood_s = self.state, self.state.at_s - self._offset_s
        if state.stands_since_s is None:
            return
        if self.rounds.current is None:
            is_over = self._joining.are_enough() or bool(self.records.stop_reason)
        else:
            is_over = not self.rounds.awaits_return or stood_s >= state.params.timeouts.gather_s
        if is_over:
            self.rounds.postpone_deadline(stood_s)
            state.start_clock()
        else:
            state.members.spare_absent(state.at_s)

    def _may_open_round(self) -> bool:
        if self.rounds.current or self.records.stop_reason or self._commits.is_blocked:
            return False
        return self._joining.are_enough()

    def _open_round(self) -> None:
        after_commit = self.state.pending.after_commit
        before = len(after_commit)
        self._joining.send_roster(force=True)
        if not self.rounds.open_next():
            del after_commit[before:]
            return
        if self.rounds.traced_view is not None:
            self.records.remember_view(self.rounds.traced_view)
        for node in self.rounds.current.orders if self.rounds.current else ():
            member = self.state.members.of_node(node)
            if member is not None:
                self._rate_limit.grant(member.name)

    # The end ------------------------------------------------------------------------------------

    def _is_done(self) -> bool:
        """Return whether a stop rule holds and no round, record or last score is pending."""
        records = self.records
        if not records.stop_reason or self.rounds.current or records.held:
            return False
        return not records.waits_for_last_score

    def _stop(self, reason: str, code: int = 0) -> None:
        """Send `Stop` to all members; finish when they have left, or after `STOP_S` seconds.

        An interrupted run writes nothing, so that a full disk does not prevent its end.
        """
        state = self.state
        actions = state.pending.immediate if code else state.pending.after_commit
        if self._stopping_since_s is None:
            self._stopping_since_s = state.at_s
            if not code:
                state.incidents.write_all()
                state.write(MetaLine("finished", reason))
            self._inbox.stop = stop = Stop(state.epoch, reason[:200])
            actions += [SendToMember(m.name, stop) for m in state.members if m.session]
            return
        all_left = not any(m.state in ("JOINED", "SUSPECT") for m in state.members)
        too_late = state.at_s - self._stopping_since_s >= STOP_S
        if (all_left or too_late) and (code or not self._commits.is_blocked):
            actions.append(FinishRun(reason, code))
            self._finished = True


def _sender_of(event: CoordinatorEvent) -> str:
    """Return the member whose message an event carries; empty: it carries none."""
    if isinstance(event, EpochFound):
        return event.claim.name
    return event.name if isinstance(event, MessageFromMember) else ""
