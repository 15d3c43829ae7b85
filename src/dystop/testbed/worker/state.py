"""What a worker knows before it joins a run, and the state that survives a restart.

Both are immutable. Every change makes a new state, so that the state that is being written to disk
cannot change during the write.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from dystop.carried import Carrying
from dystop.control.aggregation import passive_shift
from dystop.exchange import Exchange
from dystop.exchange.rules import Models
from dystop.model_state import ModelState
from dystop.sparse import Floats
from dystop.testbed.events import Counters, Publication, Vector
from dystop.testbed.params import TestbedParams
from dystop.testbed.protocol.messages import Mail, Phase, Report

OwnLosses = Callable[[Models, int], Floats | None]
"""Returns the losses of models on some of the worker's samples; None: it has none."""

OwnCopy = Callable[[Publication, int, int], Vector | None]
"""Returns the public copy of a model that requests of a stage of a round get."""

VERSION_GAP = 64  # most snapshots that an order can publish before the next checkpoint


@dataclass(frozen=True)
class Introduction:
    """What a worker says of itself when it joins; it must be what was enrolled."""

    schema: str  # hash of the model's schema
    address: str = ""  # where it serves models
    software: str = ""
    data_size: int = 0
    label_counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class WorkerSetup:
    """The identity and the parameters of a worker; fixed for the life of the process."""

    name: str
    node: int
    introduction: Introduction
    first_steps: int = 0  # mini-batches of training 0 under a warm start; 0: no warm start
    deltas: bool = False  # keep the start of trainings, because updates are sent or mixed
    params: TestbedParams = field(default_factory=TestbedParams)
    exchange: Exchange = field(default_factory=Exchange)
    carrying: Carrying | None = None  # None: nothing is carried beside the model
    digest: Callable[[Vector], str] = lambda vector: ""  # of the payload that peers would pull
    own_losses: OwnLosses = lambda models, samples: None
    own_copy: OwnCopy = lambda model, round_, stage: None


@dataclass(frozen=True)
class RunningTraining:
    """A local training that was started and has not ended."""

    number: int
    round: int  # of the order that started it; 0: the start of the run
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

    models: ModelState[Vector, Counters]
    version: int = 0  # of the published model
    number: int = -1  # of the last finished training
    round: int = 0  # of the order that started the training behind the published model
    shift: Vector | None = None  # sum of the passive mixes since the running training started
    training: RunningTraining | None = None
    last_round: int = 0  # last round that was started
    epoch: int = 0  # highest epoch that was obeyed
    reports: tuple[Report, ...] = ()  # not acknowledged yet
    mailbox: Mapping[int, MailboxEntry] = field(default_factory=dict)  # newest by sender
    incarnation: int = 0  # of the last process that joined; 0: none has
    run: str = ""  # the run that it belongs to; empty: it has never joined one

    @property
    def published(self) -> Vector:
        """The model that peers pull."""
        return self.models.published

    @property
    def phase(self) -> Phase:
        """Whether a training is running; pulls are not part of the state."""
        return "training" if self.training else "idle"

    @property
    def mail(self) -> tuple[Mail, ...]:
        """Summary of the mailbox for the coordinator, by sender."""
        return tuple(Mail(k, m.number, m.round) for k, m in sorted(self.mailbox.items()))


def first_state(vector: Vector, counters: Counters, *, deltas: bool = False) -> WorkerState:
    """Return the state of a new worker, with the initial model of the run.

    >>> import numpy as np
    >>> first_state(np.zeros(3, np.float32), np.zeros(0, np.int64)).number
    -1
    """
    vector = np.asarray(vector, np.float32)
    start = vector if deltas else None
    return WorkerState(ModelState(vector, np.asarray(counters, np.int64), start))


def without_report(state: WorkerState, round_: int, kind: str) -> WorkerState:
    """Return the state without an acknowledged report."""
    rest = tuple(r for r in state.reports if (r.round, r.kind) != (round_, kind))
    return state if len(rest) == len(state.reports) else replace(state, reports=rest)


def with_report(state: WorkerState, report: Report) -> WorkerState:
    """Return the state with one more report; it replaces one of the same round and kind."""
    state = without_report(state, report.round, report.kind)
    return replace(state, reports=(*state.reports, report))


def mixed_passively(state: WorkerState, mixed: Vector, version: int) -> WorkerState:
    """Return the state after a passive mix (`passive_shift`).

    The published model becomes `mixed`. The start of the last training moves by the same shift, so
    that its update stays the same. A running training adds the shift to its result when it ends.
    """
    shift = passive_shift(mixed, state.published)
    state = replace(state, models=_moved(state.models, mixed, shift), version=version)
    if state.training is None:
        return state
    return replace(state, shift=shift if state.shift is None else state.shift + shift)


def _moved(
    models: ModelState[Vector, Counters], published: Vector, shift: Vector
) -> ModelState[Vector, Counters]:
    start = None if models.start is None else models.start + shift
    if models.finished is None:
        return replace(models, latest=published, start=start)
    before = models.finished_start
    after = None if before is None else before + shift
    return replace(models, start=start, finished=published, finished_start=after)


def training_started(
    state: WorkerState, model: Vector, counters: Counters, training: RunningTraining
) -> WorkerState:
    """Return the state with a running training that started at `model`."""
    last, models = max(state.last_round, training.round), state.models.begun(model, counters)
    return replace(state, models=models, shift=None, training=training, last_round=last)


def training_finished(
    state: WorkerState, vector: Vector, counters: Counters, version: int
) -> WorkerState:
    """Return the state after the running training ended and its result is published."""
    training = state.training
    if training is None:
        raise AssertionError("no training is running")
    if state.shift is not None:
        vector = vector + state.shift
    return replace(
        state,
        models=state.models.ended(vector, counters),
        version=version,
        number=training.number,
        round=training.round,
        shift=None,
        training=None,
    )


def training_failed(state: WorkerState) -> WorkerState:
    """Return the state after a training without a usable result: the model stays the same."""
    number = state.number if state.training is None else state.training.number
    models = state.models.failed()
    return replace(state, models=models, number=number, shift=None, training=None)
