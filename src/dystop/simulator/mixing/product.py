"""The weights of a stage of mixing as sparse rows, and their product with a stack of models.

The product is a loop, row by row, models in the order of their ids. It is compiled on a CPU (`cpu`)
and a kernel on a GPU (`cuda`). The library's product takes three times as long on a CPU.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystop.acceleration import accelerated
from dystop.parallel import as_readonly, block_size, run_in_blocks
from dystop.plan import Mix
from dystop.sparse import Bools, Floats, Ints, ints
from dystop.training.device import on_device, upload

LARGE = 1 << 20  # numbers to be read before a second core is worth its thread


@dataclass(frozen=True)
class SparseRows:
    """A sparse matrix [R, K] as rows one after another."""

    indptr: Ints  # [R + 1]
    column: Ints  # ascending inside a row
    weight: Floats

    def __matmul__(self, models: Tensor) -> Tensor:
        """Return the product with a stack of models [K, W], on the device of the stack."""
        return self._on_cpu(models) if models.device.type == "cpu" else self._on_device(models)

    def _on_cpu(self, models: Tensor) -> Tensor:
        out = torch.empty(len(self.indptr) - 1, models.shape[1], dtype=models.dtype)
        stack, into = as_readonly(models.detach().numpy()), out.numpy()
        rows = (
            as_readonly(self.indptr),
            as_readonly(self.column),
            as_readonly(self.weight.astype(into.dtype)),
        )
        if len(self.column) * stack.shape[1] < LARGE:
            mix_rows(*rows, stack, into, 0, len(out))
            return out

        def mix(lo: int, hi: int) -> None:
            mix_rows(*rows, stack, into, lo, hi)

        run_in_blocks(mix, len(out), block_size(len(out), 1))
        return out

    def _on_device(self, models: Tensor) -> Tensor:
        from dystop.simulator.mixing.cuda import mixed

        # One copy to the device instead of three: the bits of the weights travel as integers.
        packed = np.concatenate([self.indptr, self.column, self.weight.view(np.int64)])
        first, last = len(self.indptr), len(self.indptr) + len(self.column)
        with on_device(models.device):
            there = upload(packed, models.device)
            weight = there[last:].view(torch.float64).to(models.dtype)
            return mixed(there[:first], there[first:last], weight, models)


@accelerated("dystop.simulator.mixing.cpu:mix_rows")
def mix_rows(
    indptr: Ints,
    column: Ints,
    weight: Any,
    stack: NDArray[Any],
    out: NDArray[Any],
    lo: int,
    hi: int,
) -> None:
    """Write rows lo to hi of the product into `out`; a sum goes in the order of the columns."""
    for row in range(lo, hi):
        out[row] = 0
        for at in range(indptr[row], indptr[row + 1]):
            out[row] += weight[at] * stack[column[at]]


def sparse_rows(stage: Mix, pick: Bools, source: Ints) -> SparseRows:
    """Return the picked weights of a stage as a sparse matrix; `source` holds the columns."""
    if pick.all():
        return SparseRows(stage.indptr, source, stage.weight)
    if len(stage.receiver) == 1:
        picked = source[pick]
        return SparseRows(ints([0, len(picked)]), picked, stage.weight[pick])
    counts = np.bincount(stage.row_of[pick], minlength=len(stage.receiver))
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return SparseRows(indptr, source[pick], stage.weight[pick])
