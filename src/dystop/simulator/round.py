"""One round of the paper's algorithm in virtual time (alg:dystop), and the loop over rounds.

`start_round` observes, decides, executes and advances; `finish_round` waits for losses and scores,
and makes the record. `simulate` calls them in turn. `dystop.simulator.pipeline` calls the same two
functions and starts rounds before earlier ones are finished. The testbed's coordinator calls
`build_view`, `decide`, `advance` and `record_of` in the same order; its workers execute the plan.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dystop.control.round import (
    advance,
    build_view,
    decide,
    initial_state,
    record_of,
    with_score,
)
from dystop.control.stopping import ends_early, is_over
from dystop.plan import Plan
from dystop.record import RoundRecord
from dystop.recorders.recorder import (
    FinishedRound,
    Memories,
    count_trainings,
    first_memories,
    measured,
)
from dystop.simulator.evaluation import (
    is_last,
    request_score,
    schedule_evaluation,
)
from dystop.simulator.exchange import realise, with_memory
from dystop.simulator.mailbox import deliver
from dystop.simulator.model_stack import PendingScore, first_models, index
from dystop.simulator.state import Components, State
from dystop.simulator.transfers import Losses, execute, start_trainings, write_losses
from dystop.types import ControlState, Observation, Outcome, View
from dystop.world import Progress, RealisedPlan, WorldState
from dystop.world.progress import nothing_in_flight


def simulate(components: Components, state: State) -> Iterator[tuple[RoundRecord, State]]:
    """Run rounds until a stop rule holds; yield each record with the state after it."""
    while (started := start_round(components, state)) is not None:
        record, state = finish_round(components, started, started.state)
        yield record, state
        if ends_early(components.stop, record):
            return


@dataclass(frozen=True)
class StartedRound:
    """A round that is decided, timed and mixed; its trainings and its evaluation may still run."""

    world_state: WorldState
    view: View
    plan: Plan
    decided: ControlState  # after the decision
    realised: RealisedPlan
    outcome: Outcome  # its losses are not written yet
    losses: Losses
    score: PendingScore | None  # None: no evaluation is due
    state: State  # after the round


def start_round(components: Components, state: State) -> StartedRound | None:
    """Observe, decide, execute and advance; None where the run is over."""
    # Observe: the round opens as soon as a worker is present.
    if _is_over(components, state):
        return None
    world_state, state = open_round(components, state)
    if _is_over(components, state):
        return None
    view = build_view(components.fleet, state.control, observe(world_state, state.progress))

    # Decide: who trains, who pulls from whom, and with which weights.
    plan, decided = decide(components.mechanism, state.control, view)

    # Execute: the world says what arrives and when; models are mixed and trained.
    realised, state = realise(components, state, view, plan)
    outcome, losses, state = execute(components, state, view, plan, realised)

    # Advance: clock, staleness, queues and counts. Losses have no part in them.
    control = advance(components.mechanism, decided, view, plan, outcome)
    progress = start_trainings(state.progress, view, realised)
    state = state._replace(control=control, progress=progress)
    due, state = schedule_evaluation(components, view.t, state)
    score = request_score(components, state) if due else None
    return StartedRound(world_state, view, plan, decided, realised, outcome, losses, score, state)


def finish_round(
    components: Components, started: StartedRound, state: State
) -> tuple[RoundRecord, State]:
    """Wait for losses and scores; return the record of the round, and the state after it.

    Args:
        components: What the simulation is made of.
        started: The round.
        state: `started.state`, with what the recorders remember of all rounds before.
    """
    view, plan, outcome = started.view, started.plan, started.outcome
    write_losses(outcome, started.losses)
    score = started.score
    if score is None and is_last(components, view.t, state.control.clock_s):
        score = request_score(components, state)
    added, memories = _measured(components, started, state.memories, score is not None)
    record = record_of(started.decided, state.control, view, plan, outcome, added)
    return with_score(record, score()) if score else record, state._replace(memories=memories)


def _measured(
    components: Components, started: StartedRound, memories: Memories, tested: bool
) -> tuple[Mapping[str, Any], Memories]:
    """Return what recorders add to the record of a round, and what they remember."""
    plan, realised, recorders = started.plan, started.realised, components.recorders
    memories = count_trainings(recorders, memories, realised.plan.active, realised.steps)
    done = FinishedRound(
        view=started.view,
        plan=plan,
        outcome=started.outcome,
        steps=components.steps_of(plan),
        spent=realised.spent,
        position=started.world_state.position,
        tested=tested,
    )
    return measured(recorders, memories, done)


def _is_over(components: Components, state: State) -> bool:
    return is_over(components.stop, state.control.t, state.control.clock_s)


def begin(components: Components) -> State:
    """Return the state at time 0: equal models; under a warm start every worker trains."""
    fleet, trainer = components.fleet, components.trainer
    vector, counters = trainer.initial()
    models = first_models(
        vector,
        counters,
        fleet.nodes,
        late=components.engine.publish == "on_completion",
        deltas=components.keeps_starts,
        aggregated=components.evaluate.model == "aggregated",
    )
    models = with_memory(models, components.exchange, components.capabilities)
    control = initial_state(fleet, components.mechanism)
    training_s = np.zeros(fleet.nodes)
    memories = first_memories(components.recorders, fleet.workers)
    if components.capabilities.warm_start:
        everyone = np.arange(fleet.workers)
        memories = count_trainings(components.recorders, memories, everyone, components.steps)
        at = index(everyone, models.latest)
        trained = trainer.train(
            models.latest[at], models.counters[at], everyone, control.version, components.steps
        )
        models.latest[at], models.counters[at] = trained.models, trained.counters
        control = replace(control, samples=trained.samples)
        training_s[: fleet.workers] = components.world.observe(1, 0.0).step_s * components.steps
    return State(
        control=control,
        progress=Progress(np.zeros(fleet.nodes), training_s, nothing_in_flight()),
        models=models,
        next_evaluation_s=components.evaluate.every_s,
        snapshots_made=0,
        memories=memories,
    )


def open_round(components: Components, state: State) -> tuple[WorldState, State]:
    """Open the next round when the world does, and deliver the messages that have arrived."""
    control = state.control
    world_state, progress = components.world.open_round(control.t, control.clock_s, state.progress)
    if progress is not state.progress or world_state.now_s != control.clock_s:
        control = replace(control, clock_s=world_state.now_s)
        state = state._replace(control=control, progress=progress)
    return world_state, deliver(state)


def observe(world_state: WorldState, progress: Progress) -> Observation:
    """Return what the coordinator observes when a round opens."""
    now_s = world_state.now_s
    return Observation(
        alive=world_state.alive,
        reach=world_state.reach,
        distance_m=world_state.distance_m,
        link_s=world_state.link_s,
        step_s=world_state.step_s,
        remaining_s=progress.remaining_s(now_s)[: len(world_state.alive)],
        budget_of=world_state.budget_of,
        mailbox=progress.in_flight.mailbox(),
    )
