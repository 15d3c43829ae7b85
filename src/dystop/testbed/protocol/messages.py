"""The messages between coordinator, workers and observer.

Control messages travel on one long-lived session that each worker opens to the coordinator. Models
travel from worker to worker, never through the coordinator (`testbed.protocol.pulls`). The
certificate names the sender; no field does. `testbed.protocol.codec` turns messages into bounded
JSON and refuses anything else.

`round` counts from 1. `number` is the running number of a worker's local trainings: 0 is the one
that starts with the run, as `ControlState.version` counts them. `version` counts the models that a
worker has published; it rises with every publication and survives restarts.

Class names and field names in this module are the wire format.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Le, Len

MAX_NODES = 10_000
MAX_LEAD = 1_000_000  # rounds that a member may be ahead; a backup is a few hundred rounds old
MAX_VERSION = 2**53
MAX_REAL = 1e50  # largest loss or distance: beyond what float32 models can have

Count = Annotated[int, Ge(0), Le(2**63 - 1)]
Training = Annotated[int, Ge(-1), Le(2**63 - 1)]  # running number; -1: none is finished yet
Node = Annotated[int, Ge(0), Le(MAX_NODES)]
Seconds = Annotated[float, Ge(0), Le(1e9)]
Number = Annotated[float, Ge(-1e300), Le(1e300)]
PerWorker = Annotated[tuple[Number | None, ...], Len(0, MAX_NODES)]
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
    """Worker to coordinator: the first message of every session."""

    format: Count  # `dystop.format.FORMAT`
    run: Hex
    incarnation: Count  # as `JoinOk` gave it to this process; 0: a new process
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
    """Coordinator to worker: the worker is a member."""

    run: Hex
    epoch: Count
    round: Count  # the round that is open, or opens next
    heartbeat_s: Seconds
    warm_start: bool  # a new worker starts training at once
    peers: Annotated[tuple[Peer, ...], Len(0, MAX_NODES)]
    incarnation: Count = 0  # of the process; a newer process of the same member has a larger one


@dataclass(frozen=True)
class Reject:
    """Coordinator to worker: the worker is not a member, and why."""

    code: Literal[
        "format", "run", "schema", "enrolment", "address", "epoch", "unknown", "quarantined",
        "revoked", "replaced", "implausible",
    ]  # fmt: skip
    text: Text
    retry_s: Seconds = 0.0  # 0: a retry will fail, too


@dataclass(frozen=True)
class Heartbeat:
    """Both ways, every `heartbeat_s`. The reply repeats `seq` and names the newest round."""

    seq: Count
    epoch: Count
    phase: Phase = "idle"
    last_round: Count = 0
    disk_full: bool = False


@dataclass(frozen=True)
class Pull:
    """One model to pull in a stage of an order."""

    node: Node  # the in-neighbour
    exact: bool = False  # wait for the model that it has right before this stage of this round
    delta: bool = False  # the last update instead of the model
    mask: Mask | None = None  # only the coordinates that (seed, kept share) select
    into: Literal["row", "mail"] = "row"
    bytes_per_s: Annotated[float, Ge(0)] = 0.0  # emulated bandwidth of the link; 0: none
    background: bool = False  # the order does not wait for it; its row is mixed when it arrives


@dataclass(frozen=True)
class Row:
    """How the receiver aggregates in a stage: weights of the sources, itself among them."""

    sources: Annotated[tuple[Node, ...], Len(0, MAX_NODES)]
    weights: Annotated[tuple[Number, ...], Len(0, MAX_NODES)]
    kind: MixKind = "linear"
    mask: Mask | None = None
    mailed: Annotated[tuple[Node, ...], Len(0, MAX_NODES)] = ()  # sources taken from the mailbox
    to_self: bool = (
        False  # the weight of a lost model goes to the own one, instead of renormalising
    )


@dataclass(frozen=True)
class CarryingRow(Row):
    """A row with other weights for the carried vectors that have rows of their own."""

    carried: Annotated[tuple[Number, ...], Len(0, MAX_NODES)] = field(kw_only=True)


@dataclass(frozen=True)
class Stage:
    """One stage of an order: pull all, then aggregate."""

    pulls: Annotated[tuple[Pull, ...], Len(0, MAX_NODES)] = ()
    row: CarryingRow | Row | None = None


@dataclass(frozen=True)
class Execute:
    """Coordinator to worker (alg:dystop): take part in a round.

    With `train` the worker is active: it first finishes the training in progress, then executes
    the stages and trains. Without it the worker is passive: it executes the stages at once, while
    its training continues.
    """

    epoch: Count
    round: Count
    train: bool
    stages: Annotated[tuple[Stage, ...], Len(0, 64)] = ()
    steps: Count = 0
    rate: Number = 1.0  # factor on the learning rate
    budget_s: Seconds = 0.0  # for pulling, from the moment the worker starts the order
    keep_mail: bool = False  # a mailed model stays until its sender sends again
    dt: Seconds = 0.0  # since the last round of an active worker opened


@dataclass(frozen=True)
class ExecuteAck:
    """Worker to coordinator: what the worker did with an order on arrival."""

    round: Count
    state: Literal["accepted", "queued", "duplicate", "stale_epoch", "busy"]
    epoch: Count = 0  # stale_epoch: the one that the worker obeys


@dataclass(frozen=True)
class Cancel:
    """Coordinator to worker: the round closed without the worker; it must stop pulling."""

    epoch: Count
    round: Count


@dataclass(frozen=True)
class Used:
    """A pulled model that was aggregated or put into the mailbox, as the receiver measured it."""

    node: Node
    stage: Count
    version: Count
    number: Training
    digest: Hex
    bytes: Count
    seconds: Seconds
    resumes: Count = 0
    distance: Annotated[float, Ge(0)] | None = None  # ||own - pulled||


RejectCode = Literal[
    "unreachable", "timeout", "not_authorised", "busy", "no_model", "wrong_run", "schema", "size",
    "digest", "not_finite", "norm", "distance", "variance", "replay", "malformed",
]  # fmt: skip


@dataclass(frozen=True)
class Rejected:
    """A model that did not arrive or was not accepted."""

    node: Node
    stage: Count
    code: RejectCode
    seconds: Seconds = 0.0
    bytes: Count = 0
    version: Count = 0  # as the sender announced it; 0 with an empty digest: nothing was announced
    digest: Hex = ""


@dataclass(frozen=True)
class Report:
    """Worker to coordinator: the result of an order, repeated until acknowledged.

    `mixed`: the exchange of the round is complete. `trained`: the training that it started is
    complete and its model published. `failed`: the order could not be executed.
    """

    round: Count
    kind: Literal["mixed", "trained", "failed"]
    used: Annotated[tuple[Used, ...], Len(0, MAX_NODES)] = ()
    rejected: Annotated[tuple[Rejected, ...], Len(0, MAX_NODES)] = ()
    version: Count = 0  # newest publication of the worker
    number: Training = -1  # its last finished training
    digest: Hex = ""  # of that publication
    waited_s: Seconds = 0.0  # from the order to the end of the training in progress
    seconds: Seconds = 0.0  # mixed: pulling and aggregating; trained: training
    steps: Count = 0
    samples: Count = 0
    loss: Number | None = None
    text: Text = ""


@dataclass(frozen=True)
class ReportAck:
    """Coordinator to worker: the report is on the disk."""

    round: Count
    kind: Literal["mixed", "trained", "failed"]


@dataclass(frozen=True)
class Roster:
    """Coordinator to worker: the current members; all others are refused from now on."""

    epoch: Count
    peers: Annotated[tuple[Peer, ...], Len(0, MAX_NODES)]


@dataclass(frozen=True)
class Evaluate:
    """Coordinator to observer: evaluate all models as they are after a round."""

    epoch: Count
    round: Count
    nodes: Annotated[tuple[Node, ...], Len(0, MAX_NODES)]


@dataclass(frozen=True)
class Scored:
    """Observer to coordinator: the result of an evaluation."""

    round: Count
    accuracy: Number
    accuracy_std: Number
    accuracy_global: Number
    loss: Number | None
    loss_global: Number | None
    diverged: Count
    missing: Annotated[tuple[Node, ...], Len(0, MAX_NODES)] = ()
    tested: Count = 0  # models that were evaluated
    worker_accuracy: PerWorker = ()  # of each worker; empty: not asked for, null: not tested
    worker_loss: PerWorker = ()


@dataclass(frozen=True)
class NotTestable:
    """Observer to coordinator: a round gets no score, and why."""

    round: Count
    text: Text = ""


@dataclass(frozen=True)
class Judge:
    """Coordinator to observer: pull a model that a worker refused, and check it."""

    epoch: Count
    node: Node  # the sender
    version: Count  # that was refused; 0: the newest
    round: Count  # of the order whose pull was refused
    stage: Count = 0
    exact: bool = False
    delta: bool = False
    mask: Mask | None = None


@dataclass(frozen=True)
class Judged:
    """Observer to coordinator: the result of a check."""

    node: Node
    version: Count  # as in `Judge`
    outcome: Literal["accepted", "refused", "not_testable"]
    code: RejectCode | None = None  # why it was refused or could not be tested
    digest: Hex = ""  # of the model that the observer was served


@dataclass(frozen=True)
class Leave:
    """Worker to coordinator: the worker leaves on purpose."""

    text: Text = ""


@dataclass(frozen=True)
class Stop:
    """Coordinator to worker: the run has ended; save, leave and exit."""

    epoch: Count
    text: Text = ""


# What may be wrong with a member. Workers report only what they saw of a peer.
IncidentKind = Literal[
    "bad_message", "hung", "busy", "flood", "half_open", "accusation", "not_testable", "failed",
    "bad_model", "slow", "left_behind", "damaged_checkpoint", "backup_failed", "refused",
]  # fmt: skip


@dataclass(frozen=True)
class Incident:
    """Worker or observer to coordinator: what it saw of a peer. It is shown, and nothing else.

    A worker reports its own damaged checkpoint in the same way.
    """

    node: Node  # the peer
    kind: IncidentKind
    count: Annotated[int, Ge(1), Le(1_000_000)]  # since the last message about this peer and kind
    text: Text = ""


@dataclass(frozen=True)
class Complaint:
    """Both ways: a message could not be decoded."""

    code: Word
    text: Text


ToCoordinator = (
    Join
    | Heartbeat
    | ExecuteAck
    | Report
    | Scored
    | NotTestable
    | Judged
    | Leave
    | Incident
    | Complaint
)
ToWorker = (
    JoinOk
    | Reject
    | Heartbeat
    | Execute
    | Cancel
    | ReportAck
    | Roster
    | Evaluate
    | Judge
    | Stop
    | Complaint
)
Message = ToCoordinator | ToWorker
