"""The exchange of one order, stage by stage, and the pulls of a worker."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from dystop.control.aggregation import kept_coordinates
from dystop.testbed.events import (
    CancelPull,
    Counters,
    Publication,
    PullFailed,
    PullFinished,
    StartPull,
    Vector,
    WorkerAction,
)
from dystop.testbed.protocol.messages import (
    CarryingRow,
    Execute,
    Peer,
    Pull,
    RejectCode,
    Rejected,
    Row,
    Used,
)
from dystop.testbed.protocol.pulls import PullRequest
from dystop.testbed.worker.guard import Guard, Verdict, claim_of
from dystop.testbed.worker.mixer import Mixer, mix_own_rows
from dystop.testbed.worker.state import MailboxEntry, WorkerSetup

BACKGROUND_FACTOR = 10.0  # a pull that no round waits for may last so many times the longest round


@dataclass(frozen=True)
class PendingPull:
    """A running pull, and what its model is for."""

    pull: Pull
    round: int
    stage: int
    weight: float | None = None  # background: mix on arrival with this weight; None: mail

    def used(self, event: PullFinished, distance: float | None) -> Used:
        """Return the entry of a report for an accepted model."""
        header = event.header
        return Used(
            node=self.pull.node,
            stage=self.stage,
            version=header.version,
            number=header.number,
            digest=header.content,
            bytes=event.bytes,
            seconds=max(event.seconds, 0.0),
            resumes=event.resumes,
            distance=distance,
        )

    def rejected(
        self, code: RejectCode, event: PullFinished | PullFailed | None = None
    ) -> Rejected:
        """Return the entry of a report for a model that did not arrive or was refused."""
        if event is None:
            return Rejected(self.pull.node, self.stage, code)
        header = event.header if isinstance(event, PullFinished) else event.announced
        digest = event.header.content if isinstance(event, PullFinished) else ""
        return Rejected(
            node=self.pull.node,
            stage=self.stage,
            code=code,
            seconds=max(event.seconds, 0.0),
            bytes=event.bytes,
            version=header.version if header else 0,
            digest=digest or (header.sha256 if header else ""),
        )

    def mailbox_entry(self, event: PullFinished) -> MailboxEntry:
        """Return the model as an entry of the mailbox."""
        return MailboxEntry(event.header.number, self.round, event.vector, self.pull.delta)

    def judge(self, guard: Guard, event: PullFinished, own: Vector) -> Verdict:
        """Return whether the worker may use the pulled model."""
        pull = self.pull
        # Snapshots within a round have versions between two publications. A publication that is
        # pulled later may then have a smaller version without being a replay. The guard therefore
        # tracks snapshots of a peer under a number of their own.
        is_snapshot = pull.exact and self.stage > 0
        node = snapshot_id(pull.node) if is_snapshot else pull.node
        claim = claim_of(node, self.round, event.header)
        is_masked = pull.mask is not None and len(event.vector) != len(own)
        kept = kept_coordinates(*pull.mask, len(own)) if is_masked and pull.mask else None
        return guard.judge(claim, event.vector, own, "delta" if pull.delta else "model", kept)


def snapshot_id(node: int) -> int:
    """Return the number under which the guard tracks the snapshots of a peer."""
    return -1 - node


@dataclass
class ActiveExchange:
    """The order that a worker executes."""

    order: Execute
    own: Vector  # the model before the order
    counters: Counters  # of the newest model
    base: Vector | None  # where the own update started, for rows of updates
    start: Vector | None  # where the training behind the model started
    mailbox: Mapping[int, MailboxEntry]  # when the exchange started
    accepted_s: float
    began_s: float
    deadline_s: float
    stage: int = 0
    pending: dict[int, PendingPull] = field(default_factory=dict)  # by key
    arrived: dict[int, Vector] = field(default_factory=dict)  # models of this stage, by sender
    mailed: dict[int, MailboxEntry] = field(default_factory=dict)  # new entries of the mailbox
    used: list[Used] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = self.own

    @property
    def is_over(self) -> bool:
        """Whether all stages are finished."""
        return self.stage >= len(self.order.stages)

    @property
    def row(self) -> Row | None:
        """The row that this stage mixes now; a row with a background pull is mixed on arrival."""
        stage = self.order.stages[self.stage]
        in_background = any(p.background and p.into == "row" for p in stage.pulls)
        return None if in_background else stage.row

    def pull_finished(self, pending: PendingPull, event: PullFinished, verdict: Verdict) -> None:
        """Keep a model if the verdict allows it."""
        if verdict.code is not None:
            self.rejected.append(pending.rejected(verdict.code, event))
            return
        self.used.append(pending.used(event, verdict.distance))
        if pending.pull.into == "mail":
            self.mailed[pending.pull.node] = pending.mailbox_entry(event)
        else:
            self.arrived[pending.pull.node] = event.vector

    def pull_failed(
        self, pending: PendingPull, code: RejectCode, event: PullFailed | None = None
    ) -> None:
        """Register a pull that ended without a model."""
        self.rejected.append(pending.rejected(code, event))

    def mix(
        self, setup: WorkerSetup, mixer: Mixer, radius: float | None, served: Publication
    ) -> bool:
        """Mix this stage (eq:aggregation) and go to the next; return whether the model changed.

        Args:
            setup: Of the worker.
            mixer: Of the worker.
            radius: The usual distance of models.
            served: What peers get of the model before this stage.
        """
        before, row = self.model, self.row
        if row is not None:
            mailed = {j: self.mailbox[j].vector for j in row.mailed if j in self.mailbox}
            here, node = mailed | self.arrived, setup.node
            copy = partial(setup.own_copy, served, self.order.round, self.stage)
            self.model = mixer.mix_arrived(
                row, node, before, here, start=self.base, radius=radius, own_copy=copy
            )
            if isinstance(row, CarryingRow) and setup.carrying is not None:
                columns = setup.carrying.places.own
                self.model = mix_own_rows(row, self.model, here | {node: before}, columns)
        if not self.order.train and self.model is not before:
            self._move_start(self.model - before)
        self.arrived = {}
        self.stage += 1
        return self.model is not before

    def result(self, setup: WorkerSetup) -> tuple[Vector, Counters]:
        """Return model and counters with which an active worker begins to train."""
        if setup.carrying is None:
            return self.model, self.counters
        dt = np.array([self.order.dt], self.model.dtype)
        before, mixed = (self.own, self.counters), (self.model, self.counters)
        return setup.carrying.after_mixing(before, mixed, dt)

    def _move_start(self, shift: Vector) -> None:
        """Move the start of the training by a passive mix, so that its update stays the same."""
        self.start = None if self.start is None else self.start + shift
        self.base = None if self.base is None else self.base + shift


def weight_of(row: Row | None, node: int) -> float | None:
    """Return the weight of a source in a row; None if the row does not contain it.

    >>> weight_of(Row((0, 3), (0.25, 0.75)), 3)
    0.75
    """
    if row is None or node not in row.sources:
        return None
    return row.weights[row.sources.index(node)]


def mixed_with(own: Vector, other: Vector, weight: float) -> Vector:
    """Return the own model mixed with one that a background pull delivered."""
    return (np.float32(1.0 - weight) * own + np.float32(weight) * other).astype(np.float32)


class PullTracker:
    """The peers that a worker may pull from, and its running background pulls."""

    def __init__(self, setup: WorkerSetup, guard: Guard) -> None:
        self._setup, self._guard = setup, guard
        self._last_key = 0
        self.peers: dict[int, Peer] = {}
        self.background: dict[int, PendingPull] = {}

    def set_peers(self, peers: Iterable[Peer]) -> None:
        """Replace the known peers; a peer that is new or has moved may count versions anew."""
        by_node = {p.node: p for p in peers if p.node != self._setup.node}
        for node, peer in by_node.items():
            if self.peers.get(node) != peer:
                self._guard.forget(node)
                self._guard.forget(snapshot_id(node))
        self.peers = by_node

    def knows_all(self, order: Execute) -> bool:
        """Return whether all senders of an order are known peers."""
        return all(p.node in self.peers for stage in order.stages for p in stage.pulls)

    def start_stage(self, exchange: ActiveExchange, run: str, now_s: float) -> list[WorkerAction]:
        """Start all pulls of a stage; register those that cannot start as failed."""
        order, actions = exchange.order, list[WorkerAction]()
        stage = order.stages[exchange.stage]
        for pull in stage.pulls:
            weight = weight_of(stage.row, pull.node) if pull.into == "row" else None
            pending = PendingPull(pull, order.round, exchange.stage, weight)
            if pull.node not in self.peers:
                exchange.pull_failed(pending, "unreachable")
            elif pull.background:
                cap_s = BACKGROUND_FACTOR * self._setup.params.timeouts.round_cap_s
                actions.append(self._start(pending, run, self.background, now_s + cap_s))
            elif now_s >= exchange.deadline_s:
                exchange.pull_failed(pending, "timeout")
            else:
                deadline_s = exchange.deadline_s
                actions.append(self._start(pending, run, exchange.pending, deadline_s))
        return actions

    def cancel_unknown(self, exchange: ActiveExchange | None) -> list[WorkerAction]:
        """Cancel the pulls from nodes that are no longer peers."""
        actions: list[WorkerAction] = []
        for key in [k for k, p in self.background.items() if p.pull.node not in self.peers]:
            del self.background[key]
            actions.append(CancelPull(key))
        pending = exchange.pending if exchange else {}
        for key in [k for k, p in pending.items() if p.pull.node not in self.peers]:
            if exchange:
                exchange.pull_failed(pending.pop(key), "not_authorised")
            actions.append(CancelPull(key))
        return actions

    def _start(
        self, pending: PendingPull, run: str, into: dict[int, PendingPull], deadline_s: float
    ) -> StartPull:
        self._last_key += 1
        into[self._last_key] = pending
        pull, peer = pending.pull, self.peers[pending.pull.node]
        request = PullRequest(
            run=run,
            round=pending.round,
            stage=pending.stage,
            exact=pull.exact,
            delta=pull.delta,
            mask=pull.mask,
            bytes_per_s=pull.bytes_per_s,
        )
        return StartPull(self._last_key, peer.node, peer.name, peer.address, request, deadline_s)
