"""The official SVHN "cropped digits" files, train_32x32.mat and test_32x32.mat."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.data.files import check_digest, refusal
from dystop.sparse import Ints


def read_svhn(path: Path, size: int, digest: str | None = None) -> tuple[NDArray[np.uint8], Ints]:
    """Read one .mat file: images [n, 3, 32, 32] and labels, where the file's 10 is the digit 0.

    Raises:
        DataError: the file is corrupt, lacks X or y, or is not of the expected size.
    """
    if digest:
        check_digest(path, digest)
    content = _load(path)
    for key, shape in (("X", (32, 32, 3, size)), ("y", (size, 1))):
        if key not in content:
            raise refusal(path, f"has no array {key!r}", "the arrays X and y of the cropped digits")
        if np.shape(content[key]) != shape:
            raise refusal(path, f"{key} has shape {np.shape(content[key])}", f"{shape}")
    pixels, labels = content["X"], content["y"].reshape(-1)
    if pixels.dtype != np.uint8:
        raise refusal(path, f"X is {pixels.dtype}", "uint8")
    if labels.min() < 1 or labels.max() > 10:
        found = f"labels from {labels.min()} to {labels.max()}"
        raise refusal(path, found, "1 to 10, where 10 is the digit 0")
    return np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)), labels.astype(np.int64) % 10


def _load(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat  # slow to import, and few runs read these files

    try:
        content: dict[str, Any] = loadmat(path, variable_names=["X", "y"])
    except Exception as error:  # on damaged input SciPy raises a dozen different kinds
        raise refusal(path, f"corrupt or truncated ({error})", "a MATLAB 5 .mat file") from error
    return content
