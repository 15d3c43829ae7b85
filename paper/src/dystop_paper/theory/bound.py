"""Theorem 1 (thm:convergence): a bound on F(w_T) - F* of the global model after T rounds.

The module evaluates three versions of the bound on the history of a run:

`recursion`  Lemma 1 (lem:basegap), applied to every local training of the run, model by model. It
             assumes nothing about staleness and includes neighbours of neighbours. This bound is
             valid.
`theorem`    the closed form of the theorem, with two errors of its statement corrected
             (paper/docs/theory.md): the diagonal of W_t is rho - 1 for active workers and 0 for the
             others, and delta contains xi squared.
`literal`    the theorem as printed: W_t lacks -E, so that the noise of an inactive worker doubles
             in every round.

All three bound the expectation over the mini-batches, for one step per activation. With several
steps per epoch, a later step uses the samples that the earlier steps left, so that its gradient is
biased. All functions are pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dystop.errors import ConfigError
from dystop.plan import Mix
from dystop.sparse import Floats, Ints


@dataclass(frozen=True)
class Constants:
    """Constants of a strongly convex problem and of its partition over the workers."""

    mu: float  # strong convexity of every F_i (ass:strongconvexity)
    smoothness: float  # L of the loss of every sample (ass:smoothness)
    xi: Floats  # [N], upper bound of ||grad F - grad F_i|| (def:gradientdivergence)
    g_star: Floats  # [N], E ||grad F_i(w_i*; batch)||^2 (def:localgradient)


def rho(mu: float, eta: float) -> float:
    """Return the contraction factor of one local step, 1 - mu eta (lem:basegap)."""
    return 1.0 - mu * eta


def check_step(constants: Constants, eta: float) -> None:
    """Raise ConfigError unless 0 < eta < mu / (2 L^2), the condition of Lemma 1."""
    limit = constants.mu / (2.0 * constants.smoothness**2)
    if not 0.0 < eta < limit:
        raise ConfigError(
            f"training.learning_rate = {eta:g}: the bound needs less than mu / (2 L^2) = "
            f"{limit:.4g} (mu = {constants.mu:g}, L = {constants.smoothness:.4g}); "
            f"use training.learning_rate={0.9 * limit:.3g}"
        )


def delta(constants: Constants, eta: float) -> Floats:
    """Return the noise of one local step, eta/2 xi_i^2 + L eta^2 g_i*, [N].

    The proof of lem:basegap derives this form. The statement of the lemma lacks the square of xi_i
    (see `delta_literal`).
    """
    noise: Floats = eta / 2.0 * constants.xi**2 + constants.smoothness * eta**2 * constants.g_star
    return noise


def delta_literal(constants: Constants, eta: float) -> Floats:
    """Return the noise of one step as lem:basegap states it, eta/2 xi_i + L eta^2 g_i*, [N]."""
    noise: Floats = eta / 2.0 * constants.xi + constants.smoothness * eta**2 * constants.g_star
    return noise


def noise_floor(constants: Constants, eta: float) -> Floats:
    """Return the limit of the accumulated noise, delta_i / (1 - rho), [N].

    After many rounds `recursion` lies between the smallest and the largest of these limits. If they
    exceed F(w_0) - F*, the bound is vacuous. The function computes the equal expression
    (xi_i^2 / 2 + L eta g_i*) / mu, because 1 - rho loses its digits for a small mu eta.
    """
    noise = constants.xi**2 / 2.0 + constants.smoothness * eta * constants.g_star
    floor: Floats = noise / constants.mu
    return floor


@dataclass(frozen=True)
class History:
    """The mixing of a run: in each round, one row for every active worker."""

    share: Floats  # alpha_i = D_i / D, [N]
    rounds: Sequence[Mix]
    warm_start: bool = True  # every worker trained once before the first round

    @property
    def workers(self) -> int:
        """Number of workers N."""
        return len(self.share)

    @property
    def activations(self) -> Ints:
        """Number of activations of each worker up to each round, psi_i T, [T + 1, N]."""
        counts = np.zeros((len(self.rounds) + 1, self.workers), np.int64)
        for t, rows in enumerate(self.rounds, start=1):
            counts[t] = counts[t - 1]
            counts[t, rows.receiver] += 1
        return counts

    @property
    def largest_staleness(self) -> Ints:
        """Largest staleness up to each round, tau_max (eq:staleness), [T + 1]."""
        tau, largest = np.zeros(self.workers, np.int64), np.zeros(len(self.rounds) + 1, np.int64)
        for t, rows in enumerate(self.rounds, start=1):
            largest[t] = max(largest[t - 1], tau.max(initial=0))
            tau += 1
            tau[rows.receiver] = 0
        return largest


def recursion(history: History, contraction: float, noise: Floats, start: float) -> Floats:
    """Return the bound on F(w_t) - F* that follows from Lemma 1, round by round, [T + 1].

    Every activation sets B_i <- rho sum_j sigma_ij B_j + delta_i, where j runs over the models that
    the worker mixed. By convexity, sum_i alpha_i B_i bounds the global model.

    Args:
        history: the mixing of the run.
        contraction: rho.
        noise: delta_i, [N].
        start: F(w_0) - F*.
    """
    each = np.full(history.workers, start)
    if history.warm_start:
        each = contraction * each + noise
    out = [float(history.share @ each)]
    for rows in history.rounds:
        each = each.copy()
        each[rows.receiver] = contraction * row_means(rows, each) + noise[rows.receiver]
        out.append(float(history.share @ each))
    return np.array(out)


def row_means(rows: Mix, values: Floats) -> Floats:
    """Return the weighted mean of the workers' values over each row of a mix, [R]."""
    terms = rows.weight * values[rows.source]
    return np.bincount(rows.row_of, weights=terms, minlength=len(rows.receiver)).astype(float)


