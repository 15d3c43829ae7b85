"""`fmnist-mini`: the subset of Fashion-MNIST that comes with dystop.

The packaged file is one xz stream: the train split, then the test split; in each, class after
class, the first images of the class in official order, as bytes. Images of one class side by side
compress best; of all formats tried (deflate, bzip2 and LZMA, on pixels and on PNG-like and JPEG-LS
predictions) this was the smallest. `scripts/make_fmnist_mini.py` writes it. It is decompressed
once, into the user's cache.
"""

import hashlib
import lzma
import os
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dystop.data.catalogue import ENTRIES
from dystop.data.dataset import Dataset, Splits, assemble
from dystop.errors import DataError
from dystop.sparse import Ints
from dystop.storage import write_atomic

FILE = "fmnist_mini.xz"
CONTENT_SHA256 = "28f18b801ea088981350ccec4e88d2d5a6bd303ee86c624887dbcfdb9f49cd6e"

_ENTRY = ENTRIES["fmnist-mini"]


def load_fmnist_mini() -> Dataset:
    """Read the packaged subset. Samples alternate between the classes: any prefix is balanced.

    Raises:
        DataError: The installed file is damaged.
    """
    pixels = _content()
    first = _ENTRY.train * 28 * 28
    x_train, y_train = _interleave(pixels[:first])
    x_test, y_test = _interleave(pixels[first:])
    return assemble(
        _ENTRY.name,
        Splits(x_train, y_train, x_test, y_test),
        classes=_ENTRY.classes,
        class_names=_ENTRY.class_names,
        source="packaged with dystop",
    )


def _content() -> NDArray[np.uint8]:
    """Return all pixels, from the cache if it has them: decompression is slow."""
    cached = _cache_file()
    with suppress(OSError):
        raw = cached.read_bytes()
        if hashlib.sha256(raw).hexdigest() == CONTENT_SHA256:
            return np.frombuffer(raw, np.uint8)
    pixels = _decompress()
    with suppress(OSError):  # without a writable cache, decompress every time
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(cached, pixels.tobytes(), durable=False)
    return pixels


def _cache_file() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "dystop" / _ENTRY.name / f"{CONTENT_SHA256[:16]}.bin"


def _decompress() -> NDArray[np.uint8]:
    path = files("dystop.data") / FILE
    try:
        raw = lzma.decompress(path.read_bytes())
    except (OSError, lzma.LZMAError) as error:
        raise _damaged(str(path), str(error)) from error
    if hashlib.sha256(raw).hexdigest() != CONTENT_SHA256:
        raise _damaged(str(path), f"its content does not have sha256 {CONTENT_SHA256}")
    return np.frombuffer(raw, np.uint8)


def _damaged(path: str, why: str) -> DataError:
    return DataError(
        f"{path}: the packaged data file is missing or damaged ({why}); reinstall dystop"
    )


def _interleave(pixels: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], Ints]:
    by_class = pixels.reshape(_ENTRY.classes, -1, 1, 28, 28)
    labels = np.tile(np.arange(_ENTRY.classes), by_class.shape[1])
    return by_class.swapaxes(0, 1).reshape(-1, 1, 28, 28), labels
