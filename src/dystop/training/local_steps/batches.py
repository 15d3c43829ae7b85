"""Which samples each mini-batch of a local training holds.

A worker goes through its shard in the order of a permutation, addressed by (seed, worker, version,
epoch): the sort order of one random key for each position. The last mini-batch of an epoch may be
smaller. The next epoch begins with a new permutation.

`batches` computes this for many workers at once, in NumPy. `sample_table` computes the same numbers
on a GPU, so that a round of a hundred workers costs the host microseconds.
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

_LAST = 2**63 - 1  # the largest key: sorts to the end


@dataclass(frozen=True)
class Batches:
    """The mini-batches of A local trainings; positions count inside a worker's own shard."""

    positions: Ints  # [A, steps, batch], -1 after the end of a short batch
    counts: Ints  # [A, steps], samples in each mini-batch; 0 after the last step


def epoch_order(seed: int, workers: Ints, versions: Ints, epoch: int, sizes: Ints) -> Ints:
    """Return a permutation of every worker's shard, [A, largest size], -1 after its end."""
    position = np.arange(sizes.max(initial=0))
    keys = bits(seed, "batches", workers[:, None], versions[:, None], epoch, position[None, :])
    inside = position < sizes[:, None]
    keys[~inside] = np.iinfo(np.uint64).max  # to the end; the sort is stable, so even ties are
    return np.where(inside, np.argsort(keys, axis=1, kind="stable"), -1)


def batches(
    seed: int, workers: Ints, versions: Ints, steps: Ints, sizes: Ints, batch: int
) -> Batches:
    """Return the mini-batches of local trainings: `steps` [A] over shards of `sizes` [A].

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


@dataclass(frozen=True)
class DeviceShards:
    """The samples of every worker, on the device."""

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


@dataclass(frozen=True)
class Trainings:
    """Local trainings, as the samplers of mini-batches need them."""

    workers: Ints  # [A]
    versions: Ints  # [A], trainings that the worker has finished before
    sizes: Ints  # [A], samples of the worker
    steps: Ints  # [A], mini-batches to take; 0 for a worker without samples

    def counts(self, batch: int) -> Ints:
        """Return the samples of every mini-batch [A, S]; 0 after a worker's last step."""
        k = np.arange(self.steps.max(initial=0))
        epoch_steps = np.maximum(-(-self.sizes // batch), 1)[:, None]
        left = self.sizes[:, None] - (k % epoch_steps) * batch
        return np.where(k < self.steps[:, None], np.clip(left, 0, batch), 0)

    def epochs(self, batch: int) -> int:
        """Return the largest number of epochs that a worker with data begins."""
        some = self.sizes > 0
        epoch_steps = -(-self.sizes[some] // batch)
        return int((-(-self.steps[some] // epoch_steps)).max(initial=0))


def sample_table(shards: DeviceShards, seed: int, trainings: Trainings, batch: int) -> Tensor:
    """Return the sample numbers of every mini-batch, [S, A, b] int32.

    The first sample of a short mini-batch fills it up. It is a sample of the same worker, so no
    number of another worker can reach the loss through a weight of zero.
    """
    device, steps = shards.start.device, int(trainings.steps.max(initial=0))
    workers, versions = (upload(a, device) for a in (trainings.workers, trainings.versions))
    size, start = shards.sizes[workers][:, None], shards.start[workers][:, None]
    column = torch.arange(steps * batch, device=device)
    span = (size + batch - 1) // batch * batch  # columns of one epoch
    epoch = column // span.clamp(min=1)
    position = column - epoch * span
    position = torch.where(position < size, position, position - column % batch).clamp(min=0)
    width = max(int(trainings.sizes.max(initial=0)), 1)
    table = torch.zeros(len(workers), steps * batch, dtype=torch.int32, device=device)
    for number in range(trainings.epochs(batch)):
        order = _device_epoch_order(seed, (workers, versions), number, size, width)
        at = (start + order).clamp(max=len(shards.samples) - 1)
        drawn = shards.samples[at].gather(1, position.clamp(max=width - 1))
        table = torch.where(epoch == number, drawn, table)
    return table.view(len(workers), steps, batch).transpose(0, 1)


def _device_epoch_order(
    seed: int, who: tuple[Tensor, Tensor], epoch: int, size: Tensor, width: int
) -> Tensor:
    """Return a permutation of every worker's shard, [A, width]; arbitrary after its end."""
    position = torch.arange(width, device=size.device)
    number = torch.full((), epoch, device=size.device)
    keys = device_bits(seed, "batches", who[0][:, None], who[1][:, None], number, position[None, :])
    ascending = keys ^ signed(2**63)  # unsigned order
    ascending = torch.where(position < size, ascending, _LAST)
    return ascending.argsort(dim=1, stable=True)
