"""Benchmarks of training and evaluation against one large batch, plain loops and plain SGD.

Training is measured over whole rounds: gather, mix, train, record.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from dystop.parallel import cores
from dystop.runs.building import build
from dystop.simulator import run_rounds
from dystop.simulator.round import begin
from dystop.simulator.state import Components
from dystop.training.params import TrainerParams
from dystop.training.trainer import Trainer
from dystop_benchmarks import references
from dystop_benchmarks.references import Bench, large_batch, large_forward, plain_loop
from dystop_benchmarks.result import Line, Spread
from dystop_benchmarks.settings import Settings, Work, experiment
from dystop_benchmarks.stopwatch import Meter, in_turns

Say = Callable[[str], None]
_PLAIN_MODEL, _PLAIN_BATCH = "cnn", 32  # what the plain loop of two processes trains
_OPTIMISERS = {
    "momentum 0.9": ("training.momentum=0.9",),
    "momentum 0.9, weight decay, kept": (
        "training.momentum=0.9",
        "training.weight_decay=5e-4",
        "training.optimizer_state=kept",
    ),
    "AdamW": ("training.optimizer=adamw", "training.weight_decay=0.01"),
    "crop and flip": ("training.augment.crop=4", "training.augment.flip=true"),
}
_WARM_ROUNDS = 1  # besides the training that a run begins with


class Rounds:
    """Rounds of a synchronous run in which every worker trains: FedAvg, nothing evaluated."""

    def __init__(self, settings: Settings, work: Work, *words: str) -> None:
        began = time.perf_counter()
        self.components: Components = build(
            experiment(settings, work, "mechanism.name=fedavg", *words)
        ).components
        self._rounds = run_rounds(self.components, begin(self.components))
        self._images = 0
        for _ in range(_WARM_ROUNDS):
            self.step()
        self.warmup_s = time.perf_counter() - began

    def step(self) -> float:
        """Run one round; return the number of trained images."""
        record, _ = next(self._rounds)
        before, self._images = self._images, record.samples_total
        return self._images - before

    def meter(self, at_least_s: float) -> Meter:
        """Return a meter of images per second over whole rounds."""
        return Meter(self.step, self.components.trainer.device, at_least_s)


@dataclass(frozen=True)
class Reference:
    """A reference that is measured in turns with whole rounds."""

    name: str
    measure: Callable[[], float]  # images per second
    warmup_s: float = 0.0
    detail: tuple[tuple[str, object], ...] = ()


def bench_for(settings: Settings, params: TrainerParams) -> Bench:
    """Return where references are measured: the trainer's device and precision."""
    return Bench(settings.device, settings.seed, params.precision, settings.scale.at_least_s)


def training_lines(settings: Settings, say: Say) -> Iterator[Line]:
    """Measure images per second of every chosen model beside its references."""
    for model in (*settings.models, *settings.also_trained):
        work = settings.work(model)
        say(f"{work.describe()}: warm-up")
        rounds = Rounds(settings, work)
        bench = bench_for(settings, rounds.components.trainer.params)
        beside = list(_references(bench, settings, work))
        say(f"{work.describe()}: whole rounds and {len(beside)} references in turns")
        ours = rounds.meter(settings.scale.at_least_s)
        taken = in_turns([ours, *(one.measure for one in beside)], settings.repeat)
        yield from _lines(rounds, work, beside, taken)


def _lines(
    rounds: Rounds, work: Work, beside: list[Reference], taken: list[Spread]
) -> Iterator[Line]:
    facts: dict[str, object] = {"workers": work.workers, "images": work.images, "batch": work.batch}
    trainer = rounds.components.trainer
    facts |= {"parameters": trainer.layout.parameters, "path": trainer.path}
    for reference, value in zip(beside, taken[1:], strict=True):
        yield Line(
            what="trainer",
            name=f"{work.describe()}, whole rounds",
            unit="images/s",
            value=taken[0],
            reference=reference.name,
            reference_value=value,
            better="higher",
            warmup_s=rounds.warmup_s,
            detail={**facts, "reference_warmup_s": reference.warmup_s, **dict(reference.detail)},
        )


