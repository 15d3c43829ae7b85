"""Sparse rows times a stack of models, for models of any width.

The library's product of a sparse and a dense matrix was not made for such wide stacks: in runs
with the eleven million columns of a ResNet-18 every mixed model was zero, without an error. This
one is as plain as the loop on the CPU, and adds up in the same order: models by their ids.
"""

import torch
from torch import Tensor

from dystop.training.backends.cuda import kernels
from dystop.training.backends.cuda.graphs import launch

BLOCK = 1024  # columns of one program


def mixed(indptr: Tensor, column: Tensor, weight: Tensor, models: Tensor) -> Tensor:
    """The product of sparse rows (indptr [R + 1], column and weight) with models [K, W]."""
    rows, width = len(indptr) - 1, models.shape[1]
    out = torch.empty(rows, width, dtype=models.dtype, device=models.device)
    blocks = -(-width // BLOCK)
    read = (part.contiguous() for part in (indptr, column, weight, models))
    if rows * blocks:
        launch(
            kernels.mix_rows, (rows * blocks,),
            *read, out, width, blocks, BLOCK=BLOCK,
        )  # fmt: skip
    return out
