"""How much is measured: the same work everywhere, less of it where time is short."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dystop.bench.material import CLASSES, write_npz
from dystop.experiments.config import Experiment, read_experiment
from dystop.training.models.build import build_model

SMALL_BELOW = 500_000  # parameters; larger models get colour images and larger batches
CANDIDATES, RANGE_M = 20, 40.0  # workers in reach of each other, and how far that is
FOREVER = 10**6  # rounds; more than any measurement runs


@dataclass(frozen=True)
class Scale:
    """Amounts of work."""

    images: int  # training images of each worker
    test_images: int  # per model in one evaluation
    rounds: int  # of the whole run
    run_test_images: int  # per model in each evaluation of the whole run
    fleets: tuple[int, ...]  # workers that are planned for
    at_least_s: float  # seconds of one measurement of something short
    plain_workers: int  # trained by the plain loop of two processes in one measurement


USUAL = Scale(600, 400, 10, 1_000, (1_000, 10_000, 100_000), 1.0, 20)
QUICK = Scale(96, 200, 5, 200, (1_000, 10_000), 0.2, 4)
DEVICE = Scale(600, 10_000, 200, 10_000, (1_000, 10_000, 100_000), 0.5, 20)
FULL = Scale(600, 10_000, 200, 10_000, (1_000, 10_000, 100_000, 1_000_000), 1.0, 100)


@dataclass(frozen=True)
class Settings:
    """What was asked for."""

    device: torch.device
    models: tuple[str, ...]
    scale: Scale
    folder: Path  # for images and whatever else is needed on disk meanwhile
    workers: int | None = None  # None: as many as suit the model and the device
    repeat: int = 3
    seed: int = 0
    words: tuple[str, ...] = ()  # further configuration, key=value
    also_trained: tuple[str, ...] = ()  # models that are trained, and nothing else
    starts_cold: bool = False  # also time a run that finds nothing compiled

    def tree(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        plain = {k: v for k, v in asdict(self).items() if k not in ("device", "folder")}
        return {**plain, "device": str(self.device)}

    def work(self, model: str) -> "Work":
        """The work of one model: the paper's for small ones, CIFAR's shape for large ones."""
        module = build_model(model, 1, (28, 28), CLASSES, self.seed)
        small = sum(p.numel() for p in module.parameters()) < SMALL_BELOW
        many, grey, colour = self.workers or 100, (1, 28, 28), (3, 32, 32)
        if small:
            return Work(model, grey, many, self.scale.images, 32, large_batch=32 * many)
        if self.device.type == "cuda":
            images = min(512, self.scale.images)
            return Work(model, colour, many, images, 64, large_batch=2048, small=False)
        few = self.workers or 4
        return Work(model, colour, few, 64, 64, large_batch=64 * few, small=False)


@dataclass(frozen=True)
class Work:
    """Who trains what on how much."""

    model: str
    shape: tuple[int, int, int]  # channels, height, width
    workers: int
    images: int  # of each worker
    batch: int
    large_batch: int  # samples of the one large batch that the work is compared with
    small: bool = True
    test_images: int = 100

    def describe(self) -> str:
        """The work in a few words."""
        return f"{self.model}, {self.workers} x batch {self.batch}"


def experiment(settings: Settings, work: Work, *words: str) -> Experiment:
    """The configuration of a run of this work."""
    return read_experiment(None, [*experiment_words(settings, work), *words, *settings.words])


def experiment_words(settings: Settings, work: Work) -> list[str]:
    """The same as `key=value`: equal shards, no end, no tests, a fleet spread out."""
    side = math.sqrt(work.workers * math.pi * RANGE_M**2 / CANDIDATES)
    return [
        f"data.name={images_of(settings, work)}",
        "data.partition=iid",
        f"model.name={work.model}",
        f"fleet.workers={work.workers}",
        f"training.batch={work.batch}",
        f"training.device={settings.device}",
        f"world.range_m={RANGE_M}",
        f"world.area_m=[{side:.1f}, {side:.1f}]",
        f"stop.rounds={FOREVER}",
        f"evaluate.every_rounds={FOREVER}",
        f"seed={settings.seed}",
    ]


def images_of(settings: Settings, work: Work) -> Path:
    """File with as many images as the work needs, made where it is missing."""
    train = work.workers * work.images
    name = "-".join(map(str, (*work.shape, train, work.test_images)))
    return write_npz(settings.folder / f"{name}.npz", work.shape, train, work.test_images)
