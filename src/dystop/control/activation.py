"""WAA, the worker activation algorithm (alg:device)."""

from typing import Literal

import numpy as np

from dystop.acceleration import accelerated
from dystop.sparse import Floats, Ints

Drift = Literal["sum", "mean"]


def activate(
    candidates: Ints,
    cost_s: Floats,
    queue: Floats,
    staleness: Ints,
    V: float,
    drift: Drift = "sum",
) -> Ints:
    """Choose the active set: the prefix of the cheapest workers that minimises eq:lya (alg:device).

    Workers join in ascending order of H_t^i, ties to the lower id. With the staleness updated in
    advance (0 inside the set, tau + 1 outside; ADR 0001) the objective of the first K workers is

        constant + V * cost_K - sum over the first K of q_i (tau_i + 1),

    so one sort and one running sum replace the N evaluations: O(N log N). The bound cancels; it
    acts through the queues only. While all queues are empty, exactly one worker is active: the
    cheapest.

    The drift of eq:lya is a sum over N workers, so that V weighs one round against N queues. With
    `drift = "mean"` it is divided by N, which is the same as N times V (ADR 0044).

    Args:
        candidates: workers that may be activated, [C].
        cost_s: expected H_t^i of every worker, [N].
        queue: q_t^i, [N].
        staleness: tau_t^i, [N].
        V: trade-off between staleness and round time.
        drift: whether the drift is summed over the workers, or averaged.

    Returns:
        The active workers, cheapest first.

    >>> cost, queue, tau = np.array([1., 2, 3, 4]), np.array([0., 0, 2, 6]), np.array([0, 1, 3, 5])
    >>> activate(np.arange(4), cost, queue, tau, V=10).tolist()
    [0, 1, 2, 3]
    >>> activate(np.arange(4), cost, queue, tau, V=20).tolist()
    [0]
    >>> activate(np.arange(4), cost, queue, tau, V=5, drift="mean").tolist()
    [0]
    """
    if not len(candidates):
        return candidates
    order = _cheapest_first(candidates, cost_s[candidates])
    relief = np.cumsum(queue[order] * (staleness[order] + 1.0))
    score = summed_weight(V, drift, len(queue)) * cost_s[order] - relief
    return order[: int(np.argmin(score)) + 1]


def summed_weight(V: float, drift: Drift, workers: int) -> float:
    """Return what V is worth beside a summed drift: V itself, or N V where drifts are averaged."""
    return V if drift == "sum" else V * workers


def _cheapest_first(candidates: Ints, cost_s: Floats) -> Ints:
    """Return the candidates by ascending cost, ties to the lower id."""
    order = np.argsort(cost_s)
    ascending = cost_s[order]
    if not (ascending[1:] > ascending[:-1]).all():  # a tie, or NaN: the slower sort decides
        order = np.lexsort((candidates, cost_s))
    return candidates[order]


@accelerated("dystop.kernels.choices:activate_one")
def activate_one(
    candidates: Ints, cost_s: Floats, queue: Floats, staleness: Ints, V: float
) -> Ints:
    """Choose the single worker that minimises eq:lya, ties to the lower id.

    >>> cost, queue, tau = np.array([1., 2, 3, 4]), np.array([0., 0, 2, 6]), np.array([0, 1, 3, 5])
    >>> activate_one(np.arange(4), cost, queue, tau, V=10).tolist()
    [3]
    """
    if not len(candidates):
        return candidates
    ordered = np.sort(candidates)
    score = V * cost_s[ordered] - queue[ordered] * (staleness[ordered] + 1.0)
    return ordered[[int(np.argmin(score))]]
