"""The coordinator as a state machine (alg:dystop): events in, actions out, no clock, no socket.

A shell calls `handle` (or `handle_all` for several events at once, which costs one commit) and
carries out the actions in their order. A refused commit is reported as `WriteFailed` before any
other event. `now_s` is monotonic; a machine that is made from what the ledger holds goes on where
the last one stopped, under an epoch of its own.
"""

import math
from collections.abc import Sequence

from dystop.errors import RunFolderError
from dystop.testbed.coordinator.core import CommitBatcher, Core, PendingActions
from dystop.testbed.coordinator.members import Enrolled, Member
from dystop.testbed.coordinator.quarantine import (
    EpochClaims,
    Measure,
    Quarantine,
    RateLimit,
    claimed_epoch,
)
from dystop.testbed.coordinator.records import Records
from dystop.testbed.coordinator.rounds import Rounds
from dystop.testbed.coordinator.setup import (
    OBSERVER,
    SERVER,
    CoordinatorSetup,
    member_name,
    refusal,
)
from dystop.testbed.events import (
    Consult,
    Consulted,
    CoordinatorAction,
    CoordinatorEvent,
    Finish,
    Gone,
    Hang,
    Heard,
    Tell,
    WriteFailed,
)
from dystop.testbed.ledger.tables import MetaLine, Restored
from dystop.testbed.protocol.codec import decode
from dystop.testbed.protocol.messages import (
    Complaint,
    Heartbeat,
    Join,
    JoinOk,
    Leave,
    Reject,
    Report,
    ReportAck,
    Roster,
    Scored,
    Stop,
    ToCoordinator,
)

__all__ = ["CoordinatorMachine", "CoordinatorSetup", "Enrolled", "member_name"]

REPLACED = "a newer coordinator is in charge"
REPLACED_CODE = 3
INTERRUPTED_CODE = 130
FAREWELL_S = 5.0  # for everybody to leave at the end
ROSTER_S = 0.5  # between two rosters, unless an order needs a newer one


