"""What happens to a state machine and what it wants done.

`CoordinatorMachine` and `WorkerMachine` know neither sockets nor clocks nor disks: a shell calls
`machine.handle(event, now_s)` and carries out the actions that come back, in their order. The
shells are `shell.node` and `shell.seat` with real sockets, and the virtual-time harness of the
tests. `now_s` is monotonic and local; no two machines share a clock.

An action that must not happen before something is on the disk hangs in `then` of a `Save` or
`Commit`: the shell carries it out only after the write succeeded, and reports a failed write as
`WriteFailed`.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.testbed.protocol.messages import (
    ModelHeader,
    PullRefused,
    PullRequest,
    RejectCode,
    ToCoordinator,
    ToWorker,
)

Vector = NDArray[np.float32]
Counters = NDArray[np.int64]


# What happens to either machine -----------------------------------------------------------------


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True)
class WriteFailed:
    """The disk refused the last `Save` or `Commit`."""

    text: str


# What happens to a worker -----------------------------------------------------------------------


@dataclass(frozen=True)
class SessionOpened:
    """The coordinator answers; say who you are."""


@dataclass(frozen=True)
class SessionLost:
    """The session to the coordinator broke."""


@dataclass(frozen=True)
class Told:
    """The coordinator said something."""

    message: ToWorker


@dataclass(frozen=True)
class Fetched:
    """A fetch has brought a whole model: digest checked, schema checked, not yet trusted."""

    key: int
    header: ModelHeader
    vector: Vector
    bytes: int  # on the wire, re-sent ones included
    seconds: float
    resumes: int = 0


@dataclass(frozen=True)
class FetchFailed:
    """A fetch was given up."""

    key: int
    code: RejectCode
    bytes: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class TrainingDone:
    """The local training has ended."""

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
class Asked:
    """A peer wants a model; answer with `Serve` under the same key, now or later."""

    key: int
    peer: str  # name from the certificate
    request: PullRequest


@dataclass(frozen=True)
class AskedNoMore:
    """The peer of this key has gone."""

    key: int


# What a worker wants done -----------------------------------------------------------------------


@dataclass(frozen=True)
class Say:
    """Send to the coordinator; lost in silence if there is no session."""

    message: ToCoordinator


@dataclass(frozen=True)
class Fetch:
    """Fetch a model from a peer until `deadline_s` (machine time); resume where it breaks."""

    key: int
    node: int
    name: str
    address: str
    request: PullRequest
    deadline_s: float


@dataclass(frozen=True)
class Abandon:
    """Give up a fetch; no event follows."""

    key: int


@dataclass(frozen=True)
class Train:
    """Begin a local training; `TrainingDone` follows."""

    number: int
    vector: Vector
    counters: Counters
    steps: int
    rate: float


@dataclass(frozen=True)
class Publication:
    """An immutable model that peers may fetch."""

    version: int
    number: int
    round: int  # whose order began the training that made it
    vector: Vector


@dataclass(frozen=True)
class Serve:
    """Answer a peer."""

    key: int
    answer: Publication | PullRefused


@dataclass(frozen=True)
class Save:
    """Write the worker's checkpoint atomically, then carry out `then`."""

    state: Any  # `worker.state.WorkerState`
    then: tuple["WorkerAction", ...] = ()


@dataclass(frozen=True)
class Exit:
    """End the process, cleanly (0) or because going on is no use."""

    code: int
    text: str = ""


WorkerEvent = (
    Tick
    | WriteFailed
    | SessionOpened
    | SessionLost
    | Told
    | Fetched
    | FetchFailed
    | TrainingDone
    | TrainingFailed
    | Asked
    | AskedNoMore
)
WorkerAction = Say | Fetch | Abandon | Train | Serve | Save | Exit


# What happens to the coordinator ----------------------------------------------------------------


@dataclass(frozen=True)
class Heard:
    """A peer said something; its name comes from its certificate."""

    name: str
    message: ToCoordinator
    fingerprint: str = ""  # of that certificate; empty where the transport has none


@dataclass(frozen=True)
class Gone:
    """The session of a peer broke."""

    name: str


@dataclass(frozen=True)
class Consulted:
    """What the ledger says: the highest epoch that a coordinator of this run has had."""

    heard: Heard  # what was doubtful
    epoch: int


# What the coordinator wants done ----------------------------------------------------------------


@dataclass(frozen=True)
class Tell:
    """Send to a peer; lost in silence if it has no session."""

    name: str
    message: ToWorker
    data: bytes = field(default=b"", compare=False, repr=False)  # the message, where it is written


@dataclass(frozen=True)
class Hang:
    """Close the session of a peer after what was told to it."""

    name: str


@dataclass(frozen=True)
class Commit:
    """Write to the ledger in one transaction, then carry out `then`."""

    entries: tuple[Any, ...]  # `ledger.tables` lines
    then: tuple["CoordinatorAction", ...] = ()


@dataclass(frozen=True)
class Publish:
    """A round is history: its record, and what was observed in it (one line of the trace)."""

    record: Any  # `dystop.record.RoundRecord`
    trace: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pardoned:
    """An operator's pardon has been taken in, whether or not there was something to forgive."""

    name: str


@dataclass(frozen=True)
class Consult:
    """Look up the epoch in the ledger as it is on the disk now; `Consulted` follows as an event."""

    heard: Heard


@dataclass(frozen=True)
class Finish:
    """The run is over."""

    reason: str
    code: int = 0  # 3: a newer coordinator is in charge


CoordinatorEvent = Tick | WriteFailed | Heard | Gone | Consulted
CoordinatorAction = Tell | Hang | Commit | Publish | Pardoned | Consult | Finish
