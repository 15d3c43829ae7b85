"""An order on its way through its stages: what is fetched, what arrived, what it became."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from dystop.control.aggregation import kept_coordinates
from dystop.testbed.events import Abandon, Fetch, Fetched, FetchFailed, Vector, WorkerAction
from dystop.testbed.params import Guards
from dystop.testbed.protocol.messages import (
    Execute,
    Peer,
    Pull,
    PullRequest,
    RejectCode,
    Rejected,
    Row,
    Used,
)
from dystop.testbed.worker.guard import Claim, Guard, Verdict, mix_arrived
from dystop.testbed.worker.state import MailboxEntry, WorkerSetup


@dataclass(frozen=True)
class Wanted:
    """A fetch under way, and what it is for."""

    pull: Pull
    round: int
    stage: int
    weight: float | None = None  # background: mix on arrival with this weight; None: mail

    def used(self, event: Fetched, distance: float | None) -> Used:
        """The line of a report about a model that was accepted."""
        head = event.header
        return Used(
            node=self.pull.node,
            stage=self.stage,
            version=head.version,
            number=head.number,
            digest=head.sha256,
            bytes=event.bytes,
            seconds=max(event.seconds, 0.0),
            resumes=event.resumes,
            distance=distance,
        )

    def rejected(self, code: RejectCode, event: Fetched | FetchFailed | None = None) -> Rejected:
        """The line of a report about a model that did not come or was not accepted."""
        if event is None:
            return Rejected(self.pull.node, self.stage, code)
        return Rejected(self.pull.node, self.stage, code, max(event.seconds, 0.0), event.bytes)

    def letter(self, event: Fetched) -> MailboxEntry:
        """What goes into the mailbox."""
        return MailboxEntry(event.header.number, self.round, event.vector, self.pull.delta)


def judged(guard: Guard, wanted: Wanted, event: Fetched, own: Vector) -> Verdict:
    """Whether the worker believes a model that it fetched."""
    pull, head = wanted.pull, event.header
    # Snapshots inside a round have versions of their own between two publications, so that a
    # publication that is fetched later may have a smaller one without being a replay.
    inside = pull.exact and wanted.stage > 0
    node = -1 - pull.node if inside else pull.node
    claim = Claim(node, wanted.round, head.version, head.number)
    masked = pull.mask is not None and len(event.vector) != len(own)
    kept = kept_coordinates(*pull.mask, len(own)) if masked and pull.mask else None
    return guard.judge(claim, event.vector, own, "delta" if pull.delta else "model", kept)


@dataclass
class ActiveExchange:
    """An order that has been taken up."""

    order: Execute
    own: Vector  # the model before the order
    base: Vector | None  # where the own update began, for rows of updates
    start: Vector | None  # where the training behind the model began
    letters: Mapping[int, MailboxEntry]  # the mailbox when the order was taken up
    accepted_s: float
    began_s: float
    deadline_s: float
    stage: int = 0
    waiting: dict[int, Wanted] = field(default_factory=dict)
    arrived: dict[int, Vector] = field(default_factory=dict)
    mailed: dict[int, MailboxEntry] = field(
        default_factory=dict
    )  # what this order puts in the mailbox
    used: list[Used] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = self.own

    @property
    def is_over(self) -> bool:
        """Whether all stages lie behind."""
        return self.stage >= len(self.order.stages)

    @property
    def row(self) -> Row | None:
        """Row of this stage that is mixed now; one fed by a background link waits for it."""
        here = self.order.stages[self.stage]
        late = any(p.background and p.into == "row" for p in here.pulls)
        return None if late else here.row

    def take(self, wanted: Wanted, event: Fetched, verdict: Verdict) -> None:
        """A fetch has ended, with a model that is believed or not."""
        if verdict.code is not None:
            self.rejected.append(wanted.rejected(verdict.code, event))
            return
        self.used.append(wanted.used(event, verdict.distance))
        if wanted.pull.into == "mail":
            self.mailed[wanted.pull.node] = wanted.letter(event)
        else:
            self.arrived[wanted.pull.node] = event.vector

    def miss(self, wanted: Wanted, code: RejectCode, event: FetchFailed | None = None) -> None:
        """A fetch has ended without a model."""
        self.rejected.append(wanted.rejected(code, event))

    def mix(self, node: int, guards: Guards, radius: float | None) -> bool:
        """Mix this stage (eq:aggregation) and go to the next; tells whether the model changed."""
        before, row = self.model, self.row
        if row is not None:
            arrived = self._from_mail(row) | self.arrived
            self.model = mix_arrived(
                row, node, before, arrived, guards, start=self.base, radius=radius
            )
        if not self.order.train and self.model is not before:
            self._move(self.model - before)
        self.arrived = {}
        self.stage += 1
        return self.model is not before

    def _move(self, shift: Vector) -> None:
        """A passive mix leaves the updates as they were: where they began moves along."""
        self.start = None if self.start is None else self.start + shift
        self.base = None if self.base is None else self.base + shift

    def _from_mail(self, row: Row) -> dict[int, Vector]:
        return {j: self.letters[j].vector for j in row.mailed if j in self.letters}


def weight_of(row: Row | None, node: int) -> float | None:
    """Weight of a source in a row, if it has one.

    >>> weight_of(Row((0, 3), (0.25, 0.75)), 3)
    0.75
    """
    if row is None or node not in row.sources:
        return None
    return row.weights[row.sources.index(node)]


def blended(own: Vector, other: Vector, weight: float) -> Vector:
    """What a background link makes of a model when it arrives."""
    return (np.float32(1.0 - weight) * own + np.float32(weight) * other).astype(np.float32)


# MERGED: Which fetches a worker has under way, and from whom it may fetch. Part of `WorkerMachine`.


class Fetches:
    """Keys, peers, and fetches that nobody waits for."""

    def __init__(self, setup: WorkerSetup, guard: Guard) -> None:
        """Without peers; the roster brings them."""
        self._setup, self._guard = setup, guard
        self._last_key = 0
        self.peers: dict[int, Peer] = {}
        self.background: dict[int, Wanted] = {}

    def meet(self, peers: Iterable[Peer]) -> None:
        """These take part now. A peer that is new, or lives elsewhere now, may have begun anew."""
        known = {p.node: p for p in peers if p.node != self._setup.node}
        for node, peer in known.items():
            if self.peers.get(node) != peer:
                self._guard.forget(node)
                self._guard.forget(-1 - node)
        self.peers = known

    def knows(self, order: Execute) -> bool:
        """Whether all from whom an order wants to fetch take part, as far as we know."""
        return all(p.node in self.peers for stage in order.stages for p in stage.pulls)

    def begin_stage(self, errand: ActiveExchange, run: str, now_s: float) -> list[WorkerAction]:
        """Fetch all that the stage needs, at once; what cannot be fetched is missing."""
        order, actions = errand.order, list[WorkerAction]()
        here = order.stages[errand.stage]
        for pull in here.pulls:
            weight = weight_of(here.row, pull.node) if pull.into == "row" else None
            wanted = Wanted(pull, order.round, errand.stage, weight)
            if pull.node not in self.peers:
                errand.miss(wanted, "unreachable")
            elif pull.background:
                cap_s = now_s + self._setup.timeouts.round_cap_s
                actions.append(self._fetch(wanted, run, self.background, cap_s))
            elif now_s >= errand.deadline_s:
                errand.miss(wanted, "timeout")
            else:
                actions.append(self._fetch(wanted, run, errand.waiting, errand.deadline_s))
        return actions

    def abandon(self, errand: ActiveExchange) -> list[WorkerAction]:
        """Give up what an order still waits for."""
        keys = list(errand.waiting)
        errand.waiting.clear()
        return [Abandon(key) for key in keys]

    def abandon_strangers(self, errand: ActiveExchange | None) -> list[WorkerAction]:
        """Give up fetches from those who no longer take part."""
        actions: list[WorkerAction] = []
        for key in [k for k, w in self.background.items() if w.pull.node not in self.peers]:
            del self.background[key]
            actions.append(Abandon(key))
        waiting = errand.waiting if errand else {}
        for key in [k for k, w in waiting.items() if w.pull.node not in self.peers]:
            if errand:
                errand.miss(waiting.pop(key), "not_authorised")
            actions.append(Abandon(key))
        return actions

    def _fetch(self, wanted: Wanted, run: str, into: dict[int, Wanted], deadline_s: float) -> Fetch:
        self._last_key += 1
        into[self._last_key] = wanted
        peer = self.peers[wanted.pull.node]
        request = _request(run, wanted.pull, wanted.round, wanted.stage)
        return Fetch(self._last_key, peer.node, peer.name, peer.address, request, deadline_s)


def _request(run: str, pull: Pull, round_: int, stage: int) -> PullRequest:
    return PullRequest(
        run=run,
        round=round_,
        stage=stage,
        exact=pull.exact,
        delta=pull.delta,
        mask=pull.mask,
        bytes_per_s=pull.bytes_per_s,
    )
