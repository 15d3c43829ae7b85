"""What coordinator, workers and observer say to each other.

Control messages travel on one long-lived session that each worker opens to the coordinator. Models
travel from worker to worker, never through the coordinator (`PullRequest`, `ModelHeader`, then raw
bytes). Who speaks is told by the certificate, never by a field. `testbed.protocol.codec` turns
messages into bounded JSON and refuses anything else.

`round` counts from 1. `number` is the running number of a worker's local trainings: 0 is the one
begun at the start of the run, as `Books.version` counts them. `version` counts what a worker has
published, rises with every publication and survives restarts.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, Len

PROTOCOL = 1
MAX_NODES = 10_000

Count = Annotated[int, Ge(0), Le(2**63 - 1)]
Training = Annotated[int, Ge(-1), Le(2**63 - 1)]  # running number; -1: none is finished yet
Node = Annotated[int, Ge(0), Le(MAX_NODES)]
Seconds = Annotated[float, Ge(0), Le(1e9)]
Number = Annotated[float, Ge(-1e300), Le(1e300)]
Word = Annotated[str, Len(0, 64)]
Text = Annotated[str, Len(0, 200)]
Hex = Annotated[str, Len(0, 64)]
Address = Annotated[str, Len(0, 255)]
Phase = Literal["idle", "pulling", "training"]
MixKind = Literal["linear", "delta", "masked"]
Mask = tuple[Count, Annotated[float, Ge(0), Le(1)]]


@dataclass(frozen=True)
class Mail:
    """A pushed model that waits at a worker for its next activation."""

    node: Node  # who sent it
    number: Training  # of the training that made it
    round: Count  # in which it was sent


@dataclass(frozen=True)
class Peer:
    """A member of the roster."""

    name: Word
    node: Node
    address: Address
    fingerprint: Hex  # SHA-256 of its certificate; empty where the transport has none


@dataclass(frozen=True)
class Join:
    """Worker to coordinator, first message of every session."""

    protocol: Count
    run: Hex
    incarnation: Count  # a newer process of the same worker replaces the older one
    address: Address  # where it serves models
    schema: Hex  # of its model
    software: Word
    data_size: Count  # must be what was enrolled
    label_counts: Annotated[tuple[Count, ...], Len(0, MAX_NODES)]
    version: Count  # last published
    number: Training  # of the last finished training
    last_round: Count  # last round taken up
    phase: Phase
    epoch: Count  # highest epoch ever obeyed
    mail: Annotated[tuple[Mail, ...], Len(0, MAX_NODES)] = ()


@dataclass(frozen=True)
class JoinOk:
    """Coordinator to worker: you are in."""

    run: Hex
    epoch: Count
    round: Count  # the round that is open or opens next
    heartbeat_s: Seconds
    warm_start: bool  # begin to train at once if this is a new worker
    peers: Annotated[tuple[Peer, ...], Len(0, MAX_NODES)]


@dataclass(frozen=True)
class Reject:
    """Coordinator to worker: you are not in, and why."""

    code: Literal[
        "protocol", "run", "schema", "enrolment", "address", "epoch", "unknown", "quarantined",
        "revoked", "replaced",
    ]  # fmt: skip
    text: Text
    retry_s: Seconds = 0.0  # 0: trying again is no use


@dataclass(frozen=True)
class Heartbeat:
    """Both ways, every `heartbeat_s`. A worker's carries its state; the answer echoes `seq`."""

    seq: Count
    epoch: Count
    phase: Phase = "idle"
    last_round: Count = 0
    disk_full: bool = False


@dataclass(frozen=True)
class Pull:
    """One model to fetch in a stage of an order."""

    node: Node  # from whom
    exact: bool = False  # wait for the model that it has right before this stage of this round
    delta: bool = False  # the last update instead of the model
    mask: Mask | None = None  # only the coordinates that (seed, kept share) select
    into: Literal["row", "mail"] = "row"
    bytes_per_s: Annotated[float, Ge(0)] = 0.0  # emulated bandwidth of the link; 0: none
    background: bool = False  # nobody waits for it; a row that it feeds is mixed on arrival


@dataclass(frozen=True)
class Row:
    """How the receiver mixes in a stage: weights of sources, its own node among them."""

    sources: Annotated[tuple[Node, ...], Len(0, MAX_NODES)]
    weights: Annotated[tuple[Number, ...], Len(0, MAX_NODES)]
    kind: MixKind = "linear"
    mask: Mask | None = None
    mailed: Annotated[tuple[Node, ...], Len(0, MAX_NODES)] = ()  # sources taken from the mailbox
    to_self: bool = False  # what is lost goes to the own model instead of being renormalised


@dataclass(frozen=True)
class Stage:
    """One stage of an order: fetch all, then mix."""

    pulls: Annotated[tuple[Pull, ...], Len(0, MAX_NODES)] = ()
    row: Row | None = None


