"""Theorem 2 (thm:dpp): what minimising drift plus penalty round by round can cost.

The gap of the theorem and the pieces of its proof, each one function, so that the inequalities can
be checked on the queues of a real run. Pure functions on arrays.
"""

import math

import numpy as np

from dystop.control.staleness import lyapunov
from dystop.errors import ConfigError
from dystop.sparse import Floats, Ints


def drift(before: Floats, after: Floats) -> float:
    """L(Theta_{t+1}) - L(Theta_t) (eq:drift1round)."""
    return lyapunov(after) - lyapunov(before)


def gamma(staleness: Ints | Floats, bound: float) -> float:
    """Gamma of one round, 1/2 sum_i (tau_i^2 + tau_bound^2) (eq3)."""
    tau = np.asarray(staleness, float)
    return 0.5 * float(np.square(tau).sum() + len(tau) * bound**2)


def gamma_literal(workers: int, bound: float) -> float:
    """The paper's limit of Gamma, N tau_bound^2; it assumes tau <= tau_bound, which is not so."""
    return workers * bound**2


def drift_bound(queue: Floats, staleness: Ints | Floats, bound: float) -> float:
    """Gamma + sum_i q_i (tau_i - tau_bound): the drift is never above it (eq3)."""
    tau = np.asarray(staleness, float)
    return gamma(tau, bound) + float((queue * (tau - bound)).sum())


def gap(rounds: int, largest_gamma: float, trade_off: float) -> float:
    """Theorem 2's gap T Gamma / V: the total duration exceeds the optimum by no more, it says.

    With V = 0 nobody looks at durations, and there is no limit.
    """
    if not trade_off >= 0:
        raise ConfigError(f"V = {trade_off:g}: the gap of Theorem 2 needs V >= 0")
    return rounds * largest_gamma / trade_off if trade_off > 0 else math.inf


def queue_pressure(queues: Floats, staleness: Ints | Floats, bound: float) -> float:
    """Sum over rounds of sum_i q_i (tau_i - tau_bound).

    The proof takes it to be negative because the mean staleness stays within its bound. Queues are
    long exactly when staleness is large, so it need not be: `dystop bound` prints it.

    Args:
        queues: q_t^i, [T, N].
        staleness: tau_t^i, [T, N].
        bound: tau_bound.
    """
    return float((queues * (np.asarray(staleness, float) - bound)).sum())
