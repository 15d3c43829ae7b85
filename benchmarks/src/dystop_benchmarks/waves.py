"""Benchmark of mechanisms that wake one worker at a time, against D-PSGD in the same run.

All mechanisms train the same number of images, each once with its rounds side by side
(`engine.ahead`) and once with one round after another. The last lines measure what deciding a round
costs the host, for growing fleets and without models (`engine.train = false`).
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dystop.runs.building import build
from dystop.simulator import is_pipelined, no_round
from dystop.simulator.pipeline import simulate_ahead
from dystop.simulator.round import begin, simulate
from dystop.simulator.state import Components
from dystop.simulator.waves import WaveStatistics
from dystop_benchmarks.result import Line, Spread, spread
from dystop_benchmarks.settings import Settings, Work, experiment
from dystop_benchmarks.stopwatch import in_turns, timed

Say = Callable[[str], None]

_REFERENCE = "D-PSGD"
MECHANISMS = {
    _REFERENCE: ("mechanism.name=d-psgd",),
    "DySTop": ("mechanism.name=dystop",),
    "AD-PSGD": ("mechanism.name=ad-psgd",),
    "SA-ADFL": ("mechanism.name=sa-adfl",),
    "FedAsync": ("mechanism.name=fedasync",),
    "AsyDFL, one wake-up": ("mechanism.name=asydfl", "mechanism.wakes=one"),
}
FREE_RUNNING = ("AD-PSGD", "SA-ADFL", "FedAsync", "AsyDFL, one wake-up")
_MOST_EPOCHS = 20  # trainings of every worker in one measurement
_TRIAL_ROUNDS = 20
_DECIDED_ROUNDS = 100
_DECIDING_FLEETS = (100, 1_000, 10_000)


@dataclass
class Run:
    """A mechanism that trains a number of images, again and again, always from the start."""

    components: Components
    rounds: int = 1
    host_ms: list[float] = field(default_factory=list)  # per round, of each measurement
    waves: WaveStatistics = field(default_factory=WaveStatistics)  # of the last measurement

    def images_per_s(self) -> float:
        """Run all rounds; return the images trained per second, without the final evaluation."""
        stop = replace(self.components.stop, rounds=self.rounds)
        components, trainer = replace(self.components, stop=stop), self.components.trainer
        state, host = begin(components), HostClock(trainer)
        images, tested_s = state.control.samples, trainer.evaluated_s
        self.waves = WaveStatistics()
        with timed(trainer.device) as clock, host:
            if is_pipelined(components):
                for record, _ in simulate_ahead(components, state, no_round, self.waves):
                    last = record
            else:
                for record, _ in simulate(components, state):
                    last = record
        self.host_ms.append(1e3 * host.seconds / self.rounds)
        return (last.samples_total - images) / (clock.seconds - (trainer.evaluated_s - tested_s))


class HostClock:
    """Processor seconds of this thread in a block, outside of trainings and evaluations."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self.seconds = trainer, 0.0
        self._before: dict[str, Any] = {}

    def __enter__(self) -> None:
        self._before = dict(vars(self._trainer))
        for name in ("train", "evaluate"):
            setattr(self._trainer, name, self._without(getattr(self._trainer, name)))
        self.seconds -= time.thread_time()

    def __exit__(self, *error: object) -> None:
        self.seconds += time.thread_time()
        for name in ("train", "evaluate"):
            delattr(self._trainer, name)  # the methods of the class are back
            if name in self._before:
                setattr(self._trainer, name, self._before[name])

    def _without(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def stopped(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return work(*args, **kwargs)
            finally:
                self.seconds -= time.thread_time() - began

        return stopped


def wave_lines(settings: Settings, say: Say) -> Iterator[Line]:
    """Measure every mechanism beside D-PSGD, and what a decision costs as the fleet grows."""
    for model in settings.models:
        work = settings.work(model)
        runs = _runs(settings, work, say)
        say(f"{work.describe()}: {len(runs)} runs in turns")
        taken = in_turns([run.images_per_s for run in runs.values()], settings.repeat)
        yield from _lines(work, runs, dict(zip(runs, taken, strict=True)))
    yield from deciding_lines(settings, say)


def _runs(settings: Settings, work: Work, say: Say) -> dict[tuple[str, bool], Run]:
    """Build all runs; each trains every worker as often as D-PSGD does in the chosen seconds."""
    runs: dict[tuple[str, bool], Run] = {}
    epochs = 1
    for name, words in MECHANISMS.items():
        say(f"{work.describe()}: warm-up of {name}")
        components = build(experiment(settings, work, *words)).components
        if name == _REFERENCE:
            epochs = _epochs(components, settings.scale.at_least_s)
        rounds = _rounds(components, epochs * work.workers * work.images)
        for ahead in (True, False):
            engine = replace(components.engine, ahead=ahead)
            runs[name, ahead] = Run(replace(components, engine=engine), rounds)
    return runs


def _rounds(components: Components, images: int) -> int:
    """Return how many rounds train about this number of images, from a trial of a few."""
    state = begin(components)
    before = state.control.samples
    for record, _ in simulate(components, state):
        seen = record.samples_total - before
        if record.round == _TRIAL_ROUNDS or seen >= images:
            return max(1, round(record.round * images / max(seen, 1)))
    raise AssertionError("a benchmark has no end")


def _epochs(components: Components, at_least_s: float) -> int:
    """Return after how many rounds of D-PSGD enough seconds have passed."""
    run = Run(components, rounds=2)
    run.images_per_s()
    with timed(components.trainer.device) as clock:
        run.images_per_s()
    return min(_MOST_EPOCHS, math.ceil(2 * at_least_s / clock.seconds))


def _lines(
    work: Work, runs: dict[tuple[str, bool], Run], taken: dict[tuple[str, bool], Spread]
) -> Iterator[Line]:
    for (name, ahead), run in runs.items():
        if (name, ahead) == (_REFERENCE, True):
            continue
        how = "" if ahead else ", one round after another"
        waves = run.waves
        width = f", {waves.width:.1f} rounds a wave" if ahead and waves.waves else ""
        host = spread(run.host_ms)
        yield Line(
            what="waves",
            name=f"{name}, {work.describe()}{how}{width}, host {host.median:.2f} ms a round",
            unit="images/s",
            value=taken[name, ahead],
            reference=_REFERENCE,
            reference_value=taken[_REFERENCE, True],
            better="higher",
            detail={
                "rounds": run.rounds,
                "host_ms_per_round": host.tree(),
                "waves": waves.waves,
                "rounds_per_wave": waves.width,
                "trainings": waves.trainings,
                "ended_by": waves.ended_by,
            },
        )


def deciding_lines(settings: Settings, say: Say) -> Iterator[Line]:
    """Measure the host's milliseconds of a round without models, as the fleet grows."""
    fleets = [n for n in _DECIDING_FLEETS if n <= max(settings.scale.fleets)] or [
        min(settings.scale.fleets)
    ]
    for name in FREE_RUNNING:
        costs = []
        for workers in fleets:
            say(f"deciding a round of {name}, {workers:,} workers")
            costs.append(_deciding(settings, workers, MECHANISMS[name]))
        for workers, cost in zip(fleets, costs, strict=True):
            yield Line(
                what="waves",
                name=f"deciding a round of {name}, {workers:,} workers, no models",
                unit="ms",
                value=cost,
                reference=f"{fleets[0]:,} workers",
                reference_value=costs[0],
                better="lower",
            )


def _deciding(settings: Settings, workers: int, words: Sequence[str]) -> Spread:
    """Return the processor milliseconds of a round in which nothing is trained."""
    work = Work("softmax", (1, 2, 2), workers, images=1, batch=1, large_batch=1, test_images=10)
    components = build(experiment(settings, work, *words, "engine.train=false")).components
    components = replace(components, stop=replace(components.stop, rounds=_DECIDED_ROUNDS))
    taken = []
    for _ in range(settings.repeat + 1):
        state = begin(components)
        began = time.thread_time()
        rounds = sum(1 for _ in simulate(components, state))
        taken.append(1e3 * (time.thread_time() - began) / rounds)
    return spread(taken[1:])  # the first one loads machine code
