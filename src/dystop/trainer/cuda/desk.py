"""The desk: tensors at fixed addresses that a recorded step reads and writes."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Desk:
    """Models being trained, their mini-batches, and which step is next. All changes in place."""

    parameters: Tensor  # [M, P]
    kept: Tensor  # [M, W - P]
    counters: Tensor  # [M, C]
    table: Tensor  # [S, M, b] int32, sample numbers of every step
    counts: Tensor  # [S, M] int32, samples that count; 0 behind a row's last step
    rate: Tensor  # [M], learning rate
    address: Tensor  # [M] int64, of the local training; dropout is drawn by it
    total: Tensor  # [M] float64, loss summed over the samples seen
    step: Tensor  # [1], the next step
    count: Tensor  # [M] int32, samples that count in the current step

    @property
    def height(self) -> int:
        """Rows."""
        return len(self.parameters)

    @property
    def batch(self) -> int:
        """Samples of a row in a step."""
        return self.table.shape[2]

    @property
    def changing(self) -> tuple[Tensor, ...]:
        """What a step changes."""
        return self.parameters, self.kept, self.counters, self.total, self.step, self.count

    def lay(self, models: Tensor, counters: Tensor, rates: Tensor, address: Tensor) -> None:
        """Put the rows of a job on the desk."""
        rows, cut = len(models), self.parameters.shape[1]
        self.parameters[:rows], self.kept[:rows] = models[:, :cut], models[:, cut:]
        self.counters[:rows], self.rate[:rows] = counters, rates
        self.address[:rows] = address
        self.total.zero_()
        self.step.zero_()

    def note(self, counts: Tensor) -> None:
        """Put the sizes of the mini-batches, [S, A], on the desk."""
        steps, rows = counts.shape
        self.counts[:steps, :rows] = counts
        self.counts[:steps, rows:] = 0

    def models(self, rows: int) -> Tensor:
        """The models of the first rows, copied."""
        return torch.cat([self.parameters[:rows], self.kept[:rows]], 1)


def desk_for(
    sizes: tuple[int, int, int], shape: tuple[int, int, int], device: torch.device
) -> Desk:
    """An empty desk.

    Args:
        sizes: Trained numbers P, kept numbers W - P and counters C of a model.
        shape: Steps S, rows M and samples b of a mini-batch.
        device: Where it stands.
    """
    (trained, kept, counted), (steps, rows, batch) = sizes, shape
    whole, place = torch.int32, device
    return Desk(
        parameters=torch.zeros(rows, trained, device=place),
        kept=torch.zeros(rows, kept, device=place),
        counters=torch.zeros(rows, counted, dtype=torch.int64, device=place),
        table=torch.zeros(steps, rows, batch, dtype=whole, device=place),
        counts=torch.zeros(steps, rows, dtype=whole, device=place),
        rate=torch.zeros(rows, device=place),
        address=torch.zeros(rows, dtype=torch.int64, device=place),
        total=torch.zeros(rows, dtype=torch.float64, device=place),
        step=torch.zeros(1, dtype=torch.int64, device=place),
        count=torch.zeros(rows, dtype=whole, device=place),
    )
