"""Rounds of many cells in virtual time, without models: one coordinator for each cell.

All cells decide when a round opens, each on its own view. The round closes when the slowest active
worker of any cell has pulled (ADR 0042). With one cell, records are those of `loop.simulate`.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dystop.control.cells import (
    Cell,
    budgets_of_cells,
    cells_of,
    cut,
    fleet_of_cell,
    join_plans,
    observation_of_cell,
    outcomes_of_cells,
    with_border,
)
from dystop.control.round import build_view, decide, initial_state, record_of, settle
from dystop.control.stopping import is_over
from dystop.control.timing import cost_s, round_duration_s
from dystop.errors import ConfigError
from dystop.plan import Plan
from dystop.record import RoundRecord
from dystop.simulator.loop import begin, observe
from dystop.simulator.state import Components
from dystop.simulator.transfers import outcome_of, start_trainings
from dystop.sparse import Floats
from dystop.types import ControlState, Fleet, Outcome, View


@dataclass(frozen=True)
class Coordinator:
    """One cell and what its coordinator remembers between rounds."""

    cell: Cell
    fleet: Fleet
    control: ControlState


@dataclass(frozen=True)
class CellRound:
    """A round of all cells."""

    record: RoundRecord  # of all workers together
    plan: Plan  # of all cells, without mixing rows
    coordinators: tuple[Coordinator, ...]  # after the round
    work_s: Floats  # [C], seconds that each coordinator took to decide and to settle
    alone_s: Floats  # [C], how long the round would last if a cell waited for its members only


def simulate_cells(
    components: Components, size: int, clock: Callable[[], float] = time.process_time
) -> Iterator[CellRound]:
    """Run rounds until a stop rule holds, with one coordinator for about `size` workers.

    Args:
        components: What the simulation is made of; planning only, in a world that does not change.
        size: Workers of a cell, at most.
        clock: Measures the work of a coordinator; it decides nothing.

    Raises:
        ConfigError: The mechanism or the world does not fit.
    """
    _check(components)
    state, coordinators = begin(components), _coordinators(components, size)
    control, progress = state.control, state.progress
    while not is_over(components.stop, control.t, control.clock_s):
        # Observe: what all coordinators together can know.
        world_state = components.world.observe(control.t, control.clock_s)
        view = build_view(components.fleet, control, observe(world_state, progress))

        # Decide: every coordinator on its own view.
        decided = _decide(components, coordinators, view, clock)
        plan = join_plans([one.cell for one in coordinators], [each.plan for each in decided])

        # Execute: one world for all.
        steps = components.steps_of(plan)
        realised = components.world.realise(components.engine.timing, view, plan, steps, progress)
        samples = components.trainer.samples_seen(plan.active, steps)
        outcome = outcome_of(plan, realised, samples)
        progress = start_trainings(progress, view, realised)

        # Settle and record: every coordinator settles its part.
        coordinators, work_s = _settle(components, coordinators, decided, outcome, clock)
        before, control = control, _together(control, coordinators, outcome)
        record = record_of(before, control, view, plan, outcome)
        alone_s = np.array(list(_alone(view, outcome, decided)))
        yield CellRound(record, plan, coordinators, work_s, alone_s)


@dataclass(frozen=True)
class _Decided:
    """What one coordinator has seen and decided."""

    view: View
    plan: Plan
    control: ControlState
    work_s: float


def _decide(
    components: Components,
    coordinators: Sequence[Coordinator],
    view: View,
    clock: Callable[[], float],
) -> list[_Decided]:
    """Let every coordinator decide on what it sees of a view of all workers."""
    cells, decided = [one.cell for one in coordinators], []
    budgets = budgets_of_cells(cells, view.reach, view.budget)
    for one, budget in zip(coordinators, budgets, strict=True):
        seen = observation_of_cell(one.cell, view, budget)
        told = with_border(one.control, one.cell, view.staleness, view.version)
        began_s = clock()
        own_view = build_view(one.fleet, told, seen)
        plan, after = decide(
            components.mechanism,
            told,
            own_view,
            components.staleness_weighting,
            components.budgets_bind,
        )
        decided.append(_Decided(own_view, plan, after, clock() - began_s))
    return decided


def _settle(
    components: Components,
    coordinators: Sequence[Coordinator],
    decided: Sequence[_Decided],
    outcome: Outcome,
    clock: Callable[[], float],
) -> tuple[tuple[Coordinator, ...], Floats]:
    """Let every coordinator close its part of the round; return them and the work of each, [C]."""
    settled, work_s = [], []
    outcomes = outcomes_of_cells([each.plan for each in decided], outcome)
    for one, each, part in zip(coordinators, decided, outcomes, strict=True):
        began_s = clock()
        _, after = settle(components.mechanism, each.control, each.view, each.plan, part)
        work_s.append(each.work_s + clock() - began_s)
        settled.append(replace(one, control=after))
    return tuple(settled), np.array(work_s)


def _check(components: Components) -> None:
    """Refuse what cells do not support: every worker must be reached by pulls, at a fixed place."""
    able, params = components.mechanism.capabilities(), components.world.params
    name = components.mechanism.name
    problems = {
        "engine.train = true: cells plan only": components.engine.train,
        f"engine.timing = {components.engine.timing!r}: cells share the paper's rounds": (
            components.engine.timing != "paper"
        ),
        f"mechanism {name!r} uses a server": able.server,
        f"mechanism {name!r} pushes models": able.pushes,
        "world.mobility.enabled: cells need fixed positions": params.mobility.enabled,
        "world.churn.enabled: cells need workers that stay": params.churn.enabled,
        "world.outages.drop: cells need links that stay": params.outages.drop > 0,
        "world.reach = 'overlay': cells need direct links": params.reach != "strict",
    }
    for problem in (text for text, found in problems.items() if found):
        raise ConfigError(f"cells: {problem}; change this setting, or use one coordinator")


def _coordinators(components: Components, size: int) -> tuple[Coordinator, ...]:
    """Divide the workers by their positions; every coordinator begins with an empty history."""
    seen = components.world.observe(1, 0.0)
    coordinators = []
    for number, cell in enumerate(cut(seen.reach, cells_of(seen.position, size))):
        own = fleet_of_cell(number, cell, components.fleet)
        coordinators.append(Coordinator(cell, own, initial_state(own, components.mechanism)))
    return tuple(coordinators)


def _together(
    before: ControlState, coordinators: Sequence[Coordinator], outcome: Outcome
) -> ControlState:
    """Return clock, staleness, queues and versions of all workers; cells keep pull counts."""
    staleness, queue, version = before.staleness.copy(), before.queue.copy(), before.version.copy()
    for one in coordinators:
        own, members = one.cell.own, one.cell.members
        staleness[members] = one.control.staleness[own]
        queue[members] = one.control.queue[own]
        version[members] = one.control.version[own]
    return replace(
        before,
        t=before.t + 1,
        clock_s=before.clock_s + outcome.duration_s,
        staleness=staleness,
        queue=queue,
        version=version,
        wire_bytes=before.wire_bytes + int(outcome.link_bytes.sum()),
        samples=before.samples + outcome.samples,
    )


def _alone(view: View, outcome: Outcome, decided: Sequence[_Decided]) -> Iterator[float]:
    """Yield the duration that each cell alone would have (eq:duration)."""
    cost = cost_s(view.remaining_s[outcome.active], outcome.comm_s)
    ends = np.cumsum([len(each.plan.active) for each in decided])
    for part in np.split(cost, ends[:-1]):
        yield round_duration_s(part)
