"""Workers that attack: who they are, and what they send in place of their models.

Attackers train and mix like everybody else, but everybody who asks for their model gets another
vector, or they train on wrong labels. The functions work on NumPy arrays and on torch tensors.

An attack may use what others know. In the simulator the attackers know the models of all honest
workers, which is the strongest case. In the testbed an attacker knows its own model and the models
that it has pulled.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Lt

from dystop.errors import ConfigError
from dystop.params import param
from dystop.rng import stream
from dystop.sparse import Floats, Ints, ints

Attack = Literal["none", "flip", "noise", "replay", "alie", "ipm", "ipm-near", "label-flip"]

STRENGTHS = {"noise": 3.0, "alie": 1.5, "ipm": 0.5, "ipm-near": 1.0}
"""The strength of an attack where the configuration does not say it."""


@dataclass(frozen=True)
class Adversary:
    """Workers that attack the others."""

    kind: Attack = param(
        "none",
        "flip: the own model with the opposite sign; noise: the own model plus noise; replay: the "
        "initial model; alie: mean minus deviations (Baruch 2019); ipm: minus the mean (Xie 2020); "
        "ipm-near: the mean, moved back by a usual distance; label-flip: wrong labels",
    )
    share: Annotated[float, Ge(0), Lt(1)] = param(
        0.2, "fraction of the workers that attack, drawn from the seed; see also workers"
    )
    workers: tuple[Annotated[int, Ge(0)], ...] = param(
        (), "numbers of the workers that attack; empty: drawn by share"
    )
    strength: Annotated[float, Ge(0)] = param(
        0.0,
        "noise: norms; alie: deviations; ipm: means; ipm-near: usual distances; 0: the usual one",
    )

    @property
    def sends_others(self) -> bool:
        """Whether attackers send other vectors than their models."""
        return self.kind not in ("none", "label-flip")


def attackers(adversary: Adversary, workers: int, seed: int) -> Ints:
    """Return the workers that attack, ascending.

    >>> attackers(Adversary("flip", workers=(7, 2)), 10, seed=0).tolist()
    [2, 7]
    >>> len(attackers(Adversary("flip", share=0.2), 15, seed=0))
    3
    """
    if adversary.kind == "none":
        return ints([])
    if not adversary.workers:
        count = round(adversary.share * workers)
        drawn = stream(seed, "adversary").permutation(workers)[:count]
        return ints(np.sort(drawn))
    chosen = np.unique(adversary.workers)
    if chosen[-1] >= workers or len(chosen) == workers:
        raise ConfigError(
            f"adversary.workers = {list(adversary.workers)}: expected numbers from 0 to "
            f"{workers - 1}, and at least one worker that is left out"
        )
    return ints(chosen)


def flipped_labels(labels: Ints, classes: int) -> Ints:
    """Return the labels that a label flip trains on: class c becomes classes - 1 - c."""
    return classes - 1 - labels


@dataclass(frozen=True)
class Knowledge:
    """What an attacker knows when somebody asks for its model. NumPy arrays or torch tensors."""

    own: Any  # its model, [W]
    first: Any  # the initial model of the run, [W]
    others: Any  # models that it takes for honest, [H, W]
    noise: Any = None  # standard normal numbers, [W]; only "noise" needs them


def sent_vector(adversary: Adversary, known: Knowledge) -> Any:
    """Return what an attacker sends in place of its model, [W]."""
    strength = adversary.strength or STRENGTHS.get(adversary.kind, 0.0)
    match adversary.kind:
        case "flip":
            return -known.own
        case "noise":
            return known.own + strength * _norm(known.own) / _norm(known.noise) * known.noise
        case "replay":
            return known.first
        case "alie":
            mean = known.others.mean(0)
            return mean - strength * _mean_square(known.others - mean) ** 0.5
        case "ipm":
            return -strength * known.others.mean(0)
        case "ipm-near":
            mean = known.others.mean(0)
            radius = math.sqrt(float(((known.others - mean) ** 2).sum(1).mean()))
            return mean - strength * radius / (_norm(mean) or 1.0) * mean
        case _:
            return known.own


def noise_of(seed: int, node: int, version: int, width: int) -> Floats:
    """Return the standard normal numbers that an attacker adds to one of its models, [W]."""
    return stream(seed, "adversary/noise", node, version).standard_normal(width)


def _norm(vector: Any) -> float:
    return math.sqrt(float((vector**2).sum()))


def _mean_square(rows: Any) -> Any:
    return (rows**2).mean(0)
