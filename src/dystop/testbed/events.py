"""Events and actions of the testbed's two state machines.

`CoordinatorMachine` and `WorkerMachine` use no sockets, clocks or disks. A driver calls
`machine.handle(event, now_s)` and executes the returned actions in their order. The drivers are
`coordinator.process` and `worker.process`, which use real sockets, and the virtual-time harness of
the tests. `now_s` is monotonic and local: no two machines share a clock.

Some actions must not happen before a write is on disk. They are listed in `after_save` of a
`SaveCheckpoint`, or in `after_commit` of a `Commit`. The driver carries them out only after the
write succeeded. It reports a failed write as `CheckpointFailed` or `CommitFailed` before any other
event, but passes on what peers pull while a checkpoint is written.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.testbed.protocol.messages import IncidentKind, RejectCode, ToCoordinator, ToWorker
from dystop.testbed.protocol.pulls import ModelHeader, PullRefused, PullRequest

Vector = NDArray[np.float32]
Counters = NDArray[np.int64]


@dataclass(frozen=True)
class Tick:
    """The passage of time; both machines receive it a few times a second."""


# Events of a worker -----------------------------------------------------------------------------


@dataclass(frozen=True)
class SessionOpened:
    """The session to the coordinator is open; the worker joins."""


@dataclass(frozen=True)
class SessionLost:
    """The session to the coordinator broke."""


@dataclass(frozen=True)
class MessageFromCoordinator:
    """A message from the coordinator."""

    message: ToWorker


@dataclass(frozen=True)
class PullFinished:
    """A pull delivered a whole model: digest and schema are checked, its content is not."""

    key: int
    header: ModelHeader
    vector: Vector
    bytes: int  # on the wire, including bytes sent twice
    seconds: float
    resumes: int = 0


@dataclass(frozen=True)
class PullFailed:
    """A pull was given up."""

    key: int
    code: RejectCode
    bytes: int = 0
    seconds: float = 0.0
    announced: ModelHeader | None = None  # what the sender said it would send


@dataclass(frozen=True)
class TrainingFinished:
    """The local training ended."""

    number: int
    vector: Vector
    counters: Counters
    loss: float | None
    samples: int
    seconds: float


@dataclass(frozen=True)
class TrainingFailed:
    """The local training raised an error, or its result is not finite."""

    number: int
    text: str


@dataclass(frozen=True)
class PullRequested:
    """A peer requests a model; answer with `AnswerPull` under the same key, now or later."""

    key: int
    peer: str  # name from the certificate
    request: PullRequest


@dataclass(frozen=True)
class PullWithdrawn:
    """The peer no longer waits for the answer under this key."""

    key: int


@dataclass(frozen=True)
class PeerIncident:
    """Something is wrong with a peer, or with this worker's checkpoint; the coordinator is told."""

    peer: str  # name from the certificate, or its own
    kind: IncidentKind
    text: str = ""


@dataclass(frozen=True)
class CheckpointSaved:
    """The last `SaveCheckpoint` is on disk."""


@dataclass(frozen=True)
class CheckpointFailed:
    """The disk refused the last `SaveCheckpoint`."""

    text: str


# Actions of a worker ----------------------------------------------------------------------------


@dataclass(frozen=True)
class SendToCoordinator:
    """Send a message to the coordinator; it is lost silently if there is no session."""

    message: ToCoordinator


@dataclass(frozen=True)
class StartPull:
    """Pull a model from a peer until `deadline_s` (machine time); resume after a break."""

    key: int
    node: int
    name: str
    address: str
    request: PullRequest
    deadline_s: float
    patience: float = 1.0  # factor on the time that the peer has to answer


@dataclass(frozen=True)
class CancelPull:
    """Give up a pull; no event follows."""

    key: int


@dataclass(frozen=True)
class StartTraining:
    """Start a local training; `TrainingFinished` or `TrainingFailed` follows."""

    number: int
    vector: Vector
    counters: Counters
    steps: int
    rate: float


@dataclass(frozen=True)
class Publication:
    """An immutable model that peers may pull."""

    version: int
    number: int
    round: int  # of the order that started the training behind this model
    vector: Vector


@dataclass(frozen=True)
class AnswerPull:
    """Answer the pull request of a peer."""

    key: int
    answer: Publication | PullRefused


