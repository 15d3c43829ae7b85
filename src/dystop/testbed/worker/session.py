"""A worker's conversation with the coordinator: joining, heartbeats, reports until acknowledged."""

from dataclasses import dataclass, field

from dystop.testbed.events import Say
from dystop.testbed.protocol.messages import PROTOCOL, Heartbeat, Join, JoinOk, Phase, Report
from dystop.testbed.worker.state import WorkerSetup, WorkerState

JOIN_AGAIN_S = 5.0  # without an answer
LONGEST_PAUSE_S = 10.0  # between two repetitions of a report


def join(setup: WorkerSetup, state: WorkerState, phase: Phase) -> Join:
    """The first message of a session."""
    return Join(
        protocol=PROTOCOL,
        run=state.run,
        incarnation=setup.incarnation,
        address=setup.address,
        schema=setup.schema,
        software=setup.software,
        data_size=setup.data_size,
        label_counts=setup.label_counts,
        version=state.version,
        number=state.number,
        last_round=state.last_round,
        phase=phase,
        epoch=state.epoch,
        mail=state.mail,
    )


@dataclass
class Session:
    """What is due when. It knows the time only from its caller."""

    report_s: float  # first pause before a report is repeated
    heartbeat_s: float = 1.0
    is_open: bool = False  # the transport has one
    is_joined: bool = False  # and the coordinator has let us in
    retry_at_s: float | None = None  # join again then
    seq: int = 0
    _beat_at_s: float = 0.0
    _due: dict[tuple[int, str], tuple[float, float]] = field(default_factory=dict)

    def opened(self, now_s: float) -> None:
        """The transport has a session; we ask to join, again and again until there is an answer."""
        self.is_open, self.is_joined, self.retry_at_s = True, False, now_s + JOIN_AGAIN_S

    def lost(self) -> None:
        """It has none any more."""
        self.is_open, self.is_joined, self.retry_at_s = False, False, None

    def joined(self, message: JoinOk, now_s: float) -> None:
        """The coordinator has let us in; what it has not acknowledged is due at once."""
        self.is_joined, self.retry_at_s = True, None
        self.heartbeat_s = message.heartbeat_s or self.heartbeat_s
        self._beat_at_s, self._due = now_s, {}

    def refused(self, retry_s: float, now_s: float) -> None:
        """The coordinator has not let us in, for now."""
        self.is_joined, self.retry_at_s = False, now_s + retry_s

    def is_join_due(self, now_s: float) -> bool:
        """Whether it is time to ask again."""
        if not self.is_open or self.retry_at_s is None or now_s < self.retry_at_s:
            return False
        self.retry_at_s = now_s + JOIN_AGAIN_S
        return True

    def beat(self, state: WorkerState, phase: Phase, disk_full: bool, now_s: float) -> list[Say]:
        """A heartbeat if one is due."""
        if not self.is_joined or now_s < self._beat_at_s:
            return []
        self._beat_at_s = max(self._beat_at_s + self.heartbeat_s, now_s)
        self.seq += 1
        return [Say(Heartbeat(self.seq, state.epoch, phase, state.last_round, disk_full))]

    def first(self, report: Report, now_s: float) -> list[Say]:
        """Send a new report, and note when to repeat it."""
        self._due[report.round, report.kind] = (now_s + self.report_s, self.report_s)
        return [Say(report)] if self.is_joined else []

    def repeat(self, reports: tuple[Report, ...], now_s: float) -> list[Say]:
        """Reports that were not acknowledged in time; the pause doubles up to ten seconds."""
        if not self.is_joined:
            return []
        said = []
        for report in reports:
            at_s, pause_s = self._due.get((report.round, report.kind), (now_s, self.report_s / 2))
            if now_s >= at_s:
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                self._due[report.round, report.kind] = (now_s + pause_s, pause_s)
                said.append(Say(report))
        return said

    def again(self, reports: tuple[Report, ...], round_: int) -> list[Say]:
        """What is known of a round, for a coordinator that asks for it twice."""
        return [Say(r) for r in reports if r.round == round_ and self.is_joined]

    def acknowledged(self, round_: int, kind: str) -> None:
        """Do not repeat this report."""
        self._due.pop((round_, kind), None)
