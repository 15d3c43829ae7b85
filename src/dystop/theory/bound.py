"""Theorem 1 (thm:convergence): how far the weighted model can be from the optimum after T rounds.

Three readings of it, all for the history of a real run:

`recursion`  Lemma 1 (lem:basegap) applied to every training that really took place, model by model.
             It needs no property of staleness, follows every neighbour of a neighbour, and holds.
`theorem`    the theorem's closed form with the slips of its statement mended (docs/theory.md):
             the diagonal of W_t is rho - 1 for active workers and 0 for the others, and delta has
             xi squared.
`literal`    the statement as it is printed: W_t without -E, so that the noise of an idle worker
             doubles every round.

All are in expectation over the mini-batches, for one step per activation: the later steps of an
epoch see what the earlier ones left over, so their gradients are not unbiased. Pure functions on
arrays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dystop.errors import ConfigError
from dystop.plan import Mix
from dystop.sparse import Floats, Ints


@dataclass(frozen=True)
class Constants:
    """What the theorem knows of a strongly convex problem and its split over the workers."""

    mu: float  # strong convexity of every F_i (ass:strongconvexity)
    smoothness: float  # L of every loss of a sample (ass:smoothness)
    xi: Floats  # [N], ||grad F - grad F_i|| at most (def:gradientdivergence)
    g_star: Floats  # [N], E ||grad F_i(w_i*; batch)||^2 (def:localgradient)


def rho(mu: float, eta: float) -> float:
    """Contraction of one local step, 1 - mu eta (lem:basegap)."""
    return 1.0 - mu * eta


def check_step(constants: Constants, eta: float) -> None:
    """Refuse a step size for which Lemma 1 says nothing: eta < mu / (2 L^2)."""
    limit = constants.mu / (2.0 * constants.smoothness**2)
    if not 0.0 < eta < limit:
        raise ConfigError(
            f"training.learning_rate = {eta:g}: the bound needs less than mu / (2 L^2) = "
            f"{limit:.4g} (mu = {constants.mu:g}, L = {constants.smoothness:.4g}); "
            f"use training.learning_rate={0.9 * limit:.3g}"
        )


def delta(constants: Constants, eta: float) -> Floats:
    """Noise of one local step, eta/2 xi_i^2 + L eta^2 g_i*, as the proof of lem:basegap derives it.

    The lemma's statement has xi_i without the square.
    """
    noise: Floats = eta / 2.0 * constants.xi**2 + constants.smoothness * eta**2 * constants.g_star
    return noise


def delta_literal(constants: Constants, eta: float) -> Floats:
    """The same as lem:basegap states it: eta/2 xi_i + L eta^2 g_i*."""
    noise: Floats = eta / 2.0 * constants.xi + constants.smoothness * eta**2 * constants.g_star
    return noise


def noise_floor(constants: Constants, eta: float) -> Floats:
    """What noise alone comes to, delta_i / (1 - rho) = (xi_i^2 / 2 + L eta g_i*) / mu, [N].

    In the long run `recursion` lies between the smallest and the largest of these, however many
    rounds there are: where they exceed F(w_0) - F*, it promises nothing. Without 1 - rho, which a
    small mu eta would round away.
    """
    noise = constants.xi**2 / 2.0 + constants.smoothness * eta * constants.g_star
    floor: Floats = noise / constants.mu
    return floor


@dataclass(frozen=True)
class History:
    """What a run did: for each round the rows that were mixed, one for every active worker."""

    share: Floats  # alpha_i = D_i / D, [N]
    rounds: Sequence[Mix]
    warm_start: bool = True  # everybody trained once before the first round

    @property
    def workers(self) -> int:
        """N."""
        return len(self.share)

    @property
    def activations(self) -> Ints:
        """How often each worker was active by each round, psi_i T, [T + 1, N]."""
        counts = np.zeros((len(self.rounds) + 1, self.workers), np.int64)
        for t, rows in enumerate(self.rounds, start=1):
            counts[t] = counts[t - 1]
            counts[t, rows.receiver] += 1
        return counts

    @property
    def largest_staleness(self) -> Ints:
        """tau_max up to each round (eq:staleness), [T + 1]."""
        tau, largest = np.zeros(self.workers, np.int64), np.zeros(len(self.rounds) + 1, np.int64)
        for t, rows in enumerate(self.rounds, start=1):
            largest[t] = max(largest[t - 1], tau.max(initial=0))
            tau += 1
            tau[rows.receiver] = 0
        return largest


def recursion(history: History, contraction: float, noise: Floats, start: float) -> Floats:
    """Lemma 1 followed through the run: F(w_t) - F* is at most this, [T + 1].

    B_i <- rho sum_j sigma_ij B_j + delta_i for every active worker, with the bounds of the models
    that it really mixed; the global model is covered by convexity, sum_i alpha_i B_i.

    Args:
        history: what was mixed.
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
    """Weighted means of a value per worker over the rows of a mix, [R]."""
    terms = rows.weight * values[rows.source]
    return np.bincount(rows.row_of, weights=terms, minlength=len(rows.receiver)).astype(float)


def transient(
    contraction: float, activations: Floats | Ints, tau_max: float | Ints, share: Floats
) -> Floats:
    """What is left of the start: sum_i alpha_i rho^(psi_i T / (1 + tau_max)) (thm:convergence).

    Corollaries 1 and 2 (cor:tau, cor:psi) are its monotonicity in `tau_max` and `activations`.
    """
    age = 1.0 + np.asarray(tau_max, float)
    power = np.asarray(activations, float) / age[..., None]
    left: Floats = (share * contraction**power).sum(axis=-1)
    return left


def accumulated_noise(history: History, contraction: float, noise: Floats) -> Floats:
    """A sum of Delta_t (eq:decasydelta) with the lemma's W_t = X + sum Y - E, [T + 1].

    Corollary 3 (cor:noniid): it rises with every xi_i.
    """
    total = np.zeros(history.workers)
    out = [0.0]
    for rows in history.rounds:
        total = total.copy()
        total[rows.receiver] = contraction * total[rows.receiver] + row_means(rows, noise)
        out.append(float(history.share @ total))
    return np.array(out)


def literal_noise(history: History, contraction: float, noise: Floats) -> Floats:
    """The same with W_t as the theorem prints it: rho for active workers, 1 for the others."""
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
    """Bound_T of thm:convergence for every T, its statement mended, [T + 1]."""
    left = transient(contraction, history.activations, history.largest_staleness, history.share)
    return left * start + accumulated_noise(history, contraction, noise)


def literal(history: History, contraction: float, noise: Floats, start: float) -> Floats:
    """Bound_T of thm:convergence as it is printed, [T + 1]."""
    left = transient(contraction, history.activations, history.largest_staleness, history.share)
    return left * start + literal_noise(history, contraction, noise)
