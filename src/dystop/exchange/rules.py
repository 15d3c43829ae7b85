"""Aggregation rules: how a worker combines the models that arrived with its own.

Models are flat float32 vectors. The rules other than the mean are for models of which some may be
corrupt. Simulator and testbed use the same rules. A rule that weighs (`clip`, `agree`, `nearest`)
turns the weights of a row into others: it asks how far the models are from the receiver's own one,
and what their loss on own samples is (`Arrived`). A rule that votes (`trimmed`, `median`) works on
every coordinate and heeds no weights.

With the usual three or four neighbours `clip` and `agree` help; docs/results/robustness.md says
against what. `trimmed` and `median` need about seven models before they can tell a corrupt model
from a different one. `nearest` fails against an attacker that stays close to the own model.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Protocol, Self, TypeVar

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from dystop.acceleration import accelerated
from dystop.control.aggregation import mix
from dystop.params import param
from dystop.registry import NameIn, Registry, chosen, options_of
from dystop.sparse import Floats

Vector = NDArray[np.float32]
Models = Sequence[Vector] | NDArray[np.float32]  # a list of vectors [P], or [K, P]

RECENT = 20  # number of distances and of losses that a worker remembers
LONGEST = 1e6  # a shorter model has no direction to speak of
_NUMBERS = 1 << 18  # numbers of all models in one block: 1 MB


# What a rule knows --------------------------------------------------------------------------------


class Arrived(Protocol):
    """The K models that one receiver mixes with its own, wherever they are stored."""

    def distances(self) -> Floats:
        """Return the distance of each one to the own model, [K]."""
        ...

    def norms(self) -> tuple[float, Floats]:
        """Return the norm of the own model, and those of the others, [K]."""
        ...

    def stretched(self, factor: Floats) -> Self:
        """Return these models, each times its factor [K]."""
        ...

    def losses(self, samples: int) -> Floats | None:
        """Return the loss of each on some of the receiver's samples, [K]; None: it has none."""
        ...


A = TypeVar("A", bound=Arrived)


@dataclass(frozen=True)
class Usual:
    """What is usual for a receiver: running medians; None where nothing is known."""

    radius: float | None = None  # of distances
    loss: float | None = None  # on own samples


Recall = Callable[[Floats, Floats | None], Usual]
"""Remembers the distances and losses of models; returns what is usual."""


@dataclass(frozen=True)
class Memory:
    """What receivers have seen, newest last; NaN: nothing yet. The arrays change in place."""

    distances: Floats  # [receivers, RECENT]
    losses: Floats  # [receivers, RECENT], on own samples

    @classmethod
    def empty(cls, receivers: int) -> "Memory":
        """Return the memory of receivers that have seen nothing."""
        return cls(*(np.full((receivers, RECENT), np.nan) for _ in range(2)))

    def recall(self, receiver: int, distance: Floats, loss: Floats | None = None) -> Usual:
        """Add what a receiver sees now, [K] each; return what is usual for it."""
        return Usual(
            _remembered(self.distances[receiver], distance),
            None if loss is None else _remembered(self.losses[receiver], loss),
        )


def _remembered(recent: Floats, new: Floats) -> float | None:
    recent[:] = np.concatenate([recent, new[np.isfinite(new)]])[-RECENT:]
    return running_median(recent)


@dataclass(frozen=True)
class Vectors:
    """Models as vectors in the memory of one worker; implements `Arrived`."""

    own: Vector
    others: Models
    scale: float = 1.0  # of distances: those of masked models are scaled to full length
    losses_of: Callable[[Models, int], Floats | None] = lambda models, samples: None

    def distances(self) -> Floats:
        """Return how far the others are from the own model, [K]."""
        return np.array([distance(self.own, other) for other in self.others], float) * self.scale

    def norms(self) -> tuple[float, Floats]:
        """Return the norm of the own model, and those of the others."""
        return norm(self.own), np.array([norm(other) for other in self.others])

    def stretched(self, factor: Floats) -> "Vectors":
        """Return these models, each times its factor; no vector changes."""
        each = zip(self.others, factor.tolist(), strict=True)
        return replace(self, others=[x if f == 1 else x * np.float32(f) for x, f in each])

    def losses(self, samples: int) -> Floats | None:
        """Return the losses of the others on own samples."""
        return self.losses_of(self.others, samples)


# The rules ----------------------------------------------------------------------------------------


