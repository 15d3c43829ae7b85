"""Fairness: how evenly a quantity, such as test accuracy, is spread over the workers.

Records hold the accuracies of single workers where `evaluate.per_worker = true`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dystop.sparse import Floats


@dataclass(frozen=True)
class Fairness:
    """How evenly accuracy is spread over the workers that were tested."""

    worst_decile: float  # mean accuracy of the worst tenth of the workers
    spread: float  # standard deviation over the workers
    jain: float | None  # Jain's index: 1 if all are equal, 1/n if one worker has everything


def fairness_of(accuracy: Sequence[float | None] | None) -> Fairness | None:
    """Return the fairness of the workers' accuracies; None where none is known.

    Args:
        accuracy: Accuracy of each worker, [N]; None for a worker that was not tested.

    >>> fairness_of([0.75, 0.25, None])
    Fairness(worst_decile=0.25, spread=0.25, jain=0.8)
    """
    values = np.array([x for x in accuracy or () if x is not None], float)
    if not len(values):
        return None
    return Fairness(worst_decile(values), float(values.std()), jain_index(values))


def worst_decile(values: Floats) -> float:
    """Return the mean of the lowest tenth of the values, rounded up to whole workers.

    >>> worst_decile(np.arange(20) / 20)
    0.025
    """
    count = math.ceil(len(values) / 10)
    return float(np.sort(values)[:count].mean())


def jain_index(values: Floats) -> float | None:
    """Return Jain's fairness index, (sum x)^2 / (n sum x^2); None where a value is negative.

    It is 1 where all values are equal, also where all are 0. The score of a regression, r2, may be
    negative.

    >>> jain_index(np.array([1.0, 0.0, 0.0, 0.0]))
    0.25
    """
    if (values < 0).any():
        return None
    squares = float((values**2).sum())
    return float(values.sum()) ** 2 / (len(values) * squares) if squares > 0 else 1.0
