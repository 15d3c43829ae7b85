"""Theorem 2 (thm:dpp): the cost of minimising drift plus penalty in each round separately.

Each term of the theorem and of its proof is one function, so that the queues of a run can check the
inequalities. All functions are pure.
"""

import math

import numpy as np

from dystop.control.staleness import lyapunov
from dystop.errors import ConfigError
from dystop.sparse import Floats, Ints


def drift(before: Floats, after: Floats) -> float:
    """Return the drift of one round, L(Theta_{t+1}) - L(Theta_t) (eq:drift1round)."""
    return lyapunov(after) - lyapunov(before)


def gamma(staleness: Ints | Floats, bound: float) -> float:
    """Return Gamma of one round, 1/2 sum_i (tau_i^2 + tau_bound^2) (eq3)."""
    tau = np.asarray(staleness, float)
    return 0.5 * float(np.square(tau).sum() + len(tau) * bound**2)


def gamma_literal(workers: int, bound: float) -> float:
    """Return the paper's upper bound of Gamma, N tau_bound^2.

    It assumes tau_i <= tau_bound in every round, which does not hold.
    """
    return workers * bound**2


def drift_bound(queue: Floats, staleness: Ints | Floats, bound: float) -> float:
    """Return the upper bound of the drift, Gamma + sum_i q_i (tau_i - tau_bound) (eq3)."""
    tau = np.asarray(staleness, float)
    return gamma(tau, bound) + float((queue * (tau - bound)).sum())


def gap(rounds: int, largest_gamma: float, trade_off: float) -> float:
    """Return T Gamma / V, by which the total duration exceeds the optimum at most (thm:dpp).

    It is infinite for V = 0, because the objective then ignores durations.
    """
    if not trade_off >= 0:
        raise ConfigError(f"V = {trade_off:g}: the gap of Theorem 2 needs V >= 0")
    return rounds * largest_gamma / trade_off if trade_off > 0 else math.inf


def queue_pressure(queues: Floats, staleness: Ints | Floats, bound: float) -> float:
    """Return the sum of q_i (tau_i - tau_bound) over rounds and workers.

    The proof assumes that it is negative, because the mean staleness stays within its bound. It can
    be positive, because queues are long when staleness is large. `dystop bound` prints it.

    Args:
        queues: q_t^i, [T, N].
        staleness: tau_t^i, [T, N].
        bound: tau_bound.
    """
    return float((queues * (np.asarray(staleness, float) - bound)).sum())
