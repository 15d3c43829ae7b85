"""Aggregation (eq:aggregation): mixing weights, the product, and rows after losses."""

from dataclasses import replace
from typing import Any

import numpy as np

from dystop.acceleration import accelerated
from dystop.plan import Mix, mix_of
from dystop.rng import bits
from dystop.sparse import Bools, Floats, Graph, Ints, Rows, check_ids, group, ints


def mix(weights: Any, models: Any) -> Any:
    """Mix models (eq:aggregation): weights [M, K], models [K, P], result [M, P].

    The simulator passes the rows of all active workers and the whole stack of models; a worker
    passes one row and the models that arrived. The arguments are NumPy arrays or torch tensors,
    dense or sparse.
    """
    return weights @ models


def passive_shift(mixed: Any, published: Any) -> Any:
    """Return what a passive mix adds to the model of a worker that is not about to train.

    The worker publishes the mixed model at once. The same shift moves the point where its last
    training began, so that its update stays what it was, and the result of a training that still
    runs, so that the training keeps its update. NumPy arrays or torch tensors.
    """
    return mixed - published


def size_weights(receiver: Ints, dst: Ints, src: Ints, data_size: Ints) -> Mix:
    """Return rows of sigma_t^{i,j}: D_j divided by the sum of D over the row (eq:aggregation).

    A row holds the pulled models and the worker's own one.

    Args:
        receiver: workers that get a row, also those that pull nothing.
        dst: receiver of each link.
        src: sender of each link.
        data_size: D_i, [N].
    """
    if len(receiver) == 1 and (dst == receiver[0]).all():
        return size_row(receiver, src, data_size)
    return size_rows(receiver, group(len(data_size), dst, src, ascending=True), data_size)


@accelerated("dystop.kernels.choices:size_row", size=lambda receiver, src, _: len(src))
def size_row(receiver: Ints, src: Ints, data_size: Ints) -> Mix:
    """Return the row of `size_weights` for a single receiver of all links."""
    source = np.sort(np.append(src, receiver))
    check_ids(len(data_size), source)
    size = data_size[source]
    return Mix(receiver, ints([0, len(source)]), source, size / size.sum())


@accelerated("dystop.kernels.mixing_rows:size_rows")
def size_rows(receiver: Ints, pulled: Rows, data_size: Ints) -> Mix:
    """Return the rows of `size_weights` for links grouped by receiver (`Links.by_receiver`)."""
    check_ids(len(data_size), pulled.value)
    own = np.unique(receiver)
    dst, source = np.append(own, pulled.row_of), np.append(own, ints(pulled.value))
    check_ids(len(data_size), dst)
    total = np.bincount(dst, weights=data_size[source])
    return mix_of(dst, source, data_size[source] / total[dst])


def metropolis(graph: Graph, receiver: Ints) -> Mix:
    """Return symmetric doubly stochastic rows: 1 / (1 + max(d_i, d_j)), the rest on oneself."""
    degree = graph.degree
    weight = 1.0 / (1.0 + np.maximum(degree[graph.dst], degree[graph.src]))
    return with_self(graph.dst, graph.src, weight, receiver)


def with_self(dst: Ints, src: Ints, weight: Floats, receiver: Ints) -> Mix:
    """Return rows that sum to one: the missing weight of a row goes to the receiver's own model."""
    nodes = int(max(receiver.max(initial=-1), dst.max(initial=-1), src.max(initial=-1))) + 1
    own = 1.0 - np.bincount(dst, weights=weight, minlength=nodes)[receiver]
    return mix_of(
        np.concatenate([receiver, dst]),
        np.concatenate([receiver, src]),
        np.concatenate([own, weight]),
    )


def global_weights(data_size: Ints) -> Floats:
    """Return the weights alpha_i = D_i / D of the global model (eq:weightedmodel)."""
    share: Floats = data_size / data_size.sum()
    return share


def renormalise_lost(stage: Mix, dst: Ints, src: Ints, *, to_self: bool) -> Mix:
    """Return the rows after the transfers (dst, src) were lost.

    With `to_self`, the lost weight moves to the own model at *both* ends, which keeps a doubly
    stochastic matrix doubly stochastic. Other linear rows are divided by the weight that arrived.
    Rows of updates ("delta"), and weights of carried vectors, lack the lost term.
    """
    if not len(dst) or not len(stage.source):
        return stage
    if stage.collective:  # a broken ring delivers nothing
        return _drop(stage, np.ones(len(stage.source)), stage.dst != stage.source)
    base = int(max(stage.source.max(), dst.max(), src.max(), stage.receiver.max())) + 1
    key, gone = stage.dst * base + stage.source, dst * base + src
    if to_self:
        gone = np.concatenate([gone, src * base + dst])
    hit = np.isin(key, gone) & (stage.dst != stage.source)
    weight = np.where(hit, 0.0, stage.weight)
    if stage.carried is not None:
        stage = replace(stage, carried=np.where(hit, 0.0, stage.carried))
    if to_self:
        return rest_to_self(stage, weight)
    if stage.kind != "delta":
        arrived = row_sums(stage, weight)
        weight = weight / np.where(arrived == 0, 1.0, arrived)[stage.row_of]
        hit |= (arrived == 0)[stage.row_of]  # an empty row keeps the own model
    return _drop(stage, weight, hit)


def row_sums(rows: Mix, weight: Floats) -> Floats:
    """Return the sum of the weights of each row, [R]."""
    return np.bincount(rows.row_of, weights=weight, minlength=len(rows.receiver)).astype(float)


def rest_to_self(rows: Mix, weight: Floats) -> Mix:
    """Return rows with new weights; what is missing to the old row sums goes to the own model.

    A row that lacks the own model gets it.
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
    """Return the rows without the weights that were hit; a row may become empty."""
    counts = np.bincount(stage.row_of[~hit], minlength=len(stage.receiver))
    indptr = ints(np.concatenate([[0], np.cumsum(counts)]))
    carried = None if stage.carried is None else stage.carried[~hit]
    source, weight = stage.source[~hit], weight[~hit]
    return replace(stage, indptr=indptr, source=source, weight=weight, carried=carried)


def kept_coordinates(seed: int, keep: float, width: int) -> Bools:
    """Return the coordinates that both ends of a masked exchange derive from a seed, [width].

    >>> kept_coordinates(7, 0.5, 1000).sum() == kept_coordinates(7, 0.5, 2000)[:1000].sum()
    np.True_
    """
    draw = bits(seed, "mask", np.arange(width))
    limit = np.uint64(min(int(keep * 2.0**64), 2**64 - 1))
    kept: Bools = (draw <= limit) if keep < 1 else np.ones(width, bool)
    return kept
