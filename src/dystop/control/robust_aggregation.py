"""Robust aggregation: mix models if some of them may be corrupt.

Models are flat float32 vectors. `own` is the model of the receiver, `others` are the K models that
arrived, and `weights` [K] are their weights. The weight of the own model is one minus their sum.

Simulator and testbed use the same rules. `clip`, `agree` and `nearest` only change the weights of a
row (`robust_weights`), from the distance of each model to the own one and from its loss on own
samples; before that, `agree` stretches the models that are shorter than the own one
(`stretch_factors`). `trimmed` and `median` work on every coordinate (`trimmed`).

With the usual three or four neighbours `clip` and `agree` help; docs/results/robustness.md says
against what. `trimmed` and `median` need about seven models before they can tell a corrupt model
from a different one. `nearest` fails against an attacker that stays close to the own model.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from dystop.acceleration import accelerated
from dystop.control.aggregation import mix
from dystop.params import param
from dystop.sparse import Floats

Rule = Literal["mean", "clip", "agree", "trimmed", "median", "nearest"]
Vector = NDArray[np.float32]
Models = Sequence[Vector] | NDArray[np.float32]  # a list of vectors [P], or [K, P]

RECENT = 20  # number of distances and of losses that a worker remembers
COORDINATE_WISE = ("trimmed", "median")  # these rules ignore weights
LONGEST = 1e6  # a shorter model has no direction to speak of
_NUMBERS = 1 << 18  # numbers of all models in one block: 1 MB


@dataclass(frozen=True)
class Aggregation:
    """How a worker mixes the models of its neighbours with its own."""

    rule: Rule = param(
        "mean",
        "mean: the paper's; clip: self-centred clipping; agree: clipping by distance and by loss "
        "on own samples, after short models are stretched; trimmed, median, nearest: robust with "
        "many neighbours",
    )
    clip_radius: Annotated[float, Ge(0)] = param(
        0.0, "clip, agree: radius; 0: running median of the distances"
    )
    samples: Annotated[int, Ge(1)] = param(
        128, "agree: own training samples on which the models of neighbours are tested"
    )
    trim: Annotated[float, Ge(0), Le(0.5)] = param(
        0.25, "trimmed: fraction that is cut off at each end"
    )
    nearest: Annotated[int, Ge(1)] = param(2, "nearest: number of models that are kept")


@dataclass(frozen=True)
class Seen:
    """What a worker measured of the models that arrived, [K] each."""

    distance: Floats  # to the own model
    loss: Floats | None = None  # on own samples; None: it has none, or the rule needs none


@dataclass(frozen=True)
class Usual:
    """What a worker has learned from earlier models."""

    radius: float | None = None  # running median of distances; None: nothing is known
    loss: float | None = None  # running median of losses on own samples


def robust_weights(
    params: Aggregation, weights: Floats, seen: Seen, usual: Usual | None = None
) -> Floats:
    """Return the new weights of the others under `clip`, `agree` or `nearest`, [K].

    What is missing to one goes to the own model. Where nothing usual is known, the medians of the
    models that arrived take its place.

    >>> clip = Aggregation("clip", clip_radius=2.0)
    >>> robust_weights(clip, np.array([0.25, 0.5]), Seen(np.array([4.0, 1.0]))).tolist()
    [0.125, 0.5]
    >>> seen = Seen(np.array([1.0, 1.0]), loss=np.array([0.5, 2.0]))
    >>> agree = Aggregation("agree", clip_radius=2.0)
    >>> robust_weights(agree, np.array([0.25, 0.5]), seen, Usual(loss=1.0)).tolist()
    [0.25, 0.125]
    """
    weights, usual = np.asarray(weights, float), usual or Usual()
    if params.rule == "nearest":
        return _nearest_weights(weights, seen.distance, params.nearest)
    radius = params.clip_radius or usual.radius or running_median(seen.distance) or 0.0
    factor = clip_factors(seen.distance, radius)
    if params.rule == "agree" and seen.loss is not None:
        usual_loss = running_median(seen.loss) if usual.loss is None else usual.loss
        factor = factor * agreement(seen.loss, usual_loss)
    return weights * factor


def stretch_factors(own_norm: float, norms: Floats) -> Floats:
    """Return by how much each model is stretched to the length of the own one; longer ones stay.

    A mean of models that differ is shorter than they are. An attacker that sends a shortened mean
    looks usual by distance and by loss, and takes from its receivers what they have learned. What
    is left of it after stretching is the direction, which is that of the honest mean.

    >>> stretch_factors(2.0, np.array([1.0, 4.0, 0.0, np.inf])).tolist()
    [2.0, 1.0, 1.0, 1.0]
    """
    factor = np.ones(len(norms))
    short = (norms < own_norm) & (norms * LONGEST > own_norm)
    factor[short] = own_norm / norms[short]
    return factor


def stretched(own: Vector, others: Models) -> list[Vector]:
    """Return the other models; those that are shorter than the own one get its length."""
    factors = stretch_factors(norm(own), np.array([norm(other) for other in others]))
    return [
        other if factor == 1 else other * np.float32(factor)
        for other, factor in zip(others, factors.tolist(), strict=True)
    ]


def agreement(loss: Floats, usual: float | None) -> Floats:
    """Return min(1, usual / loss)^2 for each model: how well it agrees with the own samples.

    A loss that is not a finite number gives zero.

    >>> agreement(np.array([0.5, 2.0, np.inf, np.nan]), 1.0).tolist()
    [1.0, 0.25, 0.0, 0.0]
    """
    finite = np.isfinite(loss)
    ratio = np.where(finite, 1.0, 0.0)
    worse = finite & (loss > (0.0 if usual is None else usual))
    if usual is not None:
        ratio[worse] = usual / loss[worse]
    return ratio**2


def _nearest_weights(weights: Floats, distance: Floats, k: int) -> Floats:
    """Return the weights of the k nearest others, scaled so that the row sums to one again."""
    kept = np.zeros(len(weights), bool)
    kept[np.argsort(distance, kind="stable")[:k]] = True
    chosen = np.where(kept, weights, 0.0)
    total = 1.0 - weights.sum() + chosen.sum()
    return chosen / total if total else np.zeros(len(weights))


def mix_weighted(own: Vector, others: Models, weights: Floats) -> Vector:
    """Return the mean of the own model and those others whose weight is not zero."""
    used = np.flatnonzero(weights).tolist()
    return mean(own, [others[k] for k in used], np.asarray(weights, float)[used])


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
    factor = clip_factors(distances(own, others), radius)  # zero at an infinite distance
    return mix_weighted(own, others, np.asarray(weights, float) * factor)


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
    return mix_weighted(own, others, _nearest_weights(weights, distances(own, others), k))


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


def running_median(recent: Sequence[float] | Floats) -> float | None:
    """Return the median of recent distances or losses, or None where there are none.

    Zeros do not count: at the start of a run many models are equal.

    >>> running_median([0.0, 1.0, 3.0, 100.0])
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
