"""A worker's session with the coordinator: joining, heartbeats, reports, and incidents of peers.

A report is repeated until it is acknowledged.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dystop.format import FORMAT
from dystop.testbed.events import SendToCoordinator
from dystop.testbed.protocol.codec import shown
from dystop.testbed.protocol.messages import (
    Heartbeat,
    Incident,
    IncidentKind,
    Join,
    JoinOk,
    Phase,
    Report,
)
from dystop.testbed.worker.state import WorkerSetup, WorkerState

JOIN_AGAIN_S = 5.0  # pause before an unanswered join is repeated
LONGEST_PAUSE_S = 10.0  # between two repetitions of a report
INCIDENT_PAUSE_S = 2.0  # between two messages about incidents of the same peer and kind
MAX_INCIDENTS = 1_000_000  # in one message


def join_message(
    setup: WorkerSetup, state: WorkerState, phase: Phase, incarnation: int = 0
) -> Join:
    """Return the first message of a session."""
    own = setup.introduction
    return Join(
        format=FORMAT,
        run=state.run,
        incarnation=incarnation,
        address=own.address,
        schema=own.schema,
        software=own.software,
        data_size=own.data_size,
        label_counts=own.label_counts,
        version=state.version,
        number=state.number,
        last_round=state.last_round,
        phase=phase,
        epoch=state.epoch,
        mail=state.mail,
    )


@dataclass
class Session:
    """Tracks which message is due at which time. The caller provides the time."""

    report_s: float  # first pause before a report is repeated
    heartbeat_s: float = 1.0
    is_open: bool = False  # the transport has a session
    is_joined: bool = False  # the coordinator accepted the join
    retry_at_s: float | None = None  # when to join again
    seq: int = 0
    incarnation: int = 0  # of this process, given by the coordinator; 0: none yet
    _unanswered: int = 0  # joins as a new process in this session
    _heartbeat_at_s: float = 0.0
    _repeat: dict[tuple[int, str], tuple[float, float]] = field(default_factory=dict)

    def opened(self, now_s: float) -> None:
        """Register an open session; the join is repeated until there is an answer."""
        self.is_open, self.is_joined, self.retry_at_s = True, False, now_s + JOIN_AGAIN_S

    def lost(self) -> None:
        """Register that the session broke.

        An unanswered join as a new process may have counted: this process then has a newer
        incarnation than the one it knows, and has to join as a new process again.
        """
        self.is_open, self.is_joined, self.retry_at_s = False, False, None
        if self._unanswered:
            self.incarnation = self._unanswered = 0

    def join(self, setup: WorkerSetup, state: WorkerState, phase: Phase) -> SendToCoordinator:
        """Return the message that joins the run."""
        self._unanswered += self.incarnation == 0
        return SendToCoordinator(join_message(setup, state, phase, self.incarnation))

    def joined(self, message: JoinOk, now_s: float) -> None:
        """Register an accepted join; a heartbeat and all unacknowledged reports are due now."""
        self.is_joined, self.retry_at_s = True, None
        self.incarnation, self._unanswered = message.incarnation, max(self._unanswered - 1, 0)
        self.heartbeat_s = message.heartbeat_s or self.heartbeat_s
        self._heartbeat_at_s, self._repeat = now_s, {}

    def refused(self, retry_s: float, now_s: float) -> None:
        """Register a refused join that may be repeated after `retry_s`."""
        self.is_joined, self.retry_at_s = False, now_s + retry_s

    def take_join_due(self, now_s: float) -> bool:
        """Return whether to join again now, and schedule the next repetition."""
        if not self.is_open or self.retry_at_s is None or now_s < self.retry_at_s:
            return False
        self.retry_at_s = now_s + JOIN_AGAIN_S
        return True

    def heartbeat(
        self, state: WorkerState, phase: Phase, disk_full: bool, now_s: float
    ) -> list[SendToCoordinator]:
        """Return a heartbeat if one is due."""
        if not self.is_joined or now_s < self._heartbeat_at_s:
            return []
        self._heartbeat_at_s = max(self._heartbeat_at_s + self.heartbeat_s, now_s)
        self.seq += 1
        beat = Heartbeat(self.seq, state.epoch, phase, state.last_round, disk_full)
        return [SendToCoordinator(beat)]

    def first_report(self, report: Report, now_s: float) -> list[SendToCoordinator]:
        """Return a new report, and schedule its repetition."""
        self._repeat[report.round, report.kind] = (now_s + self.report_s, self.report_s)
        return [SendToCoordinator(report)] if self.is_joined else []

    def repeated_reports(
        self, reports: tuple[Report, ...], now_s: float
    ) -> list[SendToCoordinator]:
        """Return the reports that are due again; the pause doubles up to `LONGEST_PAUSE_S`."""
        if not self.is_joined:
            return []
        due = []
        for report in reports:
            key = (report.round, report.kind)
            at_s, pause_s = self._repeat.get(key, (now_s, self.report_s / 2))
            if now_s >= at_s:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                self._repeat[key] = (now_s + pause_s, pause_s)
                due.append(SendToCoordinator(report))
        return due

    def reports_of_round(self, reports: tuple[Report, ...], round_: int) -> list[SendToCoordinator]:
        """Return the reports of one round, for a coordinator that repeats its order."""
        return [SendToCoordinator(r) for r in reports if r.round == round_ and self.is_joined]

    def acknowledged(self, round_: int, kind: str) -> None:
        """Stop the repetition of a report."""
        self._repeat.pop((round_, kind), None)


@dataclass
class PeerIncidents:
    """Incidents of peers that the coordinator does not know yet, gathered to cost few messages.

    The caller provides the time.
    """

    _waiting: dict[tuple[str, IncidentKind], tuple[int, str]] = field(default_factory=dict)
    _sent_s: dict[tuple[str, IncidentKind], float] = field(default_factory=dict)

    def add(self, peer: str, kind: IncidentKind, text: str) -> None:
        """Remember that something is wrong with a peer."""
        count = self._waiting.get((peer, kind), (0, ""))[0] + 1
        self._waiting[peer, kind] = (min(count, MAX_INCIDENTS), shown(text))

    def due(self, nodes: Mapping[str, int], now_s: float) -> list[SendToCoordinator]:
        """Return the messages that are due; an incident of an unknown peer is dropped."""
        messages = []
        for key, (count, text) in list(self._waiting.items()):
            peer, kind = key
            if now_s - self._sent_s.get(key, -math.inf) < INCIDENT_PAUSE_S:
                continue
            del self._waiting[key]
            if peer in nodes:
                self._sent_s[key] = now_s
                messages.append(SendToCoordinator(Incident(nodes[peer], kind, count, text)))
        return messages
