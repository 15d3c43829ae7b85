"""Staleness, virtual queues and the drift-plus-penalty objective (section "Lyapunov")."""

import numpy as np

from dystop.sparse import Bools, Floats, Ints


def next_staleness(staleness: Ints, active: Bools | Ints) -> Ints:
    """Return the rounds since each worker last started a training (eq:staleness).

    The active workers are given as a mask, or by their ids.

    >>> next_staleness(np.array([0, 3]), np.array([False, True])).tolist()
    [1, 0]
    """
    after: Ints = staleness + 1
    after[active] = 0
    return after


def next_queue(queue: Floats, staleness: Ints, bound: float, present: Bools) -> Floats:
    """Return the virtual queues, which grow while staleness exceeds its bound (eq:queue).

    `staleness` is the one before the reset of this round. The queue of an absent worker does not
    change: no mechanism could have activated that worker (ADR 0001).

    >>> next_queue(np.array([0.0, 4.0]), np.array([5, 0]), 2, np.array([True, True])).tolist()
    [3.0, 2.0]
    """
    return np.where(present, np.maximum(queue + staleness - bound, 0.0), queue)


def lyapunov(queue: Floats) -> float:
    """Return half the squared norm of the queues (eq:lf)."""
    return float(0.5 * (queue @ queue))


def drift_plus_penalty(
    queue: Floats, staleness: Ints, bound: float, V: float, duration_s: float
) -> float:
    """Return the objective of problem P2 (eq:lya)."""
    return float(queue @ (staleness - bound) + V * duration_s)
