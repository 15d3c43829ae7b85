"""Planning: seconds of a round at growing fleets, beside the straight twin of its equations."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict

import numpy as np

from dystop.bench.child import peak_process_bytes
from dystop.bench.clock import in_turns
from dystop.bench.planning import PlannerCost, measure_planner, reference_planner
from dystop.bench.result import Line, spread
from dystop.bench.settings import Settings

_ROUNDS = 4  # of a measurement; the first also builds the neighbour graph
_TWIN_ROUNDS = 2
_TWIN_WORKERS = 10_000  # most that the twin is asked to plan for


def planner_lines(settings: Settings, say: Callable[[str], None]) -> Iterator[Line]:
    """Seconds of a planned round: against the twin, and per worker against the smallest fleet."""
    costs: list[PlannerCost] = []
    for workers in settings.scale.fleets:
        say(f"{workers:,} workers")
        costs.append(measure_planner(workers, _ROUNDS, settings.seed))
        yield _growth(costs)
    yield _beside_twin(settings, say)
    if len(costs) > 1:
        yield _slope(costs)


def _growth(costs: Sequence[PlannerCost]) -> Line:
    """The last fleet beside the first, per worker: 1 is linear."""
    first, last = costs[0], costs[-1]
    share, rounds_s = last.workers / first.workers, last.rounds_s[1:]
    # A child's mark may begin at ours: only a higher one is its own.
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


def _beside_twin(settings: Settings, say: Callable[[str], None]) -> Line:
    """The same round by loops over workers, in turns with ours."""
    workers = min(_TWIN_WORKERS, max(settings.scale.fleets))
    say(f"{workers:,} workers and the straight twin in turns")
    measures = (
        lambda: measure_planner(workers, _TWIN_ROUNDS, settings.seed).round_s,
        lambda: reference_planner(workers, _TWIN_ROUNDS, settings.seed).round_s,
    )
    ours, twin = in_turns(measures, settings.repeat)
    return Line(
        what="planner",
        name=f"a round of {workers:,} workers",
        unit="s",
        value=ours,
        reference="straight twin",
        reference_value=twin,
        better="lower",
    )


def _slope(costs: Sequence[PlannerCost]) -> Line:
    """Slope of log time over log workers, from 10,000 workers on where two such fleets are."""
    large = [c for c in costs if c.workers >= _TWIN_WORKERS]
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
