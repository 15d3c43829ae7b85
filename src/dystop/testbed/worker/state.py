"""What a worker knows before it meets anybody, and what of it survives a restart.

Both are immutable: a new state is made for every change, so that the one that is being written to
the disk cannot move under the writer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dystop.testbed.events import Counters, Vector
from dystop.testbed.params import Guards, Limits, Timeouts
from dystop.testbed.protocol.messages import Mail, Phase, Report

VERSION_GAP = 64  # most snapshots that an order can hand out before they are on the disk


@dataclass(frozen=True)
class WorkerSetup:
    """Who a worker is. Fixed for the life of the process."""

    name: str
    node: int
    schema: str
    address: str = ""  # where it serves models
    software: str = ""
    data_size: int = 0
    label_counts: tuple[int, ...] = ()
    incarnation: int = 1  # a newer process of the same worker has a larger one
    first_steps: int = 0  # mini-batches of training 0 under a warm start; 0: it never trains alone
    deltas: bool = False  # remember where trainings began: updates are sent or mixed
    observer: str = "observer"  # may fetch from everybody
    timeouts: Timeouts = field(default_factory=Timeouts)
    guards: Guards = field(default_factory=Guards)
    limits: Limits = field(default_factory=Limits)
    digest: Callable[[Vector], str] = lambda vector: ""  # of the payload that peers would fetch


@dataclass(frozen=True)
class TrainingInFlight:
    """A local training that has been started."""

    number: int
    round: int  # whose order started it; 0: the start of the run
    steps: int
    rate: float
    stages: int = 1  # of that order


@dataclass(frozen=True)
class MailboxEntry:
    """A pushed model that waits for the next activation."""

    number: int  # of the sender's training that made it
    round: int  # in which it was sent
    vector: Vector
    delta: bool = False


@dataclass(frozen=True)
class WorkerState:
    """Everything that survives a restart."""

    published: Vector  # what peers fetch
    counters: Counters  # integers of the model, never mixed
    version: int = 0  # of the published model
    number: int = -1  # of the last finished training
    round: int = 0  # whose order began the training that made the published model
    start: Vector | None = None  # where that training began, if updates are wanted
    mixed: Vector | None = None  # where the training in flight began
    shift: Vector | None = None  # what passive mixes have added since it began
    flight: TrainingInFlight | None = None
    last_round: int = 0  # last round that was taken up
    epoch: int = 0  # highest ever obeyed
    reports: tuple[Report, ...] = ()  # not acknowledged yet
    letters: Mapping[int, MailboxEntry] = field(default_factory=dict)  # newest by sender
    incarnation: int = 0
    run: str = ""  # the run that it belongs to; empty: it has never been let into one

    @property
    def phase(self) -> Phase:
        """Whether a training is in flight; fetching is not remembered."""
        return "training" if self.flight else "idle"

    @property
    def mail(self) -> tuple[Mail, ...]:
        """What waits in the mailbox, by sender."""
        return tuple(Mail(k, m.number, m.round) for k, m in sorted(self.letters.items()))


def first_state(vector: Vector, counters: Counters, *, deltas: bool = False) -> WorkerState:
    """A worker without a past: the model that everybody begins with.

    >>> import numpy as np
    >>> first_state(np.zeros(3, np.float32), np.zeros(0, np.int64)).number
    -1
    """
    vector = np.asarray(vector, np.float32)
    return WorkerState(vector, np.asarray(counters, np.int64), start=vector if deltas else None)


def without_report(state: WorkerState, round_: int, kind: str) -> WorkerState:
    """The state after a report was acknowledged."""
    kept = tuple(r for r in state.reports if (r.round, r.kind) != (round_, kind))
    return state if len(kept) == len(state.reports) else replace(state, reports=kept)


def with_report(state: WorkerState, report: Report) -> WorkerState:
    """The state with one more report to be acknowledged; it replaces one of the same name."""
    state = without_report(state, report.round, report.kind)
    return replace(state, reports=(*state.reports, report))


def mixed_while_training(state: WorkerState, mixed: Vector, version: int) -> WorkerState:
    """The state after a passive mix: the published model changes, a training keeps its update.

    As in `engine.models.write_rows`: where the last training began moves along, and a training in
    flight gets the same shift on top when it ends.
    """
    shift = mixed - state.published
    start = None if state.start is None else state.start + shift
    state = replace(state, published=mixed, start=start, version=version)
    if state.flight is None:
        return state
    return replace(state, shift=shift if state.shift is None else state.shift + shift)


def training_started(state: WorkerState, model: Vector, flight: TrainingInFlight) -> WorkerState:
    """The state with a training in flight that began at `model`."""
    last = max(state.last_round, flight.round)
    return replace(state, mixed=model, shift=None, flight=flight, last_round=last)


def training_finished(
    state: WorkerState, vector: Vector, counters: Counters, version: int
) -> WorkerState:
    """The state after the training in flight has ended and is published."""
    flight, begun = state.flight, state.mixed
    if flight is None or begun is None:
        raise AssertionError("no training is in flight")
    if state.shift is not None:
        vector, begun = vector + state.shift, begun + state.shift
    return replace(
        state,
        published=vector,
        counters=counters,
        version=version,
        number=flight.number,
        round=flight.round,
        start=None if state.start is None else begun,
        mixed=None,
        shift=None,
        flight=None,
    )


def training_failed(state: WorkerState) -> WorkerState:
    """The state after a training whose result cannot be used: the model before it stays."""
    flight = state.flight
    number = state.number if flight is None else flight.number
    return replace(state, number=number, mixed=None, shift=None, flight=None)
