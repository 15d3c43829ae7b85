"""Settings of `dystop bench`: how much is measured, and the images to measure with."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from dystop.config import Experiment, read_experiment
from dystop.folders.trust import with_folder
from dystop.rng import stream
from dystop.sparse import Ints
from dystop.storage import write_atomic
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
    """The settings of one benchmark session."""

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
        """Return plain values, for JSON."""
        plain = {k: v for k, v in asdict(self).items() if k not in ("device", "folder")}
        return {**plain, "device": str(self.device)}

    def work(self, model: str) -> "Work":
        """Return the work of one model: grey images for small ones, colour for large ones."""
        module = model_of(model, (1, 28, 28), self.seed)
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
    """Which model is trained by how many workers on how many images."""

    model: str
    shape: tuple[int, int, int]  # channels, height, width
    workers: int
    images: int  # of each worker
    batch: int
    large_batch: int  # samples of the one large batch that the work is compared with
    small: bool = True
    test_images: int = 100

    def describe(self) -> str:
        """Return a short description."""
        return f"{self.model}, {self.workers} x batch {self.batch}"


def model_of(model: str, shape: tuple[int, int, int], seed: int) -> nn.Module:
    """Return a model by its name; a user's own is in the current folder, or installed."""
    named = with_folder({"model": {"name": model}}, Path.cwd())["model"]
    return build_model(model, shape[0], shape[1:], CLASSES, seed, named.get("folder", ""))


def experiment(settings: Settings, work: Work, *words: str) -> Experiment:
    """Return the configuration of a run of this work."""
    return read_experiment(None, [*experiment_words(settings, work), *words, *settings.words])


def experiment_words(settings: Settings, work: Work) -> list[str]:
    """Return the configuration as `key=value`: equal shards, no end, no tests."""
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
    """Return a file with as many images as the work needs; make it where it is missing."""
    train = work.workers * work.images
    name = "-".join(map(str, (*work.shape, train, work.test_images)))
    return write_npz(settings.folder / f"{name}.npz", work.shape, train, work.test_images)


CLASSES = 10
Bytes = NDArray[np.uint8]


def images(
    shape: tuple[int, int, int], count: int, seed: int, split: str = "train"
) -> tuple[Bytes, Ints]:
    """Generate images (noise over one picture per class, as bytes) and their labels.

    >>> x, y = images((1, 28, 28), 20, 0)
    >>> x.shape, x.dtype.name, sorted(set(y.tolist())) == list(range(10))
    ((20, 1, 28, 28), 'uint8', True)
    """
    pictures = stream(seed, "bench", "pictures").integers(0, 128, (CLASSES, *shape), np.uint8)
    labels = np.arange(count) % CLASSES
    x = stream(seed, "bench", split).integers(0, 128, (count, *shape), np.uint8)
    x += pictures[labels]
    return x, labels.astype(np.int64)


def write_npz(path: Path, shape: tuple[int, int, int], train: int, test: int) -> Path:
    """Write a data set of this shape, unless the file exists."""
    if path.is_file():
        return path
    x_train, y_train = images(shape, max(train, CLASSES), 0)
    x_test, y_test = images(shape, max(test, CLASSES), 0, "test")

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez(file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)

    write_atomic(path, save, durable=False)
    return path
