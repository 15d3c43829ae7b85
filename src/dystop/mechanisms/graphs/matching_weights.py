"""MATCHA's two optimisations: activation probabilities of the matchings, and the mixing weight.

A set of matchings is an array `partner` [m, n]: the partner of each node in each matching, or the
node itself if it has none. L_k is the Laplacian of matching k; C = I - J is the projection that
removes the mean. All matrices are dense, because the whole spectrum is needed.
"""

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from dystop.errors import ConfigError
from dystop.sparse import Floats, Ints, ints

_LARGEST = 2**26  # m * n * n; half a gigabyte of intermediate numbers
_TOLERANCE = 1e-6  # relative gap between the connectivity reached and its proven bound
_MAX_MISSES = 2  # consecutive centres without progress before rounding is assumed to dominate
_GROWTH = 10.0  # of the weight on the objective from one centre to the next
_BISECTIONS = 45


@dataclass(frozen=True)
class Activation:
    """Activation probabilities, the connectivity they reach, and an upper bound on it."""

    probability: Floats  # [m]
    connectivity: float  # lambda_2 of the expected Laplacian
    bound: float  # upper bound over all feasible probabilities

    @property
    def gap(self) -> float:
        """Relative distance of the connectivity from its bound."""
        return (self.bound - self.connectivity) / self.bound


def partners(n: int, i: Ints, j: Ints, matching: Ints) -> Ints:
    """Return the partner of each node in each matching, [m, n].

    >>> partners(3, ints([0, 1]), ints([1, 2]), ints([0, 1])).tolist()
    [[1, 0, 2], [0, 2, 1]]
    """
    out = np.tile(np.arange(n), (int(matching.max(initial=-1)) + 1, 1))
    out[matching, i], out[matching, j] = j, i
    return ints(out)


def laplacian(partner: Ints, weight: Floats) -> Floats:
    """Return the weighted sum of the Laplacians of the matchings, [n, n]."""
    n = partner.shape[1]
    node = np.arange(n)
    out: Floats = weight.sum() * np.eye(n)
    for row, w in zip(partner, weight, strict=True):
        out[node, row] -= w
    return out


def connectivity(partner: Ints, weight: Floats) -> float:
    """Return lambda_2, the second smallest eigenvalue of the weighted Laplacian."""
    return float(np.linalg.eigvalsh(laplacian(partner, weight))[1])


def best_probabilities(partner: Ints, share: float) -> Activation:
    """Return probabilities p that maximise lambda_2(sum p_k L_k), 0 <= p <= 1, sum p <= share * m.

    The objective is concave and usually not differentiable. It is a semidefinite programme, solved
    by a barrier method. At every centre the inverse slack matrix gives a certificate: for Z >= 0 of
    trace one, orthogonal to the ones, lambda_2 of any feasible p is at most the largest sum
    p_k <L_k, Z>, a fractional knapsack. The method stops when the two agree to a millionth.

    Args:
        partner: matchings of a connected graph, [m, n], n at least 2.
        share: the communication budget CB, above 0; from 1 on, all matchings are always active.
    """
    m, n = partner.shape
    if m * n * n > _LARGEST:
        raise ConfigError(
            f"mechanism 'matcha' optimises {m} matchings of {n} connected workers; allowed is"
            f" matchings * workers^2 up to {_LARGEST}; use base = 'fastest' with a lower degree,"
            " or fewer workers"
        )
    if share >= 1.0 or m == 1:  # lambda_2 grows with every p
        p = np.full(m, float(min(share, 1.0)))
        value = connectivity(partner, p)
        return Activation(p, value, value)
    return _barrier(partner, share * m)


