"""The simulator's loop with the host's work for the next round beside the device's for this one.

A device that returns early trains while the host goes on. Decisions depend on the timing of the
round before and not on its models, so the next round can be planned while the device trains, and
started before the losses are asked for (ADR 0019). Records are those of `loop.simulate` to the
byte: without this module only time is lost.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dystop.control.round import advance, build_view, decide, record_of, with_score
from dystop.control.stopping import is_over, reached
from dystop.plan import Plan
from dystop.record import RoundRecord
from dystop.simulator.evaluation import (
    PendingScore,
    is_last,
    request_score,
    schedule_evaluation,
)
from dystop.simulator.loop import observe, open_round, training_steps, with_map
from dystop.simulator.state import Components, State
from dystop.simulator.transfers import PendingOutcome, execute
from dystop.types import View
from dystop.world import RealisedPlan, WorldState

NeedsModels = Callable[[int], bool]
"""Says whether the models of a round are needed, so that the next one must not change them yet."""


@dataclass(frozen=True)
class PlannedRound:
    """A round that is decided and timed; no model has changed for it."""

    state: State  # after the decision
    world_state: WorldState
    view: View
    plan: Plan
    realised: RealisedPlan


@dataclass(frozen=True)
class RunningRound:
    """A round that a device was asked to train and to evaluate."""

    planned: PlannedRound
    outcome: PendingOutcome
    state: State  # after the round; only the losses of its outcome are missing
    score: PendingScore | None = None


def simulate_overlapped(
    components: Components, state: State, needs_models: NeedsModels
) -> Iterator[tuple[RoundRecord, State]]:
    """Run rounds until a stop rule holds; yield each record with the state after it.

    Args:
        components: What the simulation is made of.
        state: Where it stands.
        needs_models: Asked for a round before the next one starts. Where it answers False, the
            models of the yielded state may already be those of the next round.
    """
    running = _start(components, _plan(components, state))
    while running is not None:
        running = _request_due_score(components, running)
        planned = _plan_ahead(components, running.state)
        following = None
        if planned is not None and _may_start_next(components, running, needs_models):
            following = _start(components, planned)
        record, state = _finish(components, running)
        yield record, state
        if reached(components.stop, record):
            return
        running = following or _start(components, planned or _plan(components, state))


def _plan(components: Components, state: State) -> PlannedRound | None:
    """Open and decide the next round; None where the run is over."""
    if _is_over(components, state):
        return None
    world_state, state = open_round(components, state)
    if _is_over(components, state):
        return None
    view = build_view(components.fleet, state.control, observe(world_state, state.progress))
    plan, control = decide(
        components.mechanism, state.control, view, components.staleness_weighting
    )
    steps, timing = training_steps(components, plan), components.engine.timing
    realised = components.world.realise(timing, view, plan, steps, state.progress)
    return PlannedRound(replace(state, control=control), world_state, view, plan, realised)


def _is_over(components: Components, state: State) -> bool:
    return is_over(components.stop, state.control.t, state.control.clock_s)


def _plan_ahead(components: Components, state: State) -> PlannedRound | None:
    """Plan the next round while this one runs, if that needs no loss and changes no model.

    The delivery of a message changes models.
    """
    needs = components.mechanism.capabilities().needs
    waits = "loss" in needs or len(state.progress.in_flight.dst) > 0
    return None if waits else _plan(components, state)


def _may_start_next(
    components: Components, running: RunningRound, needs_models: NeedsModels
) -> bool:
    """Return whether nobody needs this round's models and it cannot end the run by a target."""
    stop = components.stop
    may_end = stop.loss > 0 or (running.score is not None and stop.accuracy > 0)
    return not may_end and not needs_models(running.planned.view.t)


def _start(components: Components, planned: PlannedRound | None) -> RunningRound | None:
    """Start a round; do not wait for the device."""
    if planned is None:
        return None
    view, plan = planned.view, planned.plan
    pending, state = execute(components, planned.state, view, plan, planned.realised)
    control = advance(components.mechanism, state.control, view, plan, pending.known)
    return RunningRound(planned, pending, replace(state, control=control))


def _request_due_score(components: Components, running: RunningRound) -> RunningRound:
    """Ask for an evaluation if one is due, before the next round changes the models."""
    due, state = schedule_evaluation(components, running.planned.view.t, running.state)
    return replace(running, state=state, score=request_score(components, state)) if due else running


def _finish(components: Components, running: RunningRound) -> tuple[RoundRecord, State]:
    """Wait for the device; return the record of the round, and the state after it."""
    planned, outcome = running.planned, running.outcome.result()
    control = replace(running.state.control, last=outcome)
    state = replace(running.state, control=control)
    record = record_of(planned.state.control, control, planned.view, planned.plan, outcome)
    record = with_map(components, record, planned.plan, outcome.lost, planned.world_state)
    score = running.score
    if score is None and is_last(components, record):
        score = request_score(components, state)
    return (with_score(record, score()) if score else record), state
