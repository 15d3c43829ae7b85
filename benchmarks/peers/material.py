"""The data that all scripts read: Fashion-MNIST as one shuffled .npz."""

from pathlib import Path

import numpy as np

from dystop.data import Dataset, load
from dystop.errors import DataError
from dystop.rng import stream

IMAGES = 60_000
_TEST_IMAGES = 1_000  # evaluation is off; the file only has to be complete


def data_file(path: Path) -> Path:
    """The .npz at this path, made if it is missing."""
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, _fashion())
    return path


def images_in(path: Path) -> int:
    """Number of training images in a file."""
    with np.load(path, allow_pickle=False) as file:
        return len(file["y_train"])


def _fashion() -> Dataset:
    """The real set if it is on this machine, else the packaged part of it, to be repeated."""
    try:
        return load("fashion-mnist", download=False)
    except DataError:
        return load("fmnist-mini")


def _write(path: Path, data: Dataset) -> None:
    order = np.resize(np.arange(len(data.y_train)), IMAGES)
    order = stream(0, "peers").permutation(order)
    np.savez(
        path,
        x_train=data.x_train[order],
        y_train=data.y_train[order],
        x_test=data.x_test[:_TEST_IMAGES],
        y_test=data.y_test[:_TEST_IMAGES],
    )
