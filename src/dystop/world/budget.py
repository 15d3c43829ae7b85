"""How many models each node may send and receive in a round."""

import math

import numpy as np

from dystop.rng import normal
from dystop.sparse import Floats
from dystop.world.params import Budget


def base_models(budget: Budget, workers: int) -> float:
    """Mean budget of a worker: 2 ceil(log2 N) models unless told otherwise.

    >>> base_models(Budget(), 100)
    14.0
    """
    if not budget.enabled:
        return math.inf
    if budget.models is not None:
        return budget.models
    return 2.0 * max(1, math.ceil(math.log2(workers)))


def budget_of_round(budget: Budget, workers: int, server: bool, seed: int, t: int) -> Floats:
    """Models per node in round t; a server has no limit, [nodes]."""
    out = np.full(workers + int(server), np.inf)
    if budget.enabled:
        swing = 1.0 + budget.variation * normal(seed, "budget", t, np.arange(workers))
        out[:workers] = np.maximum(0.0, np.floor(base_models(budget, workers) * swing))
    return out
