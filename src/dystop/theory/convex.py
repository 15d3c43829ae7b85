"""L2-regularised softmax regression: a real problem on which every constant can be computed.

F_i(w) = mean over the worker's samples of cross-entropy(W x, y) + l2/2 ||w||^2, with inputs of
length one and no bias (the model `softmax-unit`). Then mu = l2 and L = 1/2 + l2 hold for every
sample (the Hessian of cross-entropy in the logits is at most 1/2), and F is the D_i-weighted mean
of the F_i. Weights are flat vectors [K * d], row by row as in a linear layer. Pure functions on
arrays.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dystop.errors import ConfigError
from dystop.sparse import Floats, Ints

HESSIAN_LIMIT = 0.5  # of cross-entropy in the logits


@dataclass(frozen=True)
class Regression:
    """One data set, split over the workers."""

    x: Floats  # [n, d], every row of length one
    y: Ints  # [n]
    shards: tuple[Ints, ...]  # samples of each worker
    classes: int
    l2: float

    @property
    def mu(self) -> float:
        """Strong convexity of every F_i."""
        return self.l2

    @property
    def smoothness(self) -> float:
        """L of the loss of every sample."""
        longest = float(np.square(self.x).sum(axis=1).max(initial=0.0))
        return HESSIAN_LIMIT * longest + self.l2

    @property
    def share(self) -> Floats:
        """alpha_i = D_i / D, [N]."""
        sizes = np.array([len(shard) for shard in self.shards], float)
        weights: Floats = sizes / sizes.sum()
        return weights

    def part(self, worker: int) -> "Regression":
        """The problem of one worker alone."""
        rows = self.shards[worker]
        here = (np.arange(len(rows)),)
        return Regression(self.x[rows], self.y[rows], here, self.classes, self.l2)


def unit_rows(x: NDArray[np.floating]) -> Floats:
    """Inputs scaled to length one; an empty image stays empty."""
    flat = x.reshape(len(x), -1).astype(np.float64)
    norm = np.linalg.norm(flat, axis=1, keepdims=True)
    rows: Floats = flat / np.where(norm == 0, 1.0, norm)
    return rows


def _errors(problem: Regression, weights: Floats) -> tuple[Floats, Floats]:
    """Probabilities minus labels [n, K], and the cross-entropy of every sample [n]."""
    logits = problem.x @ weights.reshape(problem.classes, -1).T
    logits -= logits.max(axis=1, keepdims=True)
    total = np.exp(logits).sum(axis=1)
    here = (np.arange(len(problem.y)), problem.y)
    loss = np.log(total) - logits[here]
    error = np.exp(logits) / total[:, None]
    error[here] -= 1.0
    return error, loss


def value(problem: Regression, weights: Floats) -> float:
    """F(w)."""
    _, loss = _errors(problem, weights)
    return float(loss.mean() + 0.5 * problem.l2 * weights @ weights)


def gradient(problem: Regression, weights: Floats) -> Floats:
    """The gradient of F, [K * d]."""
    error, _ = _errors(problem, weights)
    mean: Floats = (error.T @ problem.x / len(problem.y)).reshape(-1) + problem.l2 * weights
    return mean


def minimum(problem: Regression, tolerance: float = 1e-10) -> tuple[Floats, float]:
    """w* and F*, certified: F(w) - F* <= ||grad F(w)||^2 / (2 mu) is at most the tolerance."""
    weights = np.zeros(problem.classes * problem.x.shape[1])
    for _ in range(20):
        found = minimize(
            lambda w: (value(problem, w), gradient(problem, w)),
            weights,
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 5000, "ftol": 0.0, "gtol": 1e-13, "maxcor": 30},
        )
        weights = np.asarray(found.x)
        if certificate(problem, weights) <= tolerance:
            return weights, value(problem, weights)
    raise ConfigError(
        f"training.l2 = {problem.l2:g}: so flat a loss that its minimum is only found to "
        f"{certificate(problem, weights):.3g}, not {tolerance:g}; use more, as training.l2=0.1"
    )


def certificate(problem: Regression, weights: Floats) -> float:
    """Upper limit of F(w) - F* from the gradient alone (eq:censynconvexF)."""
    slope = gradient(problem, weights)
    return float(slope @ slope) / (2.0 * problem.mu)


def divergence(problem: Regression, weights: Floats) -> Floats:
    """||grad F(w) - grad F_i(w)|| of every worker at one point, [N] (def:gradientdivergence)."""
    error, _ = _errors(problem, weights)
    each = np.stack([(error[s].T @ problem.x[s] / len(s)).reshape(-1) for s in problem.shards])
    whole = problem.share @ each
    gaps: Floats = np.linalg.norm(whole - each, axis=1)
    return gaps


def local_noise(problem: Regression, batch: int) -> Floats:
    """g_i* = E ||grad F_i(w_i*; batch)||^2 for batches drawn without replacement, [N]."""
    out = np.empty(len(problem.shards))
    for worker in range(len(problem.shards)):
        own = problem.part(worker)
        optimum, _ = minimum(own)
        error, _ = _errors(own, optimum)
        # ||e x^T + l2 w||^2 without forming it: e x^T is an outer product.
        cross = np.einsum("nk,kd,nd->n", error, optimum.reshape(own.classes, -1), own.x)
        square = np.square(error).sum(axis=1) * np.square(own.x).sum(axis=1)
        second = square + 2.0 * own.l2 * cross + own.l2**2 * (optimum @ optimum)
        size = len(own.y)
        taken = min(batch, size)
        rest = (size - taken) / (size - 1) if size > 1 else 0.0
        out[worker] = second.mean() / taken * rest
    return out
