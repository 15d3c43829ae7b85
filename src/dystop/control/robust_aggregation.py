"""Ways to mix models of which some may be bad.

All of them take and give flat float32 vectors. `own` is the receiver's model, `others` the K models
that arrived, `weights` [K] theirs; what is missing to one is the weight of the own model.

With the three or four neighbours that are usual here only `clip` helps: `trimmed` and `median`
need about seven models or more before a bad one can be told from a different one, and `nearest`
is fooled by whoever stays close.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dystop.control.aggregation import mix
from dystop.kernels.norms import square_gap, square_sum
from dystop.parallel import as_readonly
from dystop.sparse import Floats

Vector = NDArray[np.float32]
Models = Sequence[Vector] | NDArray[np.float32]  # a list of vectors [P], or [K, P]

_NUMBERS = 1 << 18  # in the block of all models that is looked at together: 1 MB


def blend(weights: Floats, models: Models) -> Vector:
    """Weighted sum of models, in the order given (eq:aggregation); weights [K], models [K, P].

    Block by block, so that the models need not lie together in memory.
    """
    factors = np.asarray(weights, np.float32)[None, :]
    out = np.empty(len(models[0]), np.float32)
    for part in _blocks(models):
        out[part] = mix(factors, _stacked(models, part))[0]
    return out


def mean(own: Vector, others: Models, weights: Floats) -> Vector:
    """Weighted mean: the paper's, and no protection at all."""
    return blend(np.append(1.0 - np.sum(weights), weights), [own, *others])


def clip(own: Vector, others: Models, weights: Floats, radius: float) -> Vector:
    """Self-centred clipping: own + sum_j w_j min(1, radius / ||x_j - own||) (x_j - own).

    Nobody moves the own model by more than its weight times the radius (ClippedGossip; He,
    Karimireddy and Jaggi 2022).
    """
    factor = clip_factors(distances(own, others), radius)
    near = np.flatnonzero(factor).tolist()  # what is infinitely far away has no say
    return mean(own, [others[k] for k in near], (np.asarray(weights, float) * factor)[near])


def clip_factors(distance: Floats, radius: float) -> Floats:
    """How much of the way to each model is left after clipping, in [0, 1].

    >>> clip_factors(np.array([0.0, 1.0, 4.0, np.inf, np.nan]), 2.0).tolist()
    [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    factor = np.where(distance <= radius, 1.0, 0.0)
    far = np.isfinite(distance) & (distance > radius)
    factor[far] = radius / distance[far]
    return factor


def nearest(own: Vector, others: Models, weights: Floats, k: int) -> Vector:
    """Weighted mean of the own model and the k others that are nearest to it."""
    weights = np.asarray(weights, float)
    order = np.argsort(distances(own, others), kind="stable")
    chosen = sorted(order[:k].tolist())
    mine = 1.0 - weights.sum()
    total = mine + weights[chosen].sum()
    if total == 0:
        return own
    return mean(own, [others[j] for j in chosen], weights[chosen] / total)


def trimmed(models: Models, share: float) -> Vector:
    """Mean of each coordinate without the smallest and largest values; the own model is one of K.

    Cuts floor(share K) values at each end, and always leaves one or two. Weights do not count.
    Weak below about seven models: with four it is the median.
    """
    n = len(models)
    cut = min(int(share * n), (n - 1) // 2)
    out = np.empty(len(models[0]), np.float32)
    for part in _blocks(models):
        rows = np.sort(np.ascontiguousarray(_stacked(models, part).T), axis=1)
        out[part] = rows[:, cut : n - cut].mean(axis=1, dtype=np.float64)
    return out


def median(models: Models) -> Vector:
    """Median of each coordinate; weights do not count. Weak below about seven models."""
    return trimmed(models, 0.5)


def norm(vector: Vector) -> float:
    """Euclidean norm, summed in double precision; not finite if a number is not."""
    return float(np.sqrt(square_sum(as_readonly(vector))))


def distance(a: Vector, b: Vector) -> float:
    """Euclidean distance ||a - b||, in double precision."""
    if a.shape != b.shape:
        raise ValueError(f"models of {len(a)} and {len(b)} numbers cannot be compared")
    return float(np.sqrt(square_gap(as_readonly(a), as_readonly(b))))


def distances(own: Vector, others: Models) -> Floats:
    """How far each model is from the own one, [K]."""
    return np.array([distance(own, other) for other in others], float)


def running_radius(recent: Sequence[float]) -> float | None:
    """Radius for `clip`: median of the distances seen lately; None where none was.

    Equal models, of which there are many at the start of a run, say nothing about the usual
    distance and do not count.

    >>> running_radius([0.0, 1.0, 3.0, 100.0])
    3.0
    """
    some = [d for d in recent if 0 < d < np.inf]
    return float(np.median(some)) if some else None


def _blocks(models: Models) -> list[slice]:
    """Stretches of coordinates such that a block of all models stays small."""
    width, size = len(models[0]), max(_NUMBERS // len(models), 256)
    return [slice(lo, min(lo + size, width)) for lo in range(0, width, size)]


def _stacked(models: Models, part: slice) -> NDArray[np.float32]:
    if isinstance(models, np.ndarray):
        return models[:, part]
    return np.stack([model[part] for model in models])
