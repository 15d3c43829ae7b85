"""Benchmark of planning: observe, build the view, WAA, PTCA, check, transfer times, advance.

Nothing is trained. Every worker is activated, which is the worst case. A worker has about 20
candidates at every size, because the area grows with the fleet. Every size is measured in a process
of its own, so that its peak of memory is its own:

    python -m dystop_benchmarks.planning \
        '{"workers": 10000, "rounds": 6, "seed": 0, "mobile": false}'

The reference is the same planner without compiled kernels (`DYSTOP_KERNELS=off`).
"""

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from dystop.control.round import advance, build_view, decide, initial_state, record_of
from dystop.mechanisms.dystop import DySTop
from dystop.plan import Plan
from dystop.rng import uniform
from dystop.sparse import Floats, Ints
from dystop.types import ControlState, Fleet, Mechanism, Observation, Outcome
from dystop.world import Mobility, World, WorldParams
from dystop.world.params import Budget
from dystop.world.world import WorldState
from dystop_benchmarks.child import peak_process_bytes
from dystop_benchmarks.result import Line, spread
from dystop_benchmarks.settings import Settings
from dystop_benchmarks.stopwatch import in_turns

CANDIDATES = 20
RANGE_M = 40.0
_CLASSES = 10


@dataclass(frozen=True)
class PlannerCost:
    """Cost of planning at one size."""

    workers: int
    candidates: float  # links in reach per worker
    active: int  # per round
    links: int  # chosen per round
    first_s: float  # the first round, which also finds the neighbours
    round_s: float  # median of the others
    rounds_s: tuple[float, ...]
    peak_bytes: int  # of the whole process


def measure_planner(
    workers: int, rounds: int, seed: int = 0, *, mobile: bool = False
) -> PlannerCost:
    """Measure planning for this number of workers, half of the rounds in each phase of PTCA.

    Args:
        workers: Number of workers.
        rounds: At least 2; the first is reported on its own.
        seed: Seed of positions, labels and channel.
        mobile: Whether all workers move, so that links change in every round.
    """
    return _child(workers, rounds, seed, mobile=mobile)


def reference_planner(workers: int, rounds: int, seed: int = 0) -> PlannerCost:
    """Measure planning with the NumPy references in place of the compiled kernels."""
    return _child(workers, rounds, seed, kernels=False)


def _child(
    workers: int, rounds: int, seed: int, *, mobile: bool = False, kernels: bool = True
) -> PlannerCost:
    if rounds < 2:
        raise ValueError(f"rounds = {rounds}: at least 2, since the first is reported on its own")
    job = {"workers": workers, "rounds": rounds, "seed": seed, "mobile": mobile}
    command = [sys.executable, "-m", "dystop_benchmarks.planning", json.dumps(job)]
    environment = dict(os.environ) if kernels else {**os.environ, "DYSTOP_KERNELS": "off"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"planning for {workers:,} workers failed:\n{done.stderr}")
    cost: dict[str, Any] = json.loads(done.stdout)
    return PlannerCost(**cost | {"rounds_s": tuple(cost["rounds_s"])})


def fleet_of(workers: int, horizon: int, seed: int) -> Fleet:
    """Return a fleet with uneven labels."""
    cell = np.arange(workers)[:, None], np.arange(_CLASSES)[None]
    counts = 1 + (99 * uniform(seed, "bench/labels", *cell)).astype(np.int64)
    return Fleet(counts.sum(axis=1), counts, 32, 87_360, horizon, seed=seed)


def params_of(workers: int, mobile: bool = False, budget: Budget | None = None) -> WorldParams:
    """Return a world in which a worker has about 20 candidates."""
    side_m = math.sqrt(workers * math.pi * RANGE_M**2 / CANDIDATES)
    return WorldParams(
        area_m=(side_m, side_m),
        range_m=RANGE_M,
        mobility=Mobility(enabled=mobile),
        budget=budget or Budget(),
    )


def queues_of(fleet: Fleet) -> Floats:
    """Return queues so long that every worker is activated."""
    return 1e6 * (1.0 + uniform(fleet.seed, "bench/queue", np.arange(fleet.workers)))


Planned = tuple[float, int, Ints, Ints, Ints]
"""Seconds, links in reach, active workers, and (dst, src) of the links chosen."""


