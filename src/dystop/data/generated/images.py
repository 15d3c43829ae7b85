"""Synthetic images: a class is a picture of a few soft blobs; every sample adds noise."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from dystop.data.catalogue import DataSource
from dystop.data.dataset import Dataset, Labels, Splits, assemble
from dystop.params import param
from dystop.rng import stream
from dystop.sparse import Floats, Ints, ints

_BLOBS = 5  # per class and channel
_WIDTH = 0.15  # of a blob, as a share of the image
_CONTRAST = 0.35  # largest distance of a prototype from mid-grey


@dataclass(frozen=True)
class SyntheticImages(DataSource):
    """Images whose size, shape and noise are chosen."""

    name = "synthetic"
    summary = "blobs and noise drawn from the seed; any size"
    licence = "none needed"

    train: Annotated[int, Ge(1)] = param(2000, "training images")
    test: Annotated[int, Ge(1)] = param(500, "test images")
    classes: Annotated[int, Ge(2)] = param(10, "number of classes")
    shape: tuple[int, int, int] = param((1, 8, 8), "channels, height and width of an image")
    noise: Annotated[float, Ge(0)] = param(
        0.25, "standard deviation of the pixel noise, where 1 is the range from black to white"
    )

    def load(self, seed: int) -> Dataset:
        """Generate the data set of a seed."""
        return make_synthetic(self, seed)

    def labels(self, seed: int) -> Labels:
        """Return the training labels, without generating images."""
        return synthetic_labels(self, seed)


def make_synthetic(params: SyntheticImages, seed: int) -> Dataset:
    """Generate the data set of a seed. Classes are balanced; a softmax regression learns them."""
    prototypes = _prototypes(params, seed)
    x_train, y_train = _samples(prototypes, params.train, params.noise, seed, "train")
    x_test, y_test = _samples(prototypes, params.test, params.noise, seed, "test")
    return assemble(
        "synthetic",
        Splits(x_train, y_train, x_test, y_test),
        classes=params.classes,
        source=_source(seed),
    )


def synthetic_labels(params: SyntheticImages, seed: int) -> Labels:
    """Return the training labels of the data set of a seed, without generating its images."""
    return Labels(
        name="synthetic",
        y_train=_labels(stream(seed, "synthetic", "train"), params.train, params.classes),
        classes=params.classes,
        class_names=tuple(str(k) for k in range(params.classes)),
        source=_source(seed),
        shape=params.shape,
    )


def _source(seed: int) -> str:
    return f"generated from seed {seed}"


def _labels(rng: np.random.Generator, count: int, classes: int) -> Ints:
    return ints(rng.permutation(np.arange(count) % classes))


def _prototypes(params: SyntheticImages, seed: int) -> Floats:
    """Return one picture for each class, [K, C, H, W], from 0 (black) to 1 (white)."""
    rng = stream(seed, "synthetic", "prototypes")
    channels, height, width = params.shape
    blobs = (params.classes, channels, _BLOBS)
    down = _bumps(rng.random(blobs), height)
    across = _bumps(rng.random(blobs), width)
    pictures = np.einsum("kcb,kcbh,kcbw->kchw", rng.uniform(-1, 1, blobs), down, across)
    largest = np.abs(pictures).max(axis=(1, 2, 3), keepdims=True)
    out: Floats = 0.5 + _CONTRAST * pictures / largest
    return out


def _bumps(centre: Floats, pixels: int) -> Floats:
    """Return the profile of every blob along one axis, [..., pixels]."""
    at = (np.arange(pixels) + 0.5) / pixels
    out: Floats = np.exp(-(((at - centre[..., None]) / _WIDTH) ** 2) / 2)
    return out


def _samples(
    prototypes: Floats, count: int, noise: float, seed: int, split: str
) -> tuple[NDArray[np.uint8], Ints]:
    rng = stream(seed, "synthetic", split)
    labels = _labels(rng, count, len(prototypes))
    noise_pixels = rng.standard_normal((count, *prototypes.shape[1:]), np.float32)
    pixels = 255.0 * (prototypes[labels] + noise * noise_pixels)
    return np.rint(np.clip(pixels, 0, 255)).astype(np.uint8), labels