class Rule(ABC):
    """An aggregation rule."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def memory(self, receivers: int) -> Memory | None:
        """Return an empty memory for receivers, if the rule needs one."""
        return None


@dataclass(frozen=True)
class Mean(Rule):
    """The weighted mean of the paper (eq:aggregation); it is not robust."""

    name: ClassVar[str] = "mean"
    summary: ClassVar[str] = "the paper's weighted mean"


class WeighingRule(Rule):
    """A rule that changes the weights of a row."""

    @abstractmethod
    def weighed(self, weights: Floats, arrived: A, recall: Recall) -> tuple[Floats, A]:
        """Return new weights of the others, [K], and the models that they are for.

        What the weights lack to their old sum goes to the own model.
        """

    def combined(self, weights: Floats, arrived: Vectors, recall: Recall) -> Vector:
        """Return the own model mixed with the others under new weights."""
        new, arrived = self.weighed(np.asarray(weights, float), arrived, recall)
        used = np.flatnonzero(new).tolist()  # a model that is not finite is not read
        some = [arrived.others[k] for k in used]
        return blend(np.append(1.0 - np.sum(new[used]), new[used]), [arrived.own, *some])


@dataclass(frozen=True)
class Clip(WeighingRule):
    """Self-centred clipping: own + sum_j w_j min(1, radius / ||x_j - own||) (x_j - own).

    A neighbour moves the own model by at most its weight times the radius (ClippedGossip; He,
    Karimireddy and Jaggi 2022).
    """

    name: ClassVar[str] = "clip"
    summary: ClassVar[str] = "self-centred clipping (He 2022)"

    clip_radius: Annotated[float, Ge(0)] = param(
        0.0, "radius of clipping; 0: running median of the distances"
    )

    def memory(self, receivers: int) -> Memory:
        """Return a memory of distances."""
        return Memory.empty(receivers)

    def weighed(self, weights: Floats, arrived: A, recall: Recall) -> tuple[Floats, A]:
        """Clip the difference to each model."""
        distance = arrived.distances()
        return weights * self._factors(distance, recall(distance, None)), arrived

    def _factors(self, distance: Floats, usual: Usual) -> Floats:
        radius = self.clip_radius or usual.radius or running_median(distance) or 0.0
        return clip_factors(distance, radius)


@dataclass(frozen=True)
class Agree(Clip):
    """Clipping, and a weight by the loss on own samples, after short models are stretched.

    A mean of models that differ is shorter than they are. An attacker that sends a shortened mean
    looks usual by distance and by loss, and takes from its receivers what they have learned. What
    is left of it after stretching is the direction, which is that of the honest mean.
    """

    name: ClassVar[str] = "agree"
    summary: ClassVar[str] = (
        "clipping by distance and by loss on own samples, after short models are stretched"
    )

    samples: Annotated[int, Ge(1)] = param(
        128, "own training samples on which the models of neighbours are tested"
    )

    def weighed(self, weights: Floats, arrived: A, recall: Recall) -> tuple[Floats, A]:
        """Stretch short models; clip, and weigh by min(1, usual loss / loss)^2."""
        apart = arrived.distances()
        arrived = arrived.stretched(stretch_factors(*arrived.norms()))
        loss = arrived.losses(self.samples)
        usual = recall(apart, loss)
        factor = self._factors(arrived.distances(), usual)
        if loss is not None:
            usual_loss = running_median(loss) if usual.loss is None else usual.loss
            factor = factor * agreement(loss, usual_loss)
        return weights * factor, arrived


@dataclass(frozen=True)
class Nearest(WeighingRule):
    """The weighted mean of the own model and the others nearest to it."""

    name: ClassVar[str] = "nearest"
    summary: ClassVar[str] = "the models nearest to the own one; robust with many neighbours"

    nearest: Annotated[int, Ge(1)] = param(2, "number of models that are kept")

    def weighed(self, weights: Floats, arrived: A, recall: Recall) -> tuple[Floats, A]:
        """Keep the nearest models; scale their weights so that the row sums to one again."""
        kept = np.zeros(len(weights), bool)
        kept[np.argsort(arrived.distances(), kind="stable")[: self.nearest]] = True
        some = np.where(kept, weights, 0.0)
        total = 1.0 - weights.sum() + some.sum()
        return (some / total if total else np.zeros(len(weights))), arrived


class VotingRule(Rule):
    """A rule that combines every coordinate of all models by itself, the own one among them."""

    @abstractmethod
    def voted(self, models: Models) -> Vector:
        """Return the combination of some models."""


@dataclass(frozen=True)
class Trimmed(VotingRule):
    """The mean of each coordinate without its largest and smallest values."""

    name: ClassVar[str] = "trimmed"
    summary: ClassVar[str] = "trimmed mean of each coordinate; robust with many neighbours"

    trim: Annotated[float, Ge(0), Le(0.5)] = param(0.25, "fraction that is cut off at each end")

    def voted(self, models: Models) -> Vector:
        """Cut floor(trim K) values at each end, but leave at least one."""
        return trimmed(models, self.trim)


@dataclass(frozen=True)
class Median(VotingRule):
    """The median of each coordinate."""

    name: ClassVar[str] = "median"
    summary: ClassVar[str] = "median of each coordinate; robust with many neighbours"

    def voted(self, models: Models) -> Vector:
        """Return the median of each coordinate."""
        return trimmed(models, 0.5)


RULES: Registry[Rule] = Registry(
    "aggregation rule", Rule, "dystop.rules", (Mean, Clip, Agree, Trimmed, Median, Nearest)
)


@dataclass(frozen=True)
class Aggregation:
    """How a worker mixes the models of its neighbours with its own."""

    rule: Annotated[str, NameIn(RULES)] = param(
        "mean", "aggregation rule; 'dystop list rules' shows them"
    )
    options: Any = options_of("rule", "parameters of the aggregation rule")


def rule_of(given: Aggregation) -> Rule:
    """Return the rule that a configuration names, with its parameters."""
    rule: Rule = chosen(given, "rule")
    return rule


# Arithmetic ---------------------------------------------------------------------------------------


def clip_factors(distance: Floats, radius: float) -> Floats:
    """Return the factor that clipping puts on the difference to each model, in [0, 1].

    >>> clip_factors(np.array([0.0, 1.0, 4.0, np.inf, np.nan]), 2.0).tolist()
    [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    factor = np.where(distance <= radius, 1.0, 0.0)
    far = np.isfinite(distance) & (distance > radius)
    factor[far] = radius / distance[far]
    return factor


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
