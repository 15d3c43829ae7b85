"""Capacity of the nodes: seconds per mini-batch, and models per round (the bandwidth budget)."""

import math

import numpy as np

from dystop.errors import ConfigError
from dystop.rng import normal
from dystop.sparse import Floats, Ints
from dystop.world.params import Budget, Compute

JETSONS: tuple[tuple[str, int, float], ...] = (
    ("Jetson Nano", 4, 5.6),
    ("Jetson Orin Nano", 3, 1.5),
    ("Jetson Orin NX", 4, 1.0),
    ("Jetson Orin", 3, 0.42),
    ("Jetson Xavier AGX", 1, 1.0),
)
"""The paper's boards (tab:testbed): name, count, and seconds per mini-batch relative to an Orin NX.

The paper gives no speeds. We choose the factors as the geometric mean of two figures from the
vendor's data sheets: peak float32 rate (cores x clock x 2: 0.24, 1.28, 1.88, 5.3 and 1.41 TFLOP/s)
and memory bandwidth (25.6, 68, 102, 205 and 137 GB/s). Both bound the training of small networks.
"""


def jetson_boards(workers: int) -> Ints:
    """Return which entry of `JETSONS` each worker is, for the paper's boards in order, [N].

    >>> jetson_boards(9).tolist()
    [0, 0, 0, 0, 1, 1, 1, 2, 2]
    """
    boards = np.repeat(np.arange(len(JETSONS)), [count for _, count, _ in JETSONS])
    return np.resize(boards, workers)


def jetson_factors(workers: int) -> Floats:
    """Return seconds per mini-batch relative to an Orin NX, for the paper's boards in order, [N].

    >>> jetson_factors(9).tolist()
    [5.6, 5.6, 5.6, 5.6, 1.5, 1.5, 1.5, 1.0, 1.0]
    """
    return np.array([factor for _, _, factor in JETSONS])[jetson_boards(workers)]


def coefficients(compute: Compute, workers: int, seed: int) -> Floats:
    """Return the factor of each worker on the reference device's seconds (subsec:setup), [N]."""
    if compute.devices == "jetson":
        return jetson_factors(workers)
    drawn = 1.0 + compute.spread * normal(seed, "compute", np.arange(workers))
    return np.asarray(np.clip(drawn, compute.fastest, compute.slowest))


def step_seconds(compute: Compute, workers: int, seed: int) -> Floats:
    """Return the seconds per mini-batch, zeta_i of subsec:setup, [N]."""
    if compute.batch_s == "measure":
        raise ConfigError(
            "world.compute.batch_s = 'measure': the world needs a number of seconds; "
            "time real mini-batches first and set the result here"
        )
    return compute.batch_s * coefficients(compute, workers, seed)


def base_models(budget: Budget, workers: int) -> float:
    """Return the mean budget of a worker in models: 2 ceil(log2 N) unless configured.

    >>> base_models(Budget(), 100)
    14.0
    """
    if not budget.enabled or budget.binds == "nobody":
        return math.inf
    if budget.models is not None:
        return budget.models
    return 2.0 * max(1, math.ceil(math.log2(workers)))


def budget_of_round(budget: Budget, workers: int, seed: int, t: int, nodes: Ints) -> Floats:
    """Return the models that some nodes may send and receive in round t; a server has no limit."""
    if not math.isfinite(mean := base_models(budget, workers)):
        return np.full(len(nodes), np.inf)
    factor = 1.0 + budget.variation * normal(seed, "budget", t, nodes)
    return np.where(nodes < workers, np.maximum(0.0, np.floor(mean * factor)), np.inf)
