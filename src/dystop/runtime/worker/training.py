"""Local training from the worker's side: begun, begun again, ended. Part of `WorkerMachine`."""

import numpy as np

from dystop.runtime.events import Train, TrainingDone, TrainingFailed, WorkerAction
from dystop.runtime.wire.messages import Report
from dystop.runtime.worker.keeper import Keeper, finite
from dystop.runtime.worker.state import Flight, departing, grounded, landed


class Training:
    """The training in flight, if there is one."""

    def __init__(self, keeper: Keeper) -> None:
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
        flight = Flight(number=0, round=0, steps=keeper.setup.first_steps, rate=1.0, stages=0)
        keeper.state = departing(before, before.published, flight)
        return keeper.save(self.action(flight), undo=before)

    def action(self, flight: Flight) -> Train:
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

    def _publish(self, flight: Flight, event: TrainingDone) -> Report:
        keeper = self.keeper
        # A passive mix of a later round is inside: it must not be seen by that round.
        since = flight.round if keeper.state.shift is None else keeper.state.last_round
        keeper.state = landed(keeper.state, event.vector, event.counters, keeper.mint())
        keeper.publish(keeper.state.version, since)
        return Report(
            flight.round,
            "trained",
            seconds=max(event.seconds, 0.0),
            steps=flight.steps,
            samples=event.samples,
            loss=finite(event.loss),
        )

    def _unusable(self, flight: Flight, text: str) -> Report:
        self.keeper.state = grounded(self.keeper.state)
        return Report(flight.round, "trained", steps=flight.steps, text=text)
