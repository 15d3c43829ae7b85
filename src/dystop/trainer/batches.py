"""Which samples each mini-batch of a local training holds.

A worker walks through its shard in the order of a permutation addressed by (seed, worker, version,
epoch): the sort order of one random key per position. The last mini-batch of an epoch may be
smaller; the next epoch starts with a fresh permutation. Worked out for many workers at once.
"""

from dataclasses import dataclass

import numpy as np

from dystop.rng import bits
from dystop.sparse import Ints


@dataclass(frozen=True)
class Batches:
    """Mini-batches of A local trainings; positions count inside a worker's own shard."""

    positions: Ints  # [A, steps, batch], -1 behind the end of a short batch
    counts: Ints  # [A, steps], samples in each mini-batch; 0 behind the last step


def epoch_order(seed: int, workers: Ints, versions: Ints, epoch: int, sizes: Ints) -> Ints:
    """Permutation of every worker's shard in one epoch, [A, largest size], -1 behind its end."""
    position = np.arange(sizes.max(initial=0))
    keys = bits(seed, "batches", workers[:, None], versions[:, None], epoch, position[None, :])
    inside = position < sizes[:, None]
    keys[~inside] = np.iinfo(np.uint64).max  # to the end; the sort is stable, so even ties are
    return np.where(inside, np.argsort(keys, axis=1, kind="stable"), -1)


def batches(
    seed: int, workers: Ints, versions: Ints, steps: Ints, sizes: Ints, batch: int
) -> Batches:
    """Mini-batches of local trainings of `steps` [A] steps over shards of `sizes` [A].

    A worker without data takes no step.
    """
    epoch_steps = -(-sizes // batch)
    steps = np.where(sizes > 0, steps, 0)
    epochs = -(-steps // np.maximum(epoch_steps, 1))
    out = np.full((len(workers), steps.max(initial=0) * batch), -1, np.int64)
    for epoch in range(epochs.max(initial=0)):
        rows = np.flatnonzero(epochs > epoch)
        order = epoch_order(seed, workers[rows], versions[rows], epoch, sizes[rows])
        first = epoch * epoch_steps[rows] * batch
        target = first[:, None] + np.arange(order.shape[1])
        taken = (order >= 0) & (target < steps[rows, None] * batch)
        out[np.broadcast_to(rows[:, None], taken.shape)[taken], target[taken]] = order[taken]
    positions = out.reshape(len(workers), steps.max(initial=0), batch)
    return Batches(positions, np.sum(positions >= 0, axis=2))
