"""Schemes by which samples are split over workers: pure functions with addressed randomness.

Every function but the last returns the worker of each sample, or the share of each worker.
"""

import heapq

import numpy as np

from dystop.rng import stream
from dystop.sparse import Floats, Ints, ints


def iid_owners(samples: int, workers: int, seed: int) -> Ints:
    """Return the worker of every sample; the first workers have one sample more than the others."""
    owner = np.empty(samples, np.int64)
    shuffled = stream(seed, "partition", "iid").permutation(samples)
    size, more = divmod(samples, workers)
    owner[shuffled] = np.repeat(np.arange(workers), size + (np.arange(workers) < more))
    return owner


def dirichlet_owners(labels: Ints, workers: int, phi: float, seed: int) -> Ints:
    """Return the worker of every sample; each class is split by shares drawn from Dir(phi)."""
    owner = np.zeros(len(labels), np.int64)
    concentration = np.full(workers, float(phi))
    for k in np.unique(labels).tolist():
        rng = stream(seed, "partition", "dirichlet", k)
        members = rng.permutation(np.flatnonzero(labels == k))
        owner[members] = _cut(len(members), rng.dirichlet(concentration))
    return owner


def quantity_shares(workers: int, phi: float, seed: int) -> Floats:
    """Return the share of all samples of each worker, drawn from Dir(phi)."""
    drawn: Floats = stream(seed, "partition", "quantity").dirichlet(np.full(workers, float(phi)))
    return drawn


def power_law_shares(workers: int, exponent: float, seed: int) -> Floats:
    """Return the share of all samples of each worker: k^-exponent for the k-th largest.

    Who is the k-th largest is random.

    >>> sorted((6 * power_law_shares(2, 1.0, seed=0)).round(6).tolist())
    [2.0, 4.0]
    """
    rank = stream(seed, "partition", "power-law").permutation(workers) + 1.0
    size = rank**-exponent
    share: Floats = size / size.sum()
    return share


def sized_owners(samples: int, shares: Floats, seed: int) -> Ints:
    """Return the worker of every sample; a random permutation is cut into these shares."""
    owner = np.empty(samples, np.int64)
    owner[stream(seed, "partition", "order").permutation(samples)] = _cut(samples, shares)
    return owner


def _cut(samples: int, shares: Floats) -> Ints:
    """Return the owner of each place in a row of samples that is cut into shares.

    >>> _cut(5, np.array([0.4, 0.0, 0.6])).tolist()
    [0, 0, 2, 2, 2]
    """
    cuts = (np.cumsum(shares)[:-1] * samples).astype(np.int64)
    return ints(np.searchsorted(cuts, np.arange(samples), side="right"))


def shard_owners(labels: Ints, workers: int, shards: int, seed: int) -> Ints:
    """Return the worker of every sample; each gets some of equal pieces of the sorted labels.

    Samples of one label are shuffled before the cut. Sizes of pieces differ by at most one.
    """
    rng = stream(seed, "partition", "shards")
    shuffled = rng.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    piece = np.arange(len(labels)) * (workers * shards) // len(labels)
    owner = np.empty(len(labels), np.int64)
    owner[order] = (rng.permutation(workers * shards) // shards)[piece]
    return owner


def column_owners(group: Ints, workers: int, seed: int) -> Ints:
    """Return the worker of every sample; groups are dealt to the workers in random order.

    The numbers of groups that two workers have differ by at most one.

    Args:
        group: Number of each sample's group, [n]; all numbers from 0 to G - 1 occur.
        workers: Number of workers N, at most G.
        seed: Seed of the run.
    """
    groups = int(group.max()) + 1
    turn = stream(seed, "partition", "column").permutation(groups)
    return ints((turn % workers)[group])


def raise_to_min_size(owner: Ints, workers: int, min_size: int, seed: int) -> None:
    """Move samples, in place, from the largest workers to those below `min_size`."""
    size = np.bincount(owner, minlength=workers)
    short = np.flatnonzero(size < min_size)
    donors = [(-int(size[i]), i) for i in np.flatnonzero(size > min_size).tolist()]
    heapq.heapify(donors)
    order = np.argsort(owner, kind="stable") if len(short) else owner
    end = np.cumsum(size)
    shuffled: dict[int, list[int]] = {}
    for i in np.repeat(short, min_size - size[short]).tolist():
        less, donor = heapq.heappop(donors)
        if donor not in shuffled:
            rng = stream(seed, "partition", "give", donor)
            held = order[end[donor] - size[donor] : end[donor]]
            shuffled[donor] = rng.permutation(held).tolist()
        owner[shuffled[donor].pop()] = i
        if -less - 1 > min_size:
            heapq.heappush(donors, (less + 1, donor))