def transient(
    contraction: float, activations: Floats | Ints, tau_max: float | Ints, share: Floats
) -> Floats:
    """Return the factor on F(w_0) - F* in thm:convergence, [T + 1].

    It is sum_i alpha_i rho^(psi_i T / (1 + tau_max)). Corollaries 1 and 2 (cor:tau, cor:psi) state
    that it is monotone in `tau_max` and `activations`.
    """
    age = 1.0 + np.asarray(tau_max, float)
    power = np.asarray(activations, float) / age[..., None]
    left: Floats = (share * contraction**power).sum(axis=-1)
    return left


def accumulated_noise(history: History, contraction: float, noise: Floats) -> Floats:
    """Return the sums of Delta_t (eq:decasydelta) with W_t = X + sum Y - E of Lemma 2, [T + 1].

    Corollary 3 (cor:noniid) states that they rise with every xi_i.
    """
    total = np.zeros(history.workers)
    out = [0.0]
    for rows in history.rounds:
        total = total.copy()
        total[rows.receiver] = contraction * total[rows.receiver] + row_means(rows, noise)
        out.append(float(history.share @ total))
    return np.array(out)


def literal_noise(history: History, contraction: float, noise: Floats) -> Floats:
    """Return the sums of Delta_t (eq:decasydelta) with W_t of Theorem 1, [T + 1].

    The theorem prints W_t with rho for active workers and 1 for the others.
    """
    total = np.zeros(history.workers)
    out = [0.0]
    for rows in history.rounds:
        step = total.copy()  # Delta_t = W_t (sum so far) + Z_t
        step[rows.receiver] = contraction * total[rows.receiver] + row_means(rows, noise)
        with np.errstate(over="ignore"):
            total = total + step
        out.append(float(history.share @ total))
    return np.array(out)


def theorem(history: History, contraction: float, noise: Floats, start: float) -> Floats:
    """Return Bound_T of thm:convergence for every T, with its statement corrected, [T + 1]."""
    left = transient(contraction, history.activations, history.largest_staleness, history.share)
    return left * start + accumulated_noise(history, contraction, noise)


def literal(history: History, contraction: float, noise: Floats, start: float) -> Floats:
    """Return Bound_T of thm:convergence for every T, as printed, [T + 1]."""
    left = transient(contraction, history.activations, history.largest_staleness, history.share)
    return left * start + literal_noise(history, contraction, noise)
