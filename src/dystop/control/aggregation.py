"""Aggregation: weights, the one `mix`, and what to do when a transfer was lost."""

from dataclasses import replace
from typing import Any

import numpy as np

from dystop.kernels.buffers import buffer
from dystop.kernels.grouping import Rows, group
from dystop.kernels.size_weights import fill_rows
from dystop.parallel import as_readonly, run_in_blocks
from dystop.plan import Mix, mix_of
from dystop.rng import bits
from dystop.sparse import Bools, Floats, Graph, Ints, ints

_ROWS = 1 << 15


def mix(weights: Any, models: Any) -> Any:
    """Mix models (eq:aggregation). weights [M, K], models [K, P], result [M, P].

    The simulator calls it with the rows of all active workers and the whole stack, a worker with
    one row and the models that arrived. NumPy arrays and torch tensors, dense or sparse, both work.
    """
    return weights @ models


def size_weights(receiver: Ints, dst: Ints, src: Ints, data_size: Ints) -> Mix:
    """Rows sigma_t^{i,j} = D_j / sum of D over the pulled models and the own one (eq:aggregation).

    Args:
        receiver: workers that get a row, also those that pull nothing.
        dst: receiver of each link.
        src: sender of each link.
        data_size: D_i, [N].
    """
    return size_rows(receiver, group(len(data_size), dst, src, ascending=True), data_size)


def size_rows(receiver: Ints, pulled: Rows, data_size: Ints) -> Mix:
    """The same for links that are grouped by receiver already (`Links.by_receiver`)."""
    n, linked = len(data_size), len(pulled.indptr) - 1
    if linked > n or pulled.value.max(initial=-1) >= n:
        raise IndexError(f"a link names a node beyond the {n} workers with data")
    own, count = np.zeros(n, bool), np.zeros(n, np.int64)
    own[receiver] = True
    count[:linked] = np.diff(pulled.indptr)
    indptr = np.concatenate([[0], np.cumsum(count + own)])
    ends = np.concatenate([pulled.indptr, np.full(n - linked, pulled.indptr[-1])])
    links, given = (
        (as_readonly(ends), as_readonly(pulled.value)),
        (as_readonly(own), as_readonly(data_size), as_readonly(indptr)),
    )
    out = buffer(indptr[-1], np.int64), buffer(indptr[-1], np.float64)
    run_in_blocks(lambda lo, hi: fill_rows(links, *given, out, (lo, hi)), n, _ROWS)
    some = np.flatnonzero(np.diff(indptr))
    return Mix(some, np.append(indptr[some], indptr[-1]), *out)


def metropolis(graph: Graph, receiver: Ints) -> Mix:
    """Symmetric doubly stochastic rows: 1 / (1 + max(d_i, d_j)), the rest on oneself."""
    degree = graph.degree
    weight = 1.0 / (1.0 + np.maximum(degree[graph.dst], degree[graph.src]))
    return with_self(graph.dst, graph.src, weight, receiver)


def with_self(dst: Ints, src: Ints, weight: Floats, receiver: Ints) -> Mix:
    """Rows whose missing weight goes to the own model, so that each sums to one."""
    nodes = int(max(receiver.max(initial=-1), dst.max(initial=-1), src.max(initial=-1))) + 1
    own = 1.0 - np.bincount(dst, weights=weight, minlength=nodes)[receiver]
    return mix_of(
        np.concatenate([receiver, dst]),
        np.concatenate([receiver, src]),
        np.concatenate([own, weight]),
    )


def global_weights(data_size: Ints) -> Floats:
    """Weights alpha_i = D_i / D of the global model (eq:weightedmodel)."""
    share: Floats = data_size / data_size.sum()
    return share


def renormalise_lost(stage: Mix, dst: Ints, src: Ints, *, to_self: bool) -> Mix:
    """Rows after the transfers (dst, src) were lost.

    Rows of a doubly stochastic mechanism move the lost weight to the own model at *both* ends,
    which keeps the matrix doubly stochastic; other linear rows are divided by what did arrive, and
    rows of updates ("delta") simply lack the lost term.
    """
    if not len(dst) or not len(stage.source):
        return stage
    if stage.collective:  # a broken ring brings nobody anything
        return _drop(stage, np.ones(len(stage.source)), stage.dst != stage.source)
    base = int(max(stage.source.max(), dst.max(), src.max(), stage.receiver.max())) + 1
    key, gone = stage.dst * base + stage.source, dst * base + src
    if to_self:
        gone = np.concatenate([gone, src * base + dst])
    hit = np.isin(key, gone) & (stage.dst != stage.source)
    weight = np.where(hit, 0.0, stage.weight)
    if to_self:
        return rest_to_self(stage, weight)
    if stage.kind != "delta":
        arrived = row_sums(stage, weight)
        weight = weight / np.where(arrived == 0, 1.0, arrived)[stage.row_of]
        hit |= (arrived == 0)[stage.row_of]  # nothing is left: an empty row keeps its model
    return _drop(stage, weight, hit)


def row_sums(rows: Mix, weight: Floats) -> Floats:
    """Sum of the weights of each row, [R]."""
    return np.bincount(rows.row_of, weights=weight, minlength=len(rows.receiver)).astype(float)


def rest_to_self(rows: Mix, weight: Floats) -> Mix:
    """Rows with new weights, what is missing to the old sums given to the own model.

    Where a row did not have its own model it is added.
    """
    missing = row_sums(rows, rows.weight) - row_sums(rows, weight)
    own = rows.dst == rows.source
    has_own = np.zeros(len(rows.receiver), bool)
    has_own[rows.row_of[own]] = True
    weight = weight + np.where(own, missing[rows.row_of], 0.0)
    lacking = rows.receiver[~has_own]
    mixed = mix_of(
        np.concatenate([rows.dst, lacking]),
        np.concatenate([rows.source, lacking]),
        np.concatenate([weight, missing[~has_own]]),
        kind=rows.kind,
        mask=rows.mask,
        collective=rows.collective,
    )
    return replace(mixed, compensation=rows.compensation)


def _drop(stage: Mix, weight: Floats, hit: Bools) -> Mix:
    """The same rows without the weights that were hit; a row may become empty."""
    counts = np.bincount(stage.row_of[~hit], minlength=len(stage.receiver))
    indptr = ints(np.concatenate([[0], np.cumsum(counts)]))
    return replace(stage, indptr=indptr, source=stage.source[~hit], weight=weight[~hit])


# MERGED: Which coordinates of a model two ends exchange when they agreed on a seed only.


def kept_coordinates(seed: int, keep: float, width: int) -> Bools:
    """Coordinates that both ends of a masked exchange derive from a shared seed, [width].

    >>> kept_coordinates(7, 0.5, 1000).sum() == kept_coordinates(7, 0.5, 2000)[:1000].sum()
    np.True_
    """
    draw = bits(seed, "mask", np.arange(width))
    limit = np.uint64(min(int(keep * 2.0**64), 2**64 - 1))
    kept: Bools = (draw <= limit) if keep < 1 else np.ones(width, bool)
    return kept