@dataclass(frozen=True)
class SaveCheckpoint:
    """Write the worker's state atomically, then execute `after_save`."""

    state: Any  # `worker.state.WorkerState`
    after_save: tuple["WorkerAction", ...] = ()


@dataclass(frozen=True)
class Exit:
    """End the process: code 0 at the end of the run, another code if it cannot continue."""

    code: int
    text: str = ""


WorkerEvent = (
    Tick
    | SessionOpened
    | SessionLost
    | MessageFromCoordinator
    | PullFinished
    | PullFailed
    | TrainingFinished
    | TrainingFailed
    | PullRequested
    | PullWithdrawn
    | PeerIncident
    | CheckpointSaved
    | CheckpointFailed
)
WorkerAction = (
    SendToCoordinator | StartPull | CancelPull | StartTraining | AnswerPull | SaveCheckpoint | Exit
)


# Events of the coordinator ----------------------------------------------------------------------


@dataclass(frozen=True)
class MessageFromMember:
    """A message from a member; the name comes from its certificate."""

    name: str
    message: ToCoordinator
    fingerprint: str = ""  # of that certificate; empty where the transport has none
    remote: str = ""  # IP address that the session comes from; empty where the transport has none


@dataclass(frozen=True)
class MemberDisconnected:
    """The session of a member broke."""

    name: str


@dataclass(frozen=True)
class EpochFound:
    """The answer to `LookUpEpoch`: the highest epoch in the ledger of this run."""

    claim: MessageFromMember  # the message that claimed a newer epoch
    epoch: int


@dataclass(frozen=True)
class MemberIncident:
    """Something is wrong with a member, as the coordinator's process or its transport saw it."""

    name: str  # or `coordinator`
    kind: IncidentKind
    text: str = ""


# Actions of the coordinator ---------------------------------------------------------------------


@dataclass(frozen=True)
class SendToMember:
    """Send a message to a member; it is lost silently if the member has no session."""

    name: str
    message: ToWorker
    data: bytes = field(default=b"", compare=False, repr=False)  # the encoded message, if known


@dataclass(frozen=True)
class CloseSession:
    """Close the session of a member after all messages sent to it."""

    name: str


@dataclass(frozen=True)
class Commit:
    """Write lines to the ledger in one transaction, then execute `after_commit`."""

    entries: tuple[Any, ...]  # lines of `ledger.tables`
    after_commit: tuple["CoordinatorAction", ...] = ()


@dataclass(frozen=True)
class CommitFailed:
    """The disk refused this `Commit` (an event)."""

    commit: Commit
    text: str


@dataclass(frozen=True)
class PublishRecord:
    """Append the record of a closed round, and its line of the trace, to the run folder."""

    record: Any  # `dystop.record.RoundRecord`
    trace: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishLateScore:
    """Append a score to the run folder that came after the record of its round was published."""

    record: Any  # `dystop.record.RoundRecord` with the score


@dataclass(frozen=True)
class ConfirmPardon:
    """Confirm to the operator that a pardon was applied, even if there was nothing to pardon."""

    name: str


@dataclass(frozen=True)
class LookUpEpoch:
    """Read the epoch from the ledger as it is on disk now; `EpochFound` follows."""

    claim: MessageFromMember


@dataclass(frozen=True)
class LogWarning:
    """Write a warning to the log of the process."""

    text: str


@dataclass(frozen=True)
class RestartFromLedger:
    """Replace this machine by one that continues from the ledger; all members join again.

    The machine met an unexpected error, so that its state may be half changed. It has written and
    sent nothing since the last commit, and it handles no event after this action.
    """

    error: Exception
    name: str = ""  # the member whose message caused it; empty: none is to blame


@dataclass(frozen=True)
class FinishRun:
    """End the coordinator's process."""

    reason: str
    code: int = 0  # 3: a newer coordinator is in charge


CoordinatorEvent = (
    Tick | MessageFromMember | MemberDisconnected | MemberIncident | EpochFound | CommitFailed
)
CoordinatorAction = (
    SendToMember
    | CloseSession
    | Commit
    | PublishRecord
    | PublishLateScore
    | ConfirmPardon
    | LookUpEpoch
    | LogWarning
    | RestartFromLedger
    | FinishRun
)
