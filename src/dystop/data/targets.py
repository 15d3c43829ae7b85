"""Targets in place of labels: what the y of a user's own arrays may hold.

Floats are the targets of a regression. Integers of the shape of token ids are the tokens that
follow. Samples are still divided by labels: those of a regression are ten bins of equal size, and
samples of a text without labels have all the same one.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystop.sparse import Floats, Ints, ints

BINS = 10

Arrays = Mapping[str, NDArray[Any]]


def with_labels(arrays: Arrays) -> Arrays:
    """Return the arrays with labels in y, and in `target_train` and `target_test` what y held.

    Arrays whose y are labels stay as they are.

    >>> y = np.linspace(0.0, 1.0, 20)
    >>> found = with_labels({"x_train": y[:, None], "y_train": y, "y_test": y[:2]})
    >>> found["y_train"][:5].tolist(), found["target_test"].shape
    ([0, 0, 1, 1, 2], (2,))
    """
    x, train, test = (arrays[key] for key in ("x_train", "y_train", "y_test"))
    targets = {"target_train": train, "target_test": test}
    if {train.dtype.kind, test.dtype.kind} == {"f"} and {train.ndim, test.ndim} <= {1, 2}:
        shares = np.arange(1, BINS) / BINS
        first = train.reshape(len(train), -1)[:, :1].astype(float)
        edges = np.quantile(first, shares) if first.size else np.zeros(0)
        labels = {"y_train": _bins(train, edges), "y_test": _bins(test, edges)}
        return {**arrays, **labels, **targets}
    is_text = x.ndim == 2 and x.dtype.kind in "iu" and x.dtype != np.uint8
    if is_text and train.shape == x.shape:
        same = {key: np.zeros(len(arrays[key]), np.int64) for key in ("y_train", "y_test")}
        return {**arrays, **same, **targets}
    return arrays


def _bins(values: NDArray[Any], edges: Floats) -> Ints:
    return ints(np.searchsorted(edges, values.reshape(len(values), -1)[:, 0], side="left"))
