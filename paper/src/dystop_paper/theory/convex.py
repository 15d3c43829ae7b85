"""L2-regularised softmax regression: a convex problem whose constants can be computed.

F_i(w) is the mean of cross-entropy(W x, y) over the samples of worker i, plus l2/2 ||w||^2. Inputs
have length one, and there is no bias (the model `softmax-unit`). Then mu = l2 and L = 1/2 + l2 for
every sample, because the Hessian of cross-entropy in the logits is at most 1/2. F is the mean of
the F_i with weights D_i. Weights are flat vectors [K * d], row by row as in a linear layer. All
functions are pure.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dystop.errors import ConfigError
from dystop.sparse import Floats, Ints

HESSIAN_LIMIT = 0.5  # largest eigenvalue of the Hessian of cross-entropy in the logits


@dataclass(frozen=True)
class Regression:
    """A data set, partitioned over the workers."""

    x: Floats  # [n, d], every row of length one
    y: Ints  # [n]
    shards: tuple[Ints, ...]  # samples of each worker
    classes: int
    l2: float

    @property
    def mu(self) -> float:
        """Strong convexity constant mu of every F_i."""
        return self.l2

    @property
    def smoothness(self) -> float:
        """Smoothness constant L of the loss of every sample."""
        longest = float(np.square(self.x).sum(axis=1).max(initial=0.0))
        return HESSIAN_LIMIT * longest + self.l2

    @property
    def share(self) -> Floats:
        """Share of each worker in the data, alpha_i = D_i / D, [N]."""
        sizes = np.array([len(shard) for shard in self.shards], float)
        weights: Floats = sizes / sizes.sum()
        return weights

    def part(self, worker: int) -> "Regression":
        """Return the problem of one worker on its own samples."""
        rows = self.shards[worker]
        here = (np.arange(len(rows)),)
        return Regression(self.x[rows], self.y[rows], here, self.classes, self.l2)


def unit_rows(x: NDArray[np.floating]) -> Floats:
    """Return the inputs scaled to length one; an input of zeros stays zero."""
    flat = x.reshape(len(x), -1).astype(np.float64)
    norm = np.linalg.norm(flat, axis=1, keepdims=True)
    rows: Floats = flat / np.where(norm == 0, 1.0, norm)
    return rows


def _errors(problem: Regression, weights: Floats) -> tuple[Floats, Floats]:
    """Return probabilities minus labels [n, K], and the cross-entropy of every sample [n]."""
    logits = problem.x @ weights.reshape(problem.classes, -1).T
    logits -= logits.max(axis=1, keepdims=True)
    total = np.exp(logits).sum(axis=1)
    here = (np.arange(len(problem.y)), problem.y)
    loss = np.log(total) - logits[here]
    error = np.exp(logits) / total[:, None]
    error[here] -= 1.0
    return error, loss


def value(problem: Regression, weights: Floats) -> float:
    """Return the loss F(w)."""
    _, loss = _errors(problem, weights)
    return float(loss.mean() + 0.5 * problem.l2 * weights @ weights)


def gradient(problem: Regression, weights: Floats) -> Floats:
    """Return the gradient of F, [K * d]."""
    error, _ = _errors(problem, weights)
    mean: Floats = (error.T @ problem.x / len(problem.y)).reshape(-1) + problem.l2 * weights
    return mean


def minimum(problem: Regression, tolerance: float = 1e-10) -> tuple[Floats, float]:
    """Return w* and F*, with ||grad F(w)||^2 / (2 mu) >= F(w) - F* within the tolerance."""
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
        f"training.l2 = {problem.l2:g}: the loss is too flat; its minimum is known only to within "
        f"{certificate(problem, weights):.3g}, not {tolerance:g}; use a larger value, such as "
        "training.l2=0.1"
    )


def certificate(problem: Regression, weights: Floats) -> float:
    """Return an upper bound of F(w) - F* from the gradient at w (eq:censynconvexF)."""
    slope = gradient(problem, weights)
    return float(slope @ slope) / (2.0 * problem.mu)


def divergence(problem: Regression, weights: Floats) -> Floats:
    """Return ||grad F(w) - grad F_i(w)|| of every worker at one w, [N] (def:gradientdivergence)."""
    error, _ = _errors(problem, weights)
    each = np.stack([(error[s].T @ problem.x[s] / len(s)).reshape(-1) for s in problem.shards])
    whole = problem.share @ each
    gaps: Floats = np.linalg.norm(whole - each, axis=1)
    return gaps


def local_noise(problem: Regression, batch: int) -> Floats:
    """Return g_i* = E ||grad F_i(w_i*; batch)||^2, [N], for batches drawn without replacement."""
    out = np.empty(len(problem.shards))
    for worker in range(len(problem.shards)):
        own = problem.part(worker)
        optimum, _ = minimum(own)
        error, _ = _errors(own, optimum)
        # ||e x^T + l2 w||^2, without the outer products e x^T in memory
        cross = np.einsum("nk,kd,nd->n", error, optimum.reshape(own.classes, -1), own.x)
        square = np.square(error).sum(axis=1) * np.square(own.x).sum(axis=1)
        second = square + 2.0 * own.l2 * cross + own.l2**2 * (optimum @ optimum)
        size = len(own.y)
        taken = min(batch, size)
        rest = (size - taken) / (size - 1) if size > 1 else 0.0
        out[worker] = second.mean() / taken * rest
    return out
