"""Robust aggregation: mix models if some of them may be corrupt.

Models are flat float32 vectors. `own` is the model of the receiver, `others` are the K models that
arrived, and `weights` [K] are their weights. The weight of the own model is one minus their sum.

With the usual three or four neighbours only `clip` helps. `trimmed` and `median` need about seven
models before they can tell a corrupt model from a different one. `nearest` fails against an
attacker that stays close to the own model.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dystop.acceleration import accelerated
from dystop.control.aggregation import mix
from dystop.sparse import Floats

Vector = NDArray[np.float32]
Models = Sequence[Vector] | NDArray[np.float32]  # a list of vectors [P], or [K, P]

_NUMBERS = 1 << 18  # numbers of all models in one block: 1 MB


def blend(weights: Floats, models: Models) -> Vector:
    """Return the weighted sum of models in the given order (eq:aggregation).

    The sum runs block by block, so that the models need not be contiguous in memory.

    Args:
        weights: [K].
        models: [K, P].
    """
    factors = np.asarray(weights, np.float32)[None, :]
    out = np.empty(len(models[0]), np.float32)
    for part in _blocks(models):
        out[part] = mix(factors, _stacked(models, part))[0]
    return out


def mean(own: Vector, others: Models, weights: Floats) -> Vector:
    """Return the weighted mean of the paper; it is not robust."""
    return blend(np.append(1.0 - np.sum(weights), weights), [own, *others])


def clip(own: Vector, others: Models, weights: Floats, radius: float) -> Vector:
    """Return own + sum_j w_j min(1, radius / ||x_j - own||) (x_j - own): self-centred clipping.

    A neighbour moves the own model by at most its weight times the radius (ClippedGossip; He,
    Karimireddy and Jaggi 2022).
    """
    factor = clip_factors(distances(own, others), radius)
    near = np.flatnonzero(factor).tolist()  # leave out models at infinite distance
    return mean(own, [others[k] for k in near], (np.asarray(weights, float) * factor)[near])


def clip_factors(distance: Floats, radius: float) -> Floats:
    """Return the factor that clipping puts on the difference to each model, in [0, 1].

    >>> clip_factors(np.array([0.0, 1.0, 4.0, np.inf, np.nan]), 2.0).tolist()
    [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    factor = np.where(distance <= radius, 1.0, 0.0)
    far = np.isfinite(distance) & (distance > radius)
    factor[far] = radius / distance[far]
    return factor


def nearest(own: Vector, others: Models, weights: Floats, k: int) -> Vector:
    """Return the weighted mean of the own model and the k others nearest to it."""
    weights = np.asarray(weights, float)
    order = np.argsort(distances(own, others), kind="stable")
    chosen = sorted(order[:k].tolist())
    mine = 1.0 - weights.sum()
    total = mine + weights[chosen].sum()
    if total == 0:
        return own
    return mean(own, [others[j] for j in chosen], weights[chosen] / total)


def trimmed(models: Models, share: float) -> Vector:
    """Return the mean of each coordinate without its smallest and largest values.

    The own model is one of the K models. The function cuts floor(share K) values at each end, but
    leaves at least one. It ignores weights. It is weak below about seven models: with four models
    it is the median.
    """
    n = len(models)
    cut = min(int(share * n), (n - 1) // 2)
    out = np.empty(len(models[0]), np.float32)
    for part in _blocks(models):
        rows = np.sort(np.ascontiguousarray(_stacked(models, part).T), axis=1)
        out[part] = rows[:, cut : n - cut].mean(axis=1, dtype=np.float64)
    return out


def median(models: Models) -> Vector:
    """Return the median of each coordinate without weights; weak below about seven models."""
    return trimmed(models, 0.5)


def norm(vector: Vector) -> float:
    """Return the Euclidean norm in double precision; not finite where an entry is not."""
    return math.sqrt(square_sum(vector))


def distance(a: Vector, b: Vector) -> float:
    """Return the Euclidean distance ||a - b|| in double precision."""
    if a.shape != b.shape:
        raise ValueError(f"cannot compare a model of {len(a)} numbers with one of {len(b)}")
    return math.sqrt(square_gap(a, b))


@accelerated("dystop.kernels.mixing_rows:square_sum")
def square_sum(vector: Vector) -> float:
    """Return the sum of squares in double precision, which cannot overflow.

    >>> square_sum(np.array([3, 4], np.float32))
    25.0
    """
    wide = vector.astype(np.float64)
    return float(wide @ wide)


@accelerated("dystop.kernels.mixing_rows:square_gap")
def square_gap(a: Vector, b: Vector) -> float:
    """Return the sum of squared differences of two vectors of equal length, in double precision.

    >>> square_gap(np.array([3, 4], np.float32), np.array([0, 5], np.float32))
    10.0
    """
    gap = np.subtract(a, b, dtype=np.float64)
    return float(gap @ gap)


def distances(own: Vector, others: Models) -> Floats:
    """Return the distance of each model from the own one, [K]."""
    return np.array([distance(own, other) for other in others], float)


def running_radius(recent: Sequence[float]) -> float | None:
    """Return a radius for `clip`: the median of recent distances, or None where there are none.

    Distances of zero do not count: at the start of a run many models are equal.

    >>> running_radius([0.0, 1.0, 3.0, 100.0])
    3.0
    """
    some = [d for d in recent if 0 < d < np.inf]
    return float(np.median(some)) if some else None


def _blocks(models: Models) -> list[slice]:
    """Return slices of coordinates such that a block of all models stays small."""
    width, size = len(models[0]), max(_NUMBERS // len(models), 256)
    return [slice(lo, min(lo + size, width)) for lo in range(0, width, size)]


def _stacked(models: Models, part: slice) -> NDArray[np.float32]:
    """Return a block of coordinates of all models, [K, width of the block]."""
    if isinstance(models, np.ndarray):
        return models[:, part]
    return np.stack([model[part] for model in models])