class CoordinatorMachine:
    """Plans rounds, keeps the books, remembers everything that was promised."""

    def __init__(self, setup: CoordinatorSetup, restored: Restored) -> None:
        """Begin, or go on from what the ledger holds (`ledger.tables.restore`)."""
        self.core = Core(setup, restored.epoch)
        self.rounds, self.records = Rounds(self.core), Records(self.core)
        self._writer = CommitBatcher()
        self._allowance = RateLimit(setup.params.limits)
        self._start_s: float | None = None  # machine time at the first event
        self._offset_s = restored.at_s
        self._gather_s = restored.at_s  # since when we wait for members
        self._fresh = restored.state is None
        self._gathered = False
        self._wanted = 0  # members that a restarted run waits for
        self._roster_due = False
        self._roster_s = -math.inf
        self._farewell_s: float | None = None
        self._finished = False
        self._interrupted = ""
        self._sanctions = Quarantine(self.core)
        self._claims = EpochClaims(self.core, self._sanctions)
        self._recall(restored)

    @property
    def epoch(self) -> int:
        """Number of this coordinator; workers obey only the highest they have seen."""
        return self.core.epoch

    @property
    def round(self) -> int:
        """The round that is open, or opens next."""
        return self.core.books.t

    def _recall(self, restored: Restored) -> None:
        """Take over the past: state, open round, and the reports that came after it."""
        core = self.core
        if restored.run not in ("", core.setup.run):
            raise RunFolderError(
                f"the ledger is of run {restored.run[:16]}..., not of {core.setup.run[:16]}...;"
                " choose another folder or go on with that run"
            )
        core.at_s = restored.at_s
        for line in restored.workers:
            core.members.recall(line)
            self._wanted += line.state in ("JOINED", "SUSPECT") and line.name != OBSERVER
        if restored.state is not None:
            core.recall(restored.state)
        self.rounds.recall(restored)
        self.records.recall(restored)
        counted = core.seq
        for kept in restored.reports:
            report = decode(kept.json.encode(), "coordinator")
            assert isinstance(report, Report)
            core.at_s = kept.at_s
            if kept.seq <= counted:
                self.rounds.recount(kept.node, report)
            else:
                self.rounds.absorb(kept.node, report)
                core.seq = kept.seq
        core.at_s, core.out = restored.at_s, PendingActions()

    def interrupt(self, reason: str) -> None:
        """End the run with the next event; the ledger does not call it finished."""
        self._interrupted = reason

    def sanction(self, measure: Measure, name: str) -> None:
        """Expel, pardon or readmit a member with the next event."""
        self._sanctions.ask(measure, name)

    # Events -------------------------------------------------------------------------------------

    def handle(self, event: CoordinatorEvent, now_s: float) -> list[CoordinatorAction]:
        """Take in one event; answers what is to be done."""
        return self.handle_all([event], now_s)

    def handle_all(
        self, events: Sequence[CoordinatorEvent], now_s: float
    ) -> list[CoordinatorAction]:
        """Take in several events of one moment; answers what is to be done, one commit at most."""
        if self._finished:
            return []
        self.core.out = PendingActions()
        self._set_time(now_s)
        self._roster_due |= self._sanctions.carry_out()
        for event in events:
            self._take(event)
        self._drive()
        self.core.close_lines()
        return self._writer.actions(self.core.out, self.core.at_s)

    def _set_time(self, now_s: float) -> None:
        if self._start_s is None:
            self._start_s = now_s
            self.core.members.touch(self._offset_s)
            self.core.keep(*self._facts())
        self.core.at_s = self._offset_s + max(now_s - self._start_s, 0.0)

    def _facts(self) -> list[MetaLine]:
        """What a reader of the ledger must know about the run."""
        setup = self.core.setup
        return [
            MetaLine("run", setup.run),
            MetaLine("queue_bound", repr(setup.mechanism.capabilities().queue_bound)),
            MetaLine("away", setup.params.away),
        ]

    def _take(self, event: CoordinatorEvent) -> None:
        if isinstance(event, WriteFailed):
            self._writer.refused(self.core.at_s)
            return
        self._writer.written()
        if isinstance(event, Heard):
            self._heard(event)
        elif isinstance(event, Consulted):
            self._consulted(event)
        elif isinstance(event, Gone) and self.core.members.get(event.name):
            self.core.note(self.core.members.gone(event.name, self.core.at_s))

    def _heard(self, event: Heard) -> None:
        core, name, message = self.core, event.name, event.message
        if not self._allowance.spend(name, core.at_s):
            return
        if isinstance(message, Join):
            self._join(event, message)
            return
        member = core.members.get(name)
        if self._claims.is_doubtful(member, message):
            core.out.now.append(Consult(event))
            return
        if member is None or not member.session:
            core.tell(name, Complaint("not_joined", "join first"))
            return
        full = message.disk_full if isinstance(message, Heartbeat) else None
        core.note(core.members.heard(name, core.at_s, full))
        self._from_member(member, message)

    def _consulted(self, event: Consulted) -> None:
        """What the ledger says about a newer coordinator of which somebody has told us."""
        heard, member = event.heard, self.core.members.get(event.heard.name)
        if event.epoch > self.core.epoch:
            self._step_down()
            return
        if member is not None and self._claims.is_doubtful(member, heard.message):
            self._roster_due |= self._claims.judge(member, claimed_epoch(heard.message))
        if member is not None and claimed_epoch(heard.message) <= self.core.epoch:
            self._heard(heard)
            self.rounds.resend(member.node)  # it may have refused what came under the old epoch

    def _from_member(self, member: Member, message: ToCoordinator) -> None:
        core = self.core
        if isinstance(message, Heartbeat):
            core.tell(member.name, Heartbeat(message.seq, core.epoch))
        elif isinstance(message, Report):
            self._report(member, message)
        elif isinstance(message, Scored) and member.name == OBSERVER:
            self.records.scored(message)
        elif isinstance(message, Leave):
            core.note(core.members.leave(member.name, message.text))
            self._roster_due = True

    # Members ------------------------------------------------------------------------------------

    def _join(self, event: Heard, join: Join) -> None:
        core, name, fingerprint = self.core, event.name, event.fingerprint
        member = core.members.get(name)
        refused = self._sanctions.refusal(fingerprint) or refusal(core.setup, member, join)
        if refused is not None or member is None:
            core.tell(name, refused or Reject("unknown", "not enrolled"))
            core.out.now.append(Hang(name))
            return
        if self._claims.is_doubtful(member, join):
            core.out.now.append(Consult(event))
            return
        if self._farewell_s is not None:
            core.tell(name, Stop(core.epoch, (self._interrupted or self.records.reason)[:200]))
            return
        self._welcome(member, join, fingerprint)

    def _welcome(self, member: Member, join: Join, fingerprint: str) -> None:
        core, name = self.core, member.name
        if member.state in ("ENROLLED", "LEFT"):
            self._gather_s = core.at_s  # others may be on their way, too
        known = (member.address, member.fingerprint) == (join.address, fingerprint)
        self._roster_due |= not known or member.state in ("ENROLLED", "LEFT")
        restarted = join.incarnation != member.incarnation
        core.note(core.members.join(name, join, core.at_s, fingerprint))
        warm = (
            core.setup.mechanism.capabilities().warm_start
            and member.node < core.setup.fleet.workers
        )
        self._training(member.node, join, restarted, warm)
        core.since_s[member.node] = core.at_s
        ok = JoinOk(
            run=core.setup.run,
            epoch=core.epoch,
            round=core.books.t,
            heartbeat_s=core.params.timeouts.heartbeat_s,
            warm_start=warm,
            peers=core.members.roster(),
        )
        core.tell_then(name, ok)
        self._allowance.grant(name)
        self.rounds.resend(member.node)
        if name == OBSERVER:
            self.records.observer_joined()

    def _training(self, node: int, join: Join, restarted: bool, warm: bool) -> None:
        """What a join says about the training in flight and the mailbox."""
        core = self.core
        if node >= core.setup.fleet.workers:
            return
        core.probe.holds(node, join.mail)
        begins = warm and join.number == -1
        if begins:
            core.training_round[node] = max(core.training_round[node], 0)
        if begins and (restarted or join.phase != "training"):
            core.probe.began(node, int(core.setup.steps[node]), core.at_s)
        elif join.phase == "training" and restarted:
            core.probe.began(node, int(core.probe.flight_steps[node]), core.at_s)
        elif join.phase == "idle" and math.isnan(core.probe.began_s[node]):
            core.probe.idle(node, core.at_s)

    def _step_down(self) -> None:
        """A newer coordinator has this ledger: go, without a word to anybody."""
        self.core.out = PendingActions(now=[Finish(REPLACED, REPLACED_CODE)])
        self._finished = True

    # Reports ------------------------------------------------------------------------------------

    def _report(self, member: Member, report: Report) -> None:
        core = self.core
        effect, bad = self.rounds.absorb(member.node, report)
        if effect in ("early", "strange"):
            return
        if effect != "known":
            core.keep(self.rounds.line_of(member.node, report, effect))
        core.tell_then(member.name, ReportAck(report.round, report.kind))
        for node in bad:
            self._roster_due |= self._sanctions.shut_out(node)

    # What is due --------------------------------------------------------------------------------

    def _drive(self) -> None:
        """Whatever time and events have made possible."""
        core = self.core
        if self._finished:
            return
        for member in core.members.tick(core.at_s):
            core.note(member)
            if member.state == "DEAD":
                core.out.now.append(Hang(member.name))
        if self._interrupted:
            self._farewell(self._interrupted, INTERRUPTED_CODE)
            return
        if self.rounds.is_over:
            self.records.add(self.rounds.close())
        self.records.leave()
        if self._is_done():
            self._farewell(self.records.reason)
        elif self._may_open():
            self._open()
        self._send_roster(force=False)

    def _may_open(self) -> bool:
        if self.rounds.open or self.records.reason or self._writer.is_blocked:
            return False
        core, n = self.core, self.core.setup.fleet.workers
        if core.setup.fleet.server:
            server = core.members.get(SERVER)
            if server is None or server.state != "JOINED" or server.disk_full:
                return False
        here = sum(m.state == "JOINED" and m.node < n for m in core.members)
        if here == 0:
            return False
        self._gathered = self._gathered or self._is_quorum(here, n)
        return self._gathered

    def _is_quorum(self, here: int, n: int) -> bool:
        """After a start: wait for the quorum; after a restart: for half of those who were there."""
        core = self.core
        waited = core.at_s - self._gather_s >= core.params.timeouts.gather_s
        if not self._fresh:
            return waited or 2 * here >= self._wanted
        observer = core.members.get(OBSERVER)
        seen = observer is None or not core.params.observer or observer.state == "JOINED"
        return waited or (seen and here >= core.params.quorum * n)

    def _open(self) -> None:
        before = len(self.core.out.then)
        self._send_roster(force=True)
        if not self.rounds.begin():
            del self.core.out.then[before:]
            return
        if self.rounds.seen is not None:
            self.records.remember(self.rounds.seen)
        for node in self.rounds.open.orders if self.rounds.open else ():
            member = self.core.members.of_node(node)
            if member is not None:
                self._allowance.grant(member.name)

    def _send_roster(self, *, force: bool) -> None:
        """Tell everybody who takes part, if that has changed."""
        core = self.core
        soon = core.at_s - self._roster_s < ROSTER_S
        if not self._roster_due or (soon and not force):
            return
        self._roster_due, self._roster_s = False, core.at_s
        roster = Roster(core.epoch, core.members.roster())
        for member in core.members:
            if member.session:
                core.tell_then(member.name, roster)

    # The end ------------------------------------------------------------------------------------

    def _is_done(self) -> bool:
        """Whether a stop rule holds and nothing is on its way any more."""
        return bool(self.records.reason) and not (self.rounds.open or self.records.waiting)

    def _farewell(self, reason: str, code: int = 0) -> None:
        """Tell everybody to stop; finish when they have gone, or after a while.

        Where the run is only interrupted, nothing is written, so a full disk is no hindrance.
        """
        core = self.core
        do = core.out.now if code else core.out.then
        if self._farewell_s is None:
            self._farewell_s = core.at_s
            if not code:
                core.keep(self.records.finished())
            do += [Tell(m.name, Stop(core.epoch, reason[:200])) for m in core.members if m.session]
            return
        left = not any(m.state in ("JOINED", "SUSPECT") for m in core.members)
        late = core.at_s - self._farewell_s >= FAREWELL_S
        if (left or late) and (code or not self._writer.is_blocked):
            do.append(Finish(reason, code))
            self._finished = True
