"""What a worker has, what it hands out, and what it has written down. Part of `WorkerMachine`."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dystop.testbed.events import (
    Publication,
    Save,
    Say,
    Train,
    TrainingDone,
    TrainingFailed,
    Vector,
    WorkerAction,
)
from dystop.testbed.protocol.messages import Report
from dystop.testbed.worker.guard import Guard
from dystop.testbed.worker.published_models import PublishedModel, PublishedModels
from dystop.testbed.worker.session import Session
from dystop.testbed.worker.state import (
    VERSION_GAP,
    TrainingInFlight,
    WorkerSetup,
    WorkerState,
    training_failed,
    training_finished,
    training_started,
    with_report,
)

WRITE_AGAIN_S = 5.0  # after the disk refused


class DurableState:
    """The state, with everything that must stay in step with it."""

    def __init__(self, setup: WorkerSetup, state: WorkerState, guard: Guard) -> None:
        """Publish what the checkpoint has."""
        self.setup, self.guard = setup, guard
        # What an earlier process handed out in the middle of an order is not on its disk.
        self._minted = state.version + (VERSION_GAP if state.incarnation else 0)
        self.state = replace(state, incarnation=setup.incarnation)
        self.now_s = 0.0
        self.session = Session(setup.timeouts.report_s, setup.timeouts.heartbeat_s)
        self.slot = PublishedModels(per_peer=setup.limits.pulls_per_peer)
        self.disk_full = False
        self._undo: WorkerState | None = None
        self._saving = False
        self._write_again_s = 0.0
        self.publish(self.state.version, self.state.round)

    # Models ------------------------------------------------------------------------------------

    def mint(self) -> int:
        """A version that was never used."""
        self._minted += 1
        return self._minted

    def entry(
        self, vector: Vector, version: int, since: int, start: Vector | None
    ) -> PublishedModel:
        """Something to hand out, made of the last finished training."""
        made = Publication(version, self.state.number, self.state.round, vector)
        return PublishedModel(made, since, start)

    def publish(self, version: int, since: int) -> None:
        """Hand out the published model of the state from now on."""
        state = self.state
        self.guard.learn(state.published)
        self.slot.publish(self.entry(state.published, version, since, state.start))

    # The disk ----------------------------------------------------------------------------------

    def save(self, *then: WorkerAction, undo: WorkerState | None = None) -> list[WorkerAction]:
        """Write the state; `undo` is the one to go back to if the disk refuses."""
        self._saving = True
        self._undo = self._undo or undo
        return [Save(self.state, then)]

    def confirm(self) -> None:
        """Nothing was heard of a failed write, so the last one has succeeded."""
        if self._saving:
            self.disk_full = False
        self._saving, self._undo = False, None

    def write_failed(self) -> WorkerState | None:
        """The disk refused: what to go back to, if the new state must not be used unwritten."""
        undo, self._undo, self._saving = self._undo, None, False
        self.disk_full, self._write_again_s = True, self.now_s + WRITE_AGAIN_S
        if undo is not None:
            self.state = undo
            self.slot.retract(undo.version)
        return undo

    def write_again(self) -> list[WorkerAction]:
        """Try the disk again from time to time after it has refused."""
        if not self.disk_full or self.now_s < self._write_again_s:
            return []
        return self.save()

    # Reports -----------------------------------------------------------------------------------

    @property
    def ready_reports(self) -> tuple[Report, ...]:
        """Reports that may be sent: after a failed write only those that say so."""
        if not self.disk_full:
            return self.state.reports
        return tuple(r for r in self.state.reports if r.kind == "failed")

    def report(self, report: Report) -> list[Say]:
        """Keep a report until it is acknowledged; what to say once that is written."""
        state = self.state
        report = replace(
            report,
            version=state.version,
            number=state.number,
            digest=self.setup.digest(state.published),
            text=report.text[:200],
        )
        self.state = with_report(state, report)
        return self.session.first(report, self.now_s)


def finite(loss: float | None) -> float | None:
    """A loss that fits into a message.

    >>> finite(float("nan")), finite(0.5)
    (None, 0.5)
    """
    return loss if loss is not None and math.isfinite(loss) else None


def merged(actions: Sequence[WorkerAction]) -> list[WorkerAction]:
    """The same actions with one write at most: the last state, then all that waited for one.

    One event can end a training and complete the order that waited for it; both would be written
    one right after the other.
    """
    saves = [a for a in actions if isinstance(a, Save)]
    if len(saves) < 2:
        return list(actions)
    one = Save(saves[-1].state, tuple(act for save in saves for act in save.then))
    kept = [a for a in actions if not isinstance(a, Save) or a is saves[-1]]
    return [one if a is saves[-1] else a for a in kept]


# MERGED: Local training from the worker's side: begun, begun again, ended. Part of `WorkerMachine`.


class Training:
    """The training in flight, if there is one."""

    def __init__(self, keeper: DurableState) -> None:
        """Whatever the state says is in flight."""
        self.keeper = keeper

    def resume(self) -> list[WorkerAction]:
        """Train again what an earlier process was training: same model, number and steps."""
        keeper, state = self.keeper, self.keeper.state
        if state.flight is None or state.mixed is None:
            return []
        keeper.slot.open(state.flight.round)
        if state.shift is None:  # else what was there before the exchange is gone
            keeper.slot.remember(0, keeper.slot.entries[-1])
        after = keeper.entry(state.mixed, keeper.mint(), state.flight.round, state.start)
        keeper.slot.remember(max(state.flight.stages, 1), after, last=True)
        return [self.action(state.flight)]

    def begin(self) -> list[WorkerAction]:
        """The training that everybody begins at the start of the run."""
        keeper, before = self.keeper, self.keeper.state
        flight = TrainingInFlight(
            number=0, round=0, steps=keeper.setup.first_steps, rate=1.0, stages=0
        )
        keeper.state = training_started(before, before.published, flight)
        return keeper.save(self.action(flight), undo=before)

    def action(self, flight: TrainingInFlight) -> Train:
        """What the shell has to do."""
        state = self.keeper.state
        model = state.published if state.mixed is None else state.mixed
        return Train(flight.number, model, state.counters, flight.steps, flight.rate)

    def ended(self, event: TrainingDone | TrainingFailed) -> Report | None:
        """Publish the result, or keep the model from before if it cannot be used."""
        flight = self.keeper.state.flight
        if flight is None or event.number != flight.number:
            return None
        if isinstance(event, TrainingFailed):
            return self._unusable(flight, event.text)
        if not np.isfinite(event.vector).all():
            return self._unusable(flight, "training gave numbers that are not finite")
        return self._publish(flight, event)

    def _publish(self, flight: TrainingInFlight, event: TrainingDone) -> Report:
        keeper = self.keeper
        # A passive mix of a later round is inside: it must not be seen by that round.
        since = flight.round if keeper.state.shift is None else keeper.state.last_round
        keeper.state = training_finished(keeper.state, event.vector, event.counters, keeper.mint())
        keeper.publish(keeper.state.version, since)
        return Report(
            flight.round,
            "trained",
            seconds=max(event.seconds, 0.0),
            steps=flight.steps,
            samples=event.samples,
            loss=finite(event.loss),
        )

    def _unusable(self, flight: TrainingInFlight, text: str) -> Report:
        self.keeper.state = training_failed(self.keeper.state)
        return Report(flight.round, "trained", steps=flight.steps, text=text)
