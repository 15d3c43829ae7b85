"""Which samples each mini-batch of a local training holds.

A worker walks through its shard in the order of a permutation addressed by (seed, worker, version,
epoch): the sort order of one random key per position. The last mini-batch of an epoch may be
smaller; the next epoch starts with a fresh permutation. Worked out for many workers at once.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dystop.rng import bits
from dystop.sparse import Ints
from dystop.training.device import upload
from dystop.training.randomness import device_bits, signed
from dystop.training.samples import Shards


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


# MERGED: Mini-batches worked out on the device: the same numbers as `batches`, without the host.
#   Keys are hashed and sorted where the training runs, so that a round of a hundred workers costs
#   the host microseconds. `batches` is the readable twin; a test holds the two together.


_LAST = 2**63 - 1


@dataclass(frozen=True)
class DeviceShards:
    """Every worker's samples, on the device."""

    samples: Tensor  # [sum of D_i] int32
    start: Tensor  # [N]
    sizes: Tensor  # [N]


def shards_on(shards: Shards, device: torch.device) -> DeviceShards:
    """Copy the shards to the device."""
    return DeviceShards(
        torch.from_numpy(shards.samples.astype(np.int32)).to(device),
        torch.from_numpy(shards.start[:-1].copy()).to(device),
        torch.from_numpy(shards.sizes).to(device),
    )


def step_counts(sizes: Ints, steps: Ints, batch: int) -> Ints:
    """Samples in every mini-batch [A, S]; 0 behind a worker's last step."""
    k = np.arange(steps.max(initial=0))
    epoch_steps = np.maximum(-(-sizes // batch), 1)[:, None]
    left = sizes[:, None] - (k % epoch_steps) * batch
    return np.where(k < steps[:, None], np.clip(left, 0, batch), 0)


def sample_table(
    shards: DeviceShards, seed: int, who: tuple[Ints, Ints], work: tuple[Ints, Ints], batch: int
) -> Tensor:
    """Sample numbers of every mini-batch, [S, A, b] int32.

    Behind the end of a short mini-batch its first sample is repeated: a real sample of the same
    worker, so that nothing foreign leaks through a weight of zero.

    Args:
        shards: The workers' samples.
        seed: Seed of the run.
        who: Workers [A] and the trainings that each has finished before [A].
        work: Their samples [A] and the steps they take [A].
        batch: Samples of a mini-batch.
    """
    sizes, steps = work
    device, most = shards.start.device, int(steps.max(initial=0))
    workers, versions = (upload(a, device) for a in who)
    size, start = shards.sizes[workers][:, None], shards.start[workers][:, None]
    column = torch.arange(most * batch, device=device)
    span = (size + batch - 1) // batch * batch  # columns of one epoch
    epoch = column // span.clamp(min=1)
    place = column - epoch * span
    place = torch.where(place < size, place, place - column % batch).clamp(min=0)
    width = max(int(sizes.max(initial=0)), 1)
    out = torch.zeros(len(workers), most * batch, dtype=torch.int32, device=device)
    for turn in range(epochs_of(sizes, steps, batch)):
        order = _epoch_order(seed, (workers, versions), turn, size, width)
        at = (start + order).clamp(max=len(shards.samples) - 1)
        drawn = shards.samples[at].gather(1, place.clamp(max=width - 1))
        out = torch.where(epoch == turn, drawn, out)
    return out.view(len(workers), most, batch).transpose(0, 1)


def epochs_of(sizes: Ints, steps: Ints, batch: int) -> int:
    """Most epochs that any worker with data begins."""
    some = sizes > 0
    return int((-(-steps[some] // -(-sizes[some] // batch))).max(initial=0))


def _epoch_order(
    seed: int, who: tuple[Tensor, Tensor], epoch: int, size: Tensor, width: int
) -> Tensor:
    """Permutation of every worker's shard, [A, width]; what lies behind its end is arbitrary."""
    position = torch.arange(width, device=size.device)
    turn = torch.full((), epoch, device=size.device)
    keys = device_bits(seed, "batches", who[0][:, None], who[1][:, None], turn, position[None, :])
    ascending = keys ^ signed(2**63)  # unsigned order
    ascending = torch.where(position < size, ascending, _LAST)
    return ascending.argsort(dim=1, stable=True)
