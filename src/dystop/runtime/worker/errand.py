"""An order on its way through its stages: what is fetched, what arrived, what it became."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dystop.control.masks import kept_coordinates
from dystop.runtime.events import Fetched, FetchFailed, Vector
from dystop.runtime.params import Guards
from dystop.runtime.wire.messages import Execute, Pull, RejectCode, Rejected, Row, Used
from dystop.runtime.worker.guard import Claim, Guard, Verdict, mix_arrived
from dystop.runtime.worker.state import Letter


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

    def letter(self, event: Fetched) -> Letter:
        """What goes into the mailbox."""
        return Letter(event.header.number, self.round, event.vector, self.pull.delta)


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
class Errand:
    """An order that has been taken up."""

    order: Execute
    own: Vector  # the model before the order
    base: Vector | None  # where the own update began, for rows of updates
    start: Vector | None  # where the training behind the model began
    letters: Mapping[int, Letter]  # the mailbox when the order was taken up
    accepted_s: float
    began_s: float
    deadline_s: float
    stage: int = 0
    waiting: dict[int, Wanted] = field(default_factory=dict)
    arrived: dict[int, Vector] = field(default_factory=dict)
    mailed: dict[int, Letter] = field(default_factory=dict)  # what this order puts in the mailbox
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