@dataclass(frozen=True)
class Execute:
    """Coordinator to worker (alg:dystop): take part in a round.

    With `train` the worker is active: it first finishes the training in flight, then goes through
    the stages and trains. Without it the worker is passive: it goes through the stages at once,
    beside its training.
    """

    epoch: Count
    round: Count
    train: bool
    stages: Annotated[tuple[Stage, ...], Len(0, 64)] = ()
    steps: Count = 0
    rate: Number = 1.0  # factor on the learning rate
    budget_s: Seconds = 0.0  # for fetching, from the moment that the order is taken up
    keep_mail: bool = False  # what has been read stays until its sender sends again


@dataclass(frozen=True)
class ExecuteAck:
    """Worker to coordinator: what became of an order when it arrived."""

    round: Count
    state: Literal["accepted", "queued", "duplicate", "stale_epoch", "busy"]
    epoch: Count = 0  # stale_epoch: the one that the worker obeys


@dataclass(frozen=True)
class Cancel:
    """Coordinator to worker: the round was closed without you; stop fetching for it."""

    epoch: Count
    round: Count


@dataclass(frozen=True)
class Used:
    """A fetched model that went into a mix or into the mailbox, as measured by the receiver."""

    node: Node
    stage: Count
    version: Count
    number: Training
    digest: Hex
    bytes: Count
    seconds: Seconds
    resumes: Count = 0
    distance: Annotated[float, Ge(0)] | None = None  # ||own - fetched||


RejectCode = Literal[
    "unreachable", "timeout", "not_authorised", "busy", "no_model", "wrong_run", "schema", "size",
    "digest", "not_finite", "norm", "distance", "variance", "replay", "malformed",
]  # fmt: skip


@dataclass(frozen=True)
class Rejected:
    """A model that did not come or was not accepted."""

    node: Node
    stage: Count
    code: RejectCode
    seconds: Seconds = 0.0
    bytes: Count = 0


@dataclass(frozen=True)
class Report:
    """Worker to coordinator, repeated until acknowledged.

    `mixed`: the exchange of a round is over. `trained`: the training that it started is over and
    published. `failed`: the order could not be carried out.
    """

    round: Count
    kind: Literal["mixed", "trained", "failed"]
    used: Annotated[tuple[Used, ...], Len(0, MAX_NODES)] = ()
    rejected: Annotated[tuple[Rejected, ...], Len(0, MAX_NODES)] = ()
    version: Count = 0  # newest publication of the worker
    number: Training = -1  # its last finished training
    digest: Hex = ""  # of that publication
    waited_s: Seconds = 0.0  # from the order to the end of the training in flight
    seconds: Seconds = 0.0  # mixed: fetching and mixing; trained: training
    steps: Count = 0
    samples: Count = 0
    loss: Number | None = None
    text: Text = ""


@dataclass(frozen=True)
class ReportAck:
    """Coordinator to worker, after the report is on the disk."""

    round: Count
    kind: Literal["mixed", "trained", "failed"]


@dataclass(frozen=True)
class Roster:
    """Coordinator to worker: who takes part now; who is missing here is refused from now on."""

    epoch: Count
    peers: Annotated[tuple[Peer, ...], Len(0, MAX_NODES)]


@dataclass(frozen=True)
class Evaluate:
    """Coordinator to observer: test everybody's model as it stands after a round."""

    epoch: Count
    round: Count
    nodes: Annotated[tuple[Node, ...], Len(0, MAX_NODES)]


@dataclass(frozen=True)
class Scored:
    """Observer to coordinator."""

    round: Count
    accuracy: Number
    accuracy_std: Number
    accuracy_global: Number
    loss: Number | None
    loss_global: Number | None
    diverged: Count
    missing: Annotated[tuple[Node, ...], Len(0, MAX_NODES)] = ()


@dataclass(frozen=True)
class Leave:
    """Worker to coordinator: going away on purpose."""

    text: Text = ""


@dataclass(frozen=True)
class Stop:
    """Coordinator to worker: the run is over; save, leave and exit."""

    epoch: Count
    text: Text = ""


@dataclass(frozen=True)
class Complaint:
    """Both ways: a message was not understood."""

    code: Word
    text: Text


ToCoordinator = Join | Heartbeat | ExecuteAck | Report | Scored | Leave | Complaint
ToWorker = (
    JoinOk
    | Reject
    | Heartbeat
    | Execute
    | Cancel
    | ReportAck
    | Roster
    | Evaluate
    | Stop
    | Complaint
)
Message = ToCoordinator | ToWorker


@dataclass(frozen=True)
class PullRequest:
    """Worker to worker: give me your model.

    `exact` asks for the model that the sender has right before `stage` of `round`, and waits for
    it. Otherwise the newest publication counts whose training began before `round`.
    """

    run: Hex
    round: Count
    stage: Count = 0
    exact: bool = False
    delta: bool = False
    mask: Mask | None = None
    version: Count = 0  # go on with this publication ...
    offset: Count = 0  # ... from this byte
    bytes_per_s: Annotated[float, Ge(0)] = 0.0


@dataclass(frozen=True)
class ModelHeader:
    """Worker to worker, before the bytes."""

    version: Count
    number: Training
    round: Count  # whose order began the training that made it; 0: the start of the run
    size: Count
    sha256: Hex
    schema: Hex
    offset: Count = 0


@dataclass(frozen=True)
class PullRefused:
    """Worker to worker, instead of a header."""

    code: RejectCode
    retry_s: Seconds = 0.0