def _barrier(partner: Ints, budget: float) -> Activation:
    """Follow the central path until the certificate closes the gap or rounding dominates."""
    m, _ = partner.shape
    p = np.full(m, 0.5 * budget / m)
    t = 0.5 * connectivity(partner, p)
    best = _certify(partner, budget, p, t)
    pull = _newton(partner, budget, (p, t), 0.0).balance
    misses = 0
    while best.gap > _TOLERANCE and misses < _MAX_MISSES:
        try:
            p, t = _centre(partner, budget, (p, t), pull)
        except np.linalg.LinAlgError:  # the slack matrix is singular in floating point
            break
        found = _certify(partner, budget, p, t)
        misses = 0 if found.gap < best.gap else misses + 1
        best = min(best, found, key=lambda one: one.gap)
        pull *= _GROWTH
    return best


def _certify(partner: Ints, budget: float, p: Floats, t: float) -> Activation:
    """Return the value of p and the bound from Z ~ (L(p) - t I)^-1; t must be below lambda_2."""
    value, vector = np.linalg.eigh(laplacian(partner, p))
    inside = vector[:, 1:]  # without the ones
    weight = 1.0 / np.maximum(value[1:] - t, 1e-300)
    Z = (inside * (weight / weight.sum())) @ inside.T
    gain = np.sort(_inner(partner, Z))[::-1]
    best = np.clip(budget - np.arange(len(gain)), 0.0, 1.0)  # the best matchings come first
    return Activation(p, float(value[1]), float(gain @ best))


def _inner(partner: Ints, X: Floats) -> Floats:
    """Return <L_k, X> of every matching, for a symmetric X, [m]."""
    out: Floats = np.trace(X) - X[np.arange(len(X)), partner].sum(axis=1)
    return out


def _slack(partner: Ints, p: Floats, t: float) -> Floats:
    """Return L(p) - t C, made regular along the ones."""
    n = partner.shape[1]
    out: Floats = laplacian(partner, p) - t * np.eye(n) + (1.0 + t) / n
    return out


def _centre(
    partner: Ints, budget: float, at: tuple[Floats, float], pull: float
) -> tuple[Floats, float]:
    """Minimise -pull * t - log det(slack) - logs of the box and the budget (Newton's method)."""
    p, t = at
    for _ in range(50):
        move = _newton(partner, budget, (p, t), pull)
        if move.decrement < 1e-8:
            break
        step = _line_search(move.ratios, pull * move.dt)
        p, t = p + step * move.dp, t + step * move.dt
    return p, t


@dataclass(frozen=True)
class _Move:
    """One Newton direction."""

    dp: Floats
    dt: float
    decrement: float  # squared; small at a centre
    ratios: Floats  # relative change of each quantity that must stay positive
    balance: float  # the pull at which t does not change


def _newton(partner: Ints, budget: float, at: tuple[Floats, float], pull: float) -> _Move:
    """Return the Newton direction in p and t."""
    p, t = at
    m, n = partner.shape
    root = np.linalg.cholesky(_slack(partner, p, t))
    half = solve_triangular(root, np.eye(n), lower=True)
    X = half.T @ half
    XX, slack = X @ X, budget - p.sum()
    balance = float(np.trace(X) - 1.0)
    slope = np.append(-_inner(partner, X) - 1.0 / p + 1.0 / (1.0 - p) + 1.0 / slack, balance - pull)
    curve = np.empty((m + 1, m + 1))
    curve[:m, :m] = _curvature(partner, X) + np.diag(p**-2 + (1.0 - p) ** -2) + slack**-2
    curve[:m, m] = curve[m, :m] = -_inner(partner, XX)
    curve[m, m] = np.trace(XX) - 1.0
    scale = 1.0 / np.sqrt(np.diag(curve))  # entries differ by many orders of magnitude
    step = -scale * np.linalg.lstsq(curve * np.outer(scale, scale), scale * slope, rcond=1e-15)[0]
    dp, dt = step[:m], float(step[m])
    turn = half @ (laplacian(partner, dp) - dt * (np.eye(n) - 1.0 / n)) @ half.T
    ratios = np.concatenate([np.linalg.eigvalsh(turn), dp / p, dp / (p - 1.0), [-dp.sum() / slack]])
    return _Move(dp, dt, float(-slope @ step), ratios, balance)