def planned_rounds(fleet: Fleet, params: WorldParams, rounds: int) -> Iterator[Planned]:
    """Plan rounds, the first half of them in phase 1 of PTCA."""
    world = World(params, fleet.workers, fleet.model_bytes, fleet.seed)
    mechanism = DySTop(phase_threshold=rounds // 2)
    control, queue = initial_state(fleet, mechanism), queues_of(fleet)
    for _ in range(rounds):
        begin = time.perf_counter()
        plan, edges, control = _round(fleet, world, mechanism, replace(control, queue=queue))
        took_s, active, links = time.perf_counter() - begin, plan.active, plan.links
        del plan  # frees its memory before the next round
        yield took_s, edges, active, links.dst, links.src
        del active, links


def _round(
    fleet: Fleet, world: World, mechanism: Mechanism, control: ControlState
) -> tuple[Plan, int, ControlState]:
    world_state = world.observe(control.t, control.clock_s)
    view = build_view(fleet, control, _observation(world_state, fleet))
    plan, control = decide(mechanism, control, view)
    outcome = _outcome(world, fleet, control, plan)
    after = advance(mechanism, control, view, plan, outcome)
    record_of(control, after, view, plan, outcome)
    return plan, world_state.reach.edges, after


def _observation(state: WorldState, fleet: Fleet) -> Observation:
    return Observation(
        state.alive,
        state.reach,
        state.distance_m,
        state.link_s,
        state.step_s,
        state.step_s * fleet.epoch_steps,
        state.budget_of,
    )


def _outcome(world: World, fleet: Fleet, control: ControlState, plan: Plan) -> Outcome:
    """Return the transfers of the channel in a round of one second without training."""
    links, none = plan.links, np.zeros(len(plan.active))
    moved = world.transfer(control.t, control.clock_s, links.dst, links.src, links.fraction)
    size = np.broadcast_to(np.int64(fleet.model_bytes), len(links))
    return Outcome(
        1.0, none, moved.seconds, size, moved.lost, none, 0, 0.0, plan.active, links.dst, links.src
    )


def _measure(workers: int, rounds: int, seed: int, mobile: bool) -> PlannerCost:
    """Warm up on a small fleet, then measure. Runs in the child process."""
    import resource  # not on every system, and only needed here

    for _ in planned_rounds(fleet_of(64, 8, seed), params_of(64, mobile), 2):
        pass  # loads compiled functions and modules
    fleet = fleet_of(workers, 4 * rounds, seed)
    seconds, edges, active, links = [], 0, 0, 0
    for took_s, reach, who, dst, _ in planned_rounds(fleet, params_of(workers, mobile), rounds):
        seconds.append(took_s)
        edges, active, links = reach, active + len(who), links + len(dst)
        del who, dst, _
    return PlannerCost(
        workers=workers,
        candidates=edges / workers,
        active=active // rounds,
        links=links // rounds,
        first_s=seconds[0],
        round_s=median(seconds[1:]),
        rounds_s=tuple(seconds),
        peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    )


_ROUNDS = 4  # of a measurement; the first also builds the neighbour graph
_REFERENCE_ROUNDS = 2
_REFERENCE_WORKERS = 10_000  # largest fleet that the reference plans for


def planner_lines(settings: Settings, say: Callable[[str], None]) -> Iterator[Line]:
    """Measure a planned round: per worker against the smallest fleet, and without kernels."""
    costs: list[PlannerCost] = []
    for workers in settings.scale.fleets:
        say(f"{workers:,} workers")
        costs.append(measure_planner(workers, _ROUNDS, settings.seed))
        yield _growth(costs)
    yield _beside_reference(settings, say)
    if len(costs) > 1:
        yield _slope(costs)


def _growth(costs: Sequence[PlannerCost]) -> Line:
    """Compare the last fleet with the first, per worker: 1 is linear."""
    first, last = costs[0], costs[-1]
    share, rounds_s = last.workers / first.workers, last.rounds_s[1:]
    # The peak of a child may start at that of its parent: only a higher one is its own.
    peak = f", {last.peak_bytes / 1e9:.2g} GB" if last.peak_bytes > peak_process_bytes() else ""
    return Line(
        what="planner",
        name=f"a round of {last.workers:,} workers, {last.links:,} links{peak}",
        unit="s",
        value=spread(rounds_s),
        reference=f"{share:,g} x a round of {first.workers:,}",
        reference_value=spread([share * first.round_s] * len(rounds_s)),
        better="lower",
        warmup_s=last.first_s,
        detail=asdict(last),
    )


def _beside_reference(settings: Settings, say: Callable[[str], None]) -> Line:
    """Measure the same round with and without compiled kernels, in turns."""
    workers = min(_REFERENCE_WORKERS, max(settings.scale.fleets))
    say(f"{workers:,} workers, with and without compiled kernels in turns")
    measures = (
        lambda: measure_planner(workers, _REFERENCE_ROUNDS, settings.seed).round_s,
        lambda: reference_planner(workers, _REFERENCE_ROUNDS, settings.seed).round_s,
    )
    with_kernels, without = in_turns(measures, settings.repeat)
    return Line(
        what="planner",
        name=f"a round of {workers:,} workers",
        unit="s",
        value=with_kernels,
        reference="NumPy, without compiled kernels",
        reference_value=without,
        better="lower",
    )


def _slope(costs: Sequence[PlannerCost]) -> Line:
    """Fit the slope of log time over log workers, from 10,000 workers on where possible."""
    large = [c for c in costs if c.workers >= _REFERENCE_WORKERS]
    used = large if len(large) > 1 else list(costs)
    at, seconds = np.log([c.workers for c in used]), np.log([c.round_s for c in used])
    return Line(
        what="planner",
        name=f"slope of log time, {used[0].workers:,} to {used[-1].workers:,} workers",
        unit="1",
        value=spread([float(np.polyfit(at, seconds, 1)[0])]),
        reference="linear",
        reference_value=spread([1.0]),
        better="lower",
    )


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(**json.loads(sys.argv[1])))))
