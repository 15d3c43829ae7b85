"""What planning one round costs: observe, view, WAA, PTCA, check, transfer times, settle.

No training: only what the coordinator does, with every worker awake, which is the worst case.
Workers keep about 20 candidates each because the area grows with the fleet. Every size is measured
in a process of its own, so that one peak of memory does not hide another:

    python -m dystop.bench.planning \
        '{"way": "fast", "workers": 10000, "rounds": 6, "seed": 0, "mobile": false}'
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from dystop.bench.planning_twin import Twin
from dystop.control.round import build_view, decide, initial_state, settle
from dystop.mechanisms.dystop import DySTop
from dystop.plan import Plan
from dystop.rng import uniform
from dystop.sparse import Floats, Ints
from dystop.types import ControlState, Fleet, Mechanism, Observation, Outcome
from dystop.world import Mobility, World, WorldParams
from dystop.world.world import WorldState

CANDIDATES = 20
RANGE_M = 40.0
_CLASSES = 10


@dataclass(frozen=True)
class PlannerCost:
    """What planning cost at one size."""

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
    """Cost of planning for so many workers, half of the rounds in each phase of PTCA.

    Args:
        workers: N.
        rounds: at least 2; the first is reported on its own.
        seed: of positions, labels and channel.
        mobile: everybody walks, so that links change in every round.
    """
    return _child("fast", workers, rounds, seed, mobile)


def reference_planner(workers: int, rounds: int, seed: int = 0) -> PlannerCost:
    """The same work by a straight NumPy twin: sorts of all links, and PTCA as a loop over lists."""
    return _child("plain", workers, rounds, seed, False)


def _child(way: str, workers: int, rounds: int, seed: int, mobile: bool) -> PlannerCost:
    if rounds < 2:
        raise ValueError(f"rounds = {rounds}: at least 2, since the first is reported on its own")
    job = {"way": way, "workers": workers, "rounds": rounds, "seed": seed, "mobile": mobile}
    command = [sys.executable, "-m", "dystop.bench.planning", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"planning for {workers:,} workers failed:\n{done.stderr}")
    said: dict[str, Any] = json.loads(done.stdout)
    return PlannerCost(**said | {"rounds_s": tuple(said["rounds_s"])})


def fleet_of(workers: int, horizon: int, seed: int) -> Fleet:
    """A fleet with uneven labels."""
    cell = np.arange(workers)[:, None], np.arange(_CLASSES)[None]
    counts = 1 + (99 * uniform(seed, "bench/labels", *cell)).astype(np.int64)
    return Fleet(counts.sum(axis=1), counts, 32, 87_360, horizon, seed=seed)


def params_of(workers: int, mobile: bool = False) -> WorldParams:
    """Surroundings in which a worker has about 20 candidates."""
    side_m = math.sqrt(workers * math.pi * RANGE_M**2 / CANDIDATES)
    return WorldParams(area_m=(side_m, side_m), range_m=RANGE_M, mobility=Mobility(enabled=mobile))


def queues_of(fleet: Fleet) -> Floats:
    """Queues so long that everybody wakes."""
    return 1e6 * (1.0 + uniform(fleet.seed, "bench/queue", np.arange(fleet.workers)))


Planned = tuple[float, int, Ints, Ints, Ints]
"""Seconds, links in reach, active workers, and (dst, src) of the links chosen."""


def planned_rounds(fleet: Fleet, params: WorldParams, rounds: int) -> Iterator[Planned]:
    """Plan one round after the other, the first half of them in phase 1 of PTCA."""
    world = World(params, fleet.workers, fleet.model_bytes, fleet.seed)
    mechanism = DySTop(phase_threshold=rounds // 2)
    books, waiting = initial_state(fleet, mechanism), queues_of(fleet)
    for _ in range(rounds):
        begin = time.perf_counter()
        plan, edges, books = _round(fleet, world, mechanism, replace(books, queue=waiting))
        took_s, active, links = time.perf_counter() - begin, plan.active, plan.links
        del plan  # its rows are not to be held beside the next ones
        yield took_s, edges, active, links.dst, links.src
        del active, links


def _round(
    fleet: Fleet, world: World, mechanism: Mechanism, books: ControlState
) -> tuple[Plan, int, ControlState]:
    around = world.observe(books.t, books.clock_s)
    view = build_view(fleet, books, _observation(around, fleet))
    plan, books = decide(mechanism, books, view)
    _, books = settle(mechanism, books, view, plan, _outcome(world, fleet, books, plan))
    return plan, around.reach.edges, books


def _observation(around: WorldState, fleet: Fleet) -> Observation:
    return Observation(
        around.alive,
        around.reach,
        around.distance_m,
        around.link_s,
        around.step_s,
        around.step_s * fleet.epoch_steps,
        around.budget,
    )


def _outcome(world: World, fleet: Fleet, books: ControlState, plan: Plan) -> Outcome:
    """The round as the channel has it, one second long and without training."""
    links, none = plan.links, np.zeros(len(plan.active))
    moved = world.transfer(books.t, books.clock_s, links.dst, links.src, links.fraction)
    size = np.broadcast_to(np.int64(fleet.model_bytes), len(links))
    return Outcome(
        1.0, none, moved.seconds, size, moved.lost, none, 0, 0.0, plan.active, links.dst, links.src
    )


def _measure(way: str, workers: int, rounds: int, seed: int, mobile: bool) -> PlannerCost:
    """What the child does: warm up on a small fleet, then measure."""
    import resource  # not on every system, and only needed here

    planner = planned_rounds if way == "fast" else twin_rounds
    for _ in planner(fleet_of(64, 8, seed), params_of(64, mobile), 2):
        pass  # compiled functions are loaded, modules imported
    fleet = fleet_of(workers, 4 * rounds, seed)
    seconds, edges, active, links = [], 0, 0, 0
    for took_s, reach, who, dst, _ in planner(fleet, params_of(workers, mobile), rounds):
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


def twin_rounds(fleet: Fleet, params: WorldParams, rounds: int) -> Iterator[Planned]:
    """The same rounds by the straight twin."""
    return Twin(params, fleet).rounds(queues_of(fleet), rounds)


if __name__ == "__main__":
    print(json.dumps(asdict(_measure(**json.loads(sys.argv[1])))))  # noqa: T201
