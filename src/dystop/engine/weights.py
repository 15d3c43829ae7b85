"""Sparse rows of weights, whose product with the stack of models is the mixing of a round.

A plain loop, row by row, in blocks of columns, models in the order of their ids; on a GPU as a
kernel. The library's product takes three times as long on a CPU, and on a GPU large models came
out as zeros (`trainer.cuda.mixing`).
"""

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from dystop.compiled import compiled
from dystop.cores import fair_block, fixed, in_blocks
from dystop.sparse import Floats, Ints
from dystop.trainer.device import on_device, upload

BLOCK = 4096  # columns: 16 KB of each row
_LARGE = 1 << 20  # numbers to be read before a second core is worth its thread


@dataclass(frozen=True)
class SparseRows:
    """A matrix [R, K] of which only some numbers are kept, row by row."""

    indptr: Ints  # [R + 1]
    column: Ints  # ascending inside a row
    weight: Floats

    def __matmul__(self, models: Tensor) -> Tensor:
        """The product with a stack of models [K, W], where the stack is."""
        return self._on_cpu(models) if models.device.type == "cpu" else self._on_device(models)

    def _on_cpu(self, models: Tensor) -> Tensor:
        out = torch.empty(len(self.indptr) - 1, models.shape[1], dtype=models.dtype)
        stack, into = models.detach().contiguous().numpy(), out.numpy()
        rows = (fixed(self.indptr), fixed(self.column), fixed(self.weight.astype(into.dtype)))
        small = len(self.column) * stack.shape[1] < _LARGE
        block = fair_block(len(out), len(out) if small else 1)

        def mix(lo: int, hi: int) -> None:
            mix_rows(*rows, fixed(stack), into, lo, hi)

        in_blocks(mix, len(out), max(block, 1))
        return out

    def _on_device(self, models: Tensor) -> Tensor:
        from dystop.trainer.cuda.mixing import mixed  # needs Triton, which CUDA builds bring

        where = models.device
        with on_device(where):
            indptr, column = upload(self.indptr, where), upload(self.column, where)
            return mixed(indptr, column, upload(self.weight, where).to(models.dtype), models)


@compiled
def mix_rows(
    indptr: Ints,
    column: Ints,
    weight: Any,
    stack: NDArray[Any],
    out: NDArray[Any],
    lo: int,
    hi: int,
) -> None:
    """Rows lo to hi of the product, each number a sum in the order of the columns."""
    width = stack.shape[1]
    for row in range(lo, hi):
        for first in range(0, width, BLOCK):
            last = min(first + BLOCK, width)
            into = out[row, first:last]
            into[:] = 0
            for at in range(indptr[row], indptr[row + 1]):
                factor, source = weight[at], stack[column[at], first:last]
                for k in range(last - first):
                    into[k] += factor * source[k]
