"""Evaluation of all models against one model examined at a large batch."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from dystop.bench.clock import Meter, in_turns
from dystop.bench.references import large_forward
from dystop.bench.result import Line
from dystop.bench.settings import Settings, experiment
from dystop.bench.training import bench_for
from dystop.experiments.build import build
from dystop.training.trainer import Trainer

_LARGE = 10_000  # images of the large batch on a device that has room
_LARGE_CPU = 500  # on a CPU larger ones no longer fit its caches and are slower


def evaluation_lines(settings: Settings, say: Callable[[str], None]) -> Iterator[Line]:
    """Images per second when every model is examined with every test image."""
    for model in settings.models:
        usual = settings.work(model)
        tests = settings.scale.test_images if usual.small else settings.scale.test_images // 10
        work = replace(usual, images=usual.batch, test_images=max(tests, 10))
        say(f"{model}: {work.workers} models x {work.test_images} images, warm-up")
        began = time.perf_counter()
        trainer = build(experiment(settings, work)).parts.trainer
        step = examination(trainer, work.workers, work.test_images)
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


def examination(trainer: Trainer, models: int, images: int) -> Callable[[], float]:
    """A step that examines so many models; returns the images looked at."""
    vector, counters = trainer.initial()
    rows, counts = vector.repeat(models, 1), counters.repeat(models, 1)

    def step() -> float:
        trainer.evaluate(rows, counts)
        return models * images

    return step
