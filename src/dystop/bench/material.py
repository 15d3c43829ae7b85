"""Images to measure with: generated, learnable, and no larger in memory than they need be."""

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dystop.rng import stream
from dystop.sparse import Ints

CLASSES = 10
Bytes = NDArray[np.uint8]


def images(
    shape: tuple[int, int, int], count: int, seed: int, split: str = "train"
) -> tuple[Bytes, Ints]:
    """Noise over one picture per class, as bytes, and the labels.

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
    """A data set file of this shape; one that is there is used as it is."""
    if path.is_file():
        return path
    x_train, y_train = images(shape, max(train, CLASSES), 0)
    x_test, y_test = images(shape, max(test, CLASSES), 0, "test")
    beside = path.with_suffix(".part")
    with beside.open("wb") as file:
        np.savez(file, x_train=x_train, y_train=y_train, x_test=x_test, y_test=y_test)
    os.replace(beside, path)
    return path
