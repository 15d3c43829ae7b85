"""Cost of a round against the number of workers, and of an image against the model's size."""

from collections.abc import Callable
from dataclasses import replace

from dystop_benchmarks.references import large_batch, plain_loop
from dystop_benchmarks.result import Sweep
from dystop_benchmarks.settings import Settings, Work
from dystop_benchmarks.stopwatch import timed
from dystop_benchmarks.training import Rounds, bench_for

Say = Callable[[str], None]
_FLEETS_CPU, _FLEETS = (10, 30, 100, 300), (10, 30, 100, 300, 1000)
_MODELS = ("softmax", "cnn", "mlp", "squeezenet", "mobilenet-v2", "resnet18")
_SMALLEST = 10  # workers for which a round is planned
_BATCHES = 2  # mini-batches of each worker in a round of a sweep


def cost_of_workers(settings: Settings, say: Say) -> list[Sweep]:
    """Measure seconds of a round against the number of workers: planning, and whole rounds."""
    from dystop_benchmarks.planning import measure_planner

    planned, costs = (_SMALLEST, *settings.scale.fleets), []
    for workers in planned:
        say(f"planning for {workers:,} workers")
        costs.append(measure_planner(workers, 3, settings.seed).round_s)
    fleets, rounds = _fleets(settings), []
    for workers in fleets:
        say(f"training {workers:,} workers")
        rounds.append(_round_s(settings, workers))
    name = f"a whole round, {settings.models[0]}, {_BATCHES} mini-batches each"
    return [
        Sweep("planning a round", tuple(map(float, planned)), tuple(costs)),
        Sweep(name, tuple(map(float, fleets)), tuple(rounds)),
    ]


def _fleets(settings: Settings) -> tuple[int, ...]:
    usual = _FLEETS if settings.device.type == "cuda" else _FLEETS_CPU
    most = settings.workers or max(usual)
    return tuple(n for n in usual if n <= most) or (most,)


def _round_s(settings: Settings, workers: int) -> float:
    """Return the seconds of one whole round, the better of two."""
    work = settings.work(settings.models[0])
    rounds = Rounds(settings, replace(work, workers=workers, images=_BATCHES * work.batch))
    taken = []
    for _ in range(2):
        with timed(settings.device) as clock:
            rounds.step()
        taken.append(clock.seconds)
    return min(taken)


def cost_of_models(settings: Settings, say: Say, models: tuple[str, ...] = _MODELS) -> list[Sweep]:
    """Measure microseconds per trained image against the number of parameters."""
    sizes: list[float] = []
    names = ("whole rounds", "one worker after another, eager", "one model at a large batch")
    costs: dict[str, list[float]] = {name: [] for name in names}
    for model in models:
        say(f"training {model}")
        size, rates = _rates(settings, model)
        sizes.append(size)
        for name, rate in zip(names, rates, strict=True):
            costs[name].append(1e6 / rate)
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    x = tuple(sizes[k] for k in order)
    notes = tuple(models[k] for k in order)
    return [Sweep(name, x, tuple(costs[name][k] for k in order), notes) for name in names]


def _rates(settings: Settings, model: str) -> tuple[int, tuple[float, float, float]]:
    """Return parameters, and images per second of whole rounds, a plain loop and a large batch."""
    work = _less(settings, settings.work(model))
    rounds = Rounds(settings, work)
    trainer = rounds.components.trainer
    seconds = settings.scale.at_least_s / 2
    bench = replace(bench_for(settings, trainer.params), at_least_s=seconds, compiles=False)
    loop, best = plain_loop(bench, work), large_batch(bench, work)
    rates = (rounds.meter(seconds)(), loop.meter(), best.meter())
    return trainer.layout.parameters, rates


def _less(settings: Settings, work: Work) -> Work:
    """Return as much work as one point of a curve needs; large models are slow on a CPU."""
    workers, batch = work.workers, work.batch
    if not work.small and settings.device.type == "cuda":
        workers = settings.workers or 20
    elif not work.small:
        workers, batch = 2, 16
    large = min(work.large_batch, workers * batch)
    return replace(work, workers=workers, batch=batch, images=batch * _BATCHES, large_batch=large)