def _references(bench: Bench, settings: Settings, work: Work) -> Iterator[Reference]:
    """Yield one large batch, a plain loop, and on a CPU the plain loop in processes."""
    began = time.perf_counter()
    best = large_batch(bench, work)
    about = (("ways", best.rates), ("failed", best.failed))
    name = f"one model at batch {work.large_batch}, {best.name}"
    yield Reference(name, best.meter, time.perf_counter() - began, about)
    began = time.perf_counter()
    loop = plain_loop(bench, work)
    about = (("ways", loop.rates), ("failed", loop.failed))
    name = f"one worker after another, {loop.name}"
    yield Reference(name, loop.meter, time.perf_counter() - began, about)
    if (work.model, work.batch) == (_PLAIN_MODEL, _PLAIN_BATCH) and bench.device.type == "cpu":
        count = cores()
        name = f"plain loop, {count} processes, one thread each"
        yield Reference(name, _plain_processes(count, settings.scale.plain_workers))


def _plain_processes(processes: int, workers: int) -> Callable[[], float]:
    """Return the measurement of a plain loop: one process per core, one torch thread each."""
    return lambda: references.plain_loop_images_per_s(processes, workers, 1)


_LARGE = 10_000  # images of the large batch on a GPU
_LARGE_CPU = 500  # larger batches do not fit the caches of a CPU and are slower


def evaluation_lines(settings: Settings, say: Callable[[str], None]) -> Iterator[Line]:
    """Measure images per second when every model is evaluated on every test image."""
    for model in settings.models:
        usual = settings.work(model)
        tests = settings.scale.test_images if usual.small else settings.scale.test_images // 10
        work = replace(usual, images=usual.batch, test_images=max(tests, 10))
        say(f"{model}: {work.workers} models x {work.test_images} images, warm-up")
        began = time.perf_counter()
        trainer = build(experiment(settings, work)).components.trainer
        step = evaluation_step(trainer, work.workers, work.test_images)
        step()
        warmup_s = time.perf_counter() - began
        bench = bench_for(settings, trainer.params)
        large = _LARGE if settings.device.type == "cuda" else _LARGE_CPU
        best = large_forward(bench, work, large if work.small else large // 5)
        ours = Meter(step, settings.device, settings.scale.at_least_s)
        value, beside = in_turns([ours, best.meter], settings.repeat)
        yield Line(
            what="evaluation",
            name=f"{model}, {work.workers} models x {work.test_images} images",
            unit="images/s",
            value=value,
            reference=f"one model at batch {large if work.small else large // 5}, {best.name}",
            reference_value=beside,
            better="higher",
            warmup_s=warmup_s,
            detail={"ways": best.rates, "failed": best.failed},
        )


def evaluation_step(trainer: Trainer, models: int, images: int) -> Callable[[], float]:
    """Return a step that evaluates this number of models and returns the number of images."""
    vector, counters = trainer.initial()
    rows, counts = vector.repeat(models, 1), counters.repeat(models, 1)

    def step() -> float:
        trainer.evaluate(rows, counts)
        return models * images

    return step


def optimiser_lines(settings: Settings, say: Say) -> Iterator[Line]:
    """Measure images per second of every chosen model with each optimiser beside plain SGD.

    Where an optimiser is trained on another path than plain SGD would be, plain SGD is measured on
    that path, too.
    """
    for model in settings.models:
        yield from _beside_plain_sgd(settings, settings.work(model), say)


def _beside_plain_sgd(settings: Settings, work: Work, say: Say) -> Iterator[Line]:
    say(f"{work.describe()}: warm-up of plain SGD and {len(_OPTIMISERS)} others")
    plain = Rounds(settings, work)
    others = {name: Rounds(settings, work, *words) for name, words in _OPTIMISERS.items()}
    paths = {name: rounds.components.trainer.path for name, rounds in others.items()}
    references = {plain.components.trainer.path: plain}
    for path in sorted(set(paths.values()) - references.keys()):
        references[path] = Rounds(settings, work, f"training.path={path}")
    say(f"{work.describe()}: whole rounds in turns")
    measured = [*references.values(), *others.values()]
    meters = [rounds.meter(settings.scale.at_least_s) for rounds in measured]
    spreads = dict(zip((*references, *others), in_turns(meters, settings.repeat), strict=True))
    for name, rounds in others.items():
        for path in dict.fromkeys((plain.components.trainer.path, paths[name])):
            yield Line(
                what="optimisers",
                name=f"{work.describe()}, {name} ({paths[name]})",
                unit="images/s",
                value=spreads[name],
                reference=f"plain SGD ({path})",
                reference_value=spreads[path],
                better="higher",
                warmup_s=rounds.warmup_s,
                detail={"words": list(_OPTIMISERS[name])},
            )
