"""Workers that attack: who they are, and what they send in place of their models.

Attackers train and mix like everybody else, but everybody who asks for their model gets another
vector, or they train on wrong labels. The functions work on NumPy arrays and on torch tensors.

An attack may use what others know. In the simulator the attackers know the models of all honest
workers, which is the strongest case. In the testbed an attacker knows its own model and the models
that it has pulled.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Lt

from dystop.errors import ConfigError
from dystop.params import param
from dystop.registry import OR_NONE, NameIn, Registry, chosen, is_none, options_of
from dystop.rng import stream
from dystop.sparse import Floats, Ints, ints


@dataclass(frozen=True)
class Knowledge:
    """What an attacker knows when somebody asks for its model. NumPy arrays or torch tensors."""

    own: Any  # its model, [W]
    first: Any  # the initial model of the run, [W]
    others: Any  # models that it takes for honest, [H, W]
    noise: Callable[[], Any]  # draws standard normal numbers, [W]


class Attack(ABC):
    """What attackers do. Frozen dataclasses inherit from it; their fields are parameters."""

    name: ClassVar[str]
    summary: ClassVar[str]
    flips_labels: ClassVar[bool] = False  # whether they train on wrong labels and send their models

    @abstractmethod
    def sent(self, known: Knowledge) -> Any:
        """Return what an attacker sends in place of its model, [W]."""


@dataclass(frozen=True)
class Flip(Attack):
    """The own model with the opposite sign."""

    name: ClassVar[str] = "flip"
    summary: ClassVar[str] = "the own model with the opposite sign"

    def sent(self, known: Knowledge) -> Any:
        """Return minus the own model."""
        return -known.own


@dataclass(frozen=True)
class Noise(Attack):
    """The own model plus noise."""

    name: ClassVar[str] = "noise"
    summary: ClassVar[str] = "the own model plus noise"

    strength: Annotated[float, Ge(0)] = param(3.0, "norm of the noise, in norms of the model")

    def sent(self, known: Knowledge) -> Any:
        """Return the own model plus noise of some times its norm."""
        noise = known.noise()
        return known.own + self.strength * _norm(known.own) / _norm(noise) * noise


@dataclass(frozen=True)
class Replay(Attack):
    """The initial model of the run."""

    name: ClassVar[str] = "replay"
    summary: ClassVar[str] = "the initial model"

    def sent(self, known: Knowledge) -> Any:
        """Return the initial model."""
        return known.first


@dataclass(frozen=True)
class ALittleIsEnough(Attack):
    """The mean of honest models minus deviations (Baruch 2019)."""

    name: ClassVar[str] = "alie"
    summary: ClassVar[str] = "mean minus deviations (Baruch 2019)"

    strength: Annotated[float, Ge(0)] = param(1.5, "deviations that are taken from the mean")

    def sent(self, known: Knowledge) -> Any:
        """Return the mean minus some deviations of each coordinate."""
        mean = known.others.mean(0)
        return mean - self.strength * ((known.others - mean) ** 2).mean(0) ** 0.5


@dataclass(frozen=True)
class InnerProduct(Attack):
    """Minus the mean of honest models (Xie 2020)."""

    name: ClassVar[str] = "ipm"
    summary: ClassVar[str] = "minus the mean (Xie 2020)"

    strength: Annotated[float, Ge(0)] = param(0.5, "factor of the mean")

    def sent(self, known: Knowledge) -> Any:
        """Return minus some times the mean."""
        return -self.strength * known.others.mean(0)


@dataclass(frozen=True)
class InnerProductNear(Attack):
    """The mean of honest models, moved back by a usual distance."""

    name: ClassVar[str] = "ipm-near"
    summary: ClassVar[str] = "the mean, moved back by a usual distance"

    strength: Annotated[float, Ge(0)] = param(1.0, "usual distances that the mean is moved")

    def sent(self, known: Knowledge) -> Any:
        """Return the mean, moved towards zero."""
        mean = known.others.mean(0)
        radius = math.sqrt(float(((known.others - mean) ** 2).sum(1).mean()))
        return mean - self.strength * radius / (_norm(mean) or 1.0) * mean


@dataclass(frozen=True)
class LabelFlip(Attack):
    """Training on wrong labels: class c becomes the last class minus c."""

    name: ClassVar[str] = "label-flip"
    summary: ClassVar[str] = "wrong labels"
    flips_labels: ClassVar[bool] = True

    def sent(self, known: Knowledge) -> Any:
        """Return the own model."""
        return known.own


ATTACKS: Registry[Attack] = Registry(
    "attack",
    Attack,
    "dystop.attacks",
    (Flip, Noise, Replay, ALittleIsEnough, InnerProduct, InnerProductNear, LabelFlip),
)


@dataclass(frozen=True)
class Adversary:
    """Workers that attack the others."""

    kind: Annotated[str, NameIn(ATTACKS, OR_NONE, is_none)] = param(
        "none", "attack; 'dystop list attacks' shows them; none: everybody is honest"
    )
    share: Annotated[float, Ge(0), Lt(1)] = param(
        0.2,
        "fraction of the workers that attack, drawn from the seed; see also workers",
        under={"kind": None},
    )
    workers: tuple[Annotated[int, Ge(0)], ...] = param(
        (), "numbers of the workers that attack; empty: drawn by share", under={"kind": None}
    )
    options: Any = options_of("kind", "parameters of the attack")


@dataclass(frozen=True)
class Attackers:
    """The workers of a run that attack, and what they do."""

    attack: Attack
    nodes: Ints  # ascending
    seed: int

    def honest(self, workers: int) -> Ints:
        """Return those of the first workers that do not attack, ascending."""
        return np.setdiff1d(np.arange(workers), self.nodes)

    def noise(self, node: int, version: int, width: int) -> Floats:
        """Return the noise that an attacker adds to one of its models, [W]."""
        return stream(self.seed, "adversary/noise", node, version).standard_normal(width)


def attackers_of(given: Adversary, workers: int, seed: int) -> Attackers | None:
    """Return the attackers of a configuration; None if there are none.

    >>> attackers_of(Adversary("flip", workers=(7, 2)), 10, seed=0).nodes.tolist()
    [2, 7]
    >>> len(attackers_of(Adversary("flip", share=0.2), 15, seed=0).nodes)
    3
    """
    if is_none(given.kind):
        return None
    nodes = _nodes(given, workers, seed)
    return Attackers(chosen(given, "kind"), nodes, seed) if len(nodes) else None


def _nodes(given: Adversary, workers: int, seed: int) -> Ints:
    if not given.workers:
        count = round(given.share * workers)
        drawn = stream(seed, "adversary").permutation(workers)[:count]
        return ints(np.sort(drawn))
    numbers = np.unique(given.workers)
    if numbers[-1] >= workers or len(numbers) == workers:
        raise ConfigError(
            f"adversary.workers = {list(given.workers)}: expected numbers from 0 to "
            f"{workers - 1}, and at least one worker that is left out"
        )
    return ints(numbers)


def flipped_labels(labels: Ints, classes: int) -> Ints:
    """Return the labels that a label flip trains on: class c becomes classes - 1 - c."""
    return classes - 1 - labels


def _norm(vector: Any) -> float:
    return math.sqrt(float((vector**2).sum()))