def _line_search(ratios: Floats, gain: float) -> float:
    """Return the feasible s that minimises -gain * s - sum log(1 + s * ratio), by bisection."""
    low, high = 0.0, min(1.0 / max(-ratios.min(), 1e-300), 64.0)
    for _ in range(24):
        s = 0.5 * (low + high)
        if (ratios / (1.0 + s * ratios)).sum() + gain > 0:
            low = s
        else:
            high = s
    return low


def _curvature(partner: Ints, X: Floats) -> Floats:
    """Return tr(X L_a X L_b) of every two matchings, [m, m]."""
    m = len(partner)
    product = X[:, None, :] - X[:, partner]  # (X L_k)[u, v] at [u, k, v]
    left = product.transpose(1, 0, 2).reshape(m, -1)
    right = product.transpose(1, 2, 0).reshape(m, -1)
    out: Floats = left @ right.T
    return out


def best_mixing_weight(partner: Ints, probability: Floats) -> tuple[float, float]:
    """Return the a for which I - a L contracts fastest in mean square, and the contraction rho.

    rho(a) = lambda_max(I - 2a Lbar + a^2 (Lbar^2 + 2 Ltil) - J), Lbar = sum p_k L_k and
    Ltil = sum p_k (1 - p_k) L_k, is convex with rho(0) = 1. It is at least 1 again at a = 1: the
    trace of L^2 is the sum of d (d + 1) over the degrees d, never below twice the trace of L. So
    the best a lies between, and the sign of the slope along a top eigenvector halves the interval.

    >>> a, rho = best_mixing_weight(ints([[1, 0]]), np.array([0.3]))
    >>> round(a, 9), round(rho, 9)
    (0.5, 0.7)
    """
    mean, square = _moments(partner, probability)
    low, high = 0.0, 1.0
    for _ in range(_BISECTIONS):
        a = 0.5 * (low + high)
        _, v = _slowest(mean, square, a)
        if v @ (a * square - mean) @ v > 0:
            high = a
        else:
            low = a
    a = 0.5 * (low + high)
    return a, max(_slowest(mean, square, a)[0], 0.0)


def nonnegative_mixing_weight(partner: Ints, probability: Floats) -> tuple[float, float]:
    """Return the best a for which no entry of I - a L is ever negative, and its contraction rho.

    A worker keeps 1 - a d of its own model, where d of its matchings are active. So a is at most
    1 / D, where D is the largest degree of the base graph. rho(a) is convex with rho(0) = 1 and
    falls up to its minimum, so that rho stays below 1 for a smaller a.

    >>> a, rho = nonnegative_mixing_weight(ints([[1, 0, 2], [0, 2, 1]]), np.array([1.0, 1.0]))
    >>> round(a, 9), round(rho, 9)  # a path of three workers: the one in the middle has two links
    (0.5, 0.25)
    """
    best, rho = best_mixing_weight(partner, probability)
    limit = 1.0 / max(int((partner != np.arange(partner.shape[1])).sum(axis=0).max()), 1)
    if best <= limit:
        return best, rho
    return limit, max(_slowest(*_moments(partner, probability), limit)[0], 0.0)


def _moments(partner: Ints, probability: Floats) -> tuple[Floats, Floats]:
    """Return the expectations of the active Laplacian and of its square, [n, n] each."""
    mean = laplacian(partner, probability)
    return mean, mean @ mean + 2.0 * laplacian(partner, probability * (1.0 - probability))


def _slowest(mean: Floats, square: Floats, a: float) -> tuple[float, Floats]:
    """Return the contraction rho(a), and the direction that shrinks least."""
    n = len(mean)
    return _top(np.eye(n) - 2.0 / n - 2.0 * a * mean + a * a * square)


def _top(matrix: Floats) -> tuple[float, Floats]:
    """Return the largest eigenvalue of a symmetric matrix and its eigenvector."""
    value, vector = np.linalg.eigh(
        matrix
    )  # the whole spectrum: partial solvers fail on clustered eigenvalues
    return float(value[-1]), vector[:, -1]
