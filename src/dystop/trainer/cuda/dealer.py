"""Mini-batches dealt by two kernels and a sort: `orders.sample_table` without its many launches."""

import numpy as np
import torch
from torch import Tensor

from dystop.rng import bits
from dystop.sparse import Ints
from dystop.trainer.cuda import kernels
from dystop.trainer.cuda.launch import launch
from dystop.trainer.device import upload
from dystop.trainer.orders import DeviceShards, epochs_of

BLOCK = 1024


class Dealer:
    """Deals the mini-batches of one problem."""

    def __init__(self, shards: DeviceShards, seed: int, batch: int) -> None:
        self._shards, self._batch = shards, batch
        self._start = torch.tensor([_first_state(seed)], device=shards.start.device)

    def deal(self, who: tuple[Ints, Ints], work: tuple[Ints, Ints], table: Tensor) -> None:
        """Fill table [S, M, b] for workers in its first rows; arguments as in `sample_table`."""
        shards, rows, (sizes, steps) = self._shards, len(who[0]), work
        workers, versions = (upload(part, table.device) for part in who)
        width, columns = max(int(sizes.max(initial=0)), 1), int(steps.max(initial=0)) * self._batch
        keys = torch.empty(rows, width, dtype=torch.int64, device=table.device)
        for epoch in range(epochs_of(sizes, steps, self._batch)):
            launch(
                kernels.sort_keys, (rows, -(-width // BLOCK)), workers, versions, shards.sizes,
                self._start, epoch, keys, width, BLOCK=BLOCK,
            )  # fmt: skip
            order = keys.sort(dim=1, stable=True).indices
            launch(
                kernels.deal, (rows, -(-columns // BLOCK)),
                order, workers, shards.sizes, shards.start, shards.samples, table, epoch, columns,
                table.shape[1], width, BATCH=self._batch, BLOCK=BLOCK,
            )  # fmt: skip


def _first_state(seed: int) -> int:
    """Bits of the address before its first part, as a signed number."""
    return int(bits(seed, "batches").astype(np.int64))
