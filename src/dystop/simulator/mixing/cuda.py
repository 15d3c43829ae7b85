"""The product of sparse rows with a stack of models on a GPU, for models of any width.

The library's product of a sparse and a dense matrix is not made for such wide stacks: with the
eleven million columns of a ResNet-18 every mixed model was zero, without an error. This kernel adds
up in the order of the loop on the CPU: models by their ids.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # columns of one program
SEQUENCE_BLOCK = 256  # columns that go through a sequence together: enough programs for a GPU


@triton.jit
def mix_rows(indptr, column, weight, stack, out, width, blocks, BLOCK: tl.constexpr):
    """Compute one block of columns of one row; a stack may hold more than 2^31 numbers."""
    row = tl.program_id(0) // blocks
    place = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    total = tl.zeros((BLOCK,), stack.dtype.element_ty)
    for at in range(tl.load(indptr + row), tl.load(indptr + row + 1)):
        source = tl.load(column + at).to(tl.int64) * width
        total += tl.load(weight + at) * tl.load(stack + source + place, inside, 0.0)
    tl.store(out + row.to(tl.int64) * width + place, total, inside)


def mixed(indptr: Tensor, column: Tensor, weight: Tensor, models: Tensor) -> Tensor:
    """Return the product of sparse rows (indptr [R + 1], column and weight) with models [K, W]."""
    rows, width = len(indptr) - 1, models.shape[1]
    out = torch.empty(rows, width, dtype=models.dtype, device=models.device)
    blocks = -(-width // BLOCK)
    read = (part.contiguous() for part in (indptr, column, weight, models))
    if rows * blocks:
        mix_rows[(rows * blocks,)](*read, out, width, blocks, BLOCK=BLOCK)
    return out


@triton.jit(do_not_specialize=["stages"])
def mix_stages(
    first_row, target, begin, middle, column, weight, stack, mail, scratch, stages, width,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Take one block of columns through all stages; a barrier parts reading from writing."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < width
    for stage in range(stages):
        first, last = tl.load(first_row + stage), tl.load(first_row + stage + 1)
        for row in range(first, last):
            total = tl.zeros((BLOCK,), stack.dtype.element_ty)
            for at in range(tl.load(begin + row), tl.load(middle + row)):
                source = tl.load(column + at).to(tl.int64) * width
                total += tl.load(weight + at) * tl.load(stack + source + place, inside, 0.0)
            posted = tl.zeros((BLOCK,), stack.dtype.element_ty)
            for at in range(tl.load(middle + row), tl.load(begin + row + 1)):
                source = tl.load(column + at).to(tl.int64) * width
                posted += tl.load(weight + at) * tl.load(mail + source + place, inside, 0.0)
            into = (row - first).to(tl.int64) * width
            tl.store(scratch + into + place, total + posted, inside)
        tl.debug_barrier()
        for row in range(first, last):
            mixed = tl.load(scratch + (row - first).to(tl.int64) * width + place, inside, 0.0)
            tl.store(stack + tl.load(target + row).to(tl.int64) * width + place, mixed, inside)
        tl.debug_barrier()


def mix_in_sequence(
    rows: list[Tensor], weight: Tensor, models: Tensor, mail: Tensor, most_rows: int
) -> None:
    """Mix models [nodes, W] in place; see `dystop.simulator.mixing.deferred.Sequence`."""
    width, stages = models.shape[1], len(rows[0]) - 1
    scratch = torch.empty(most_rows, width, dtype=models.dtype, device=models.device)
    grid = (-(-width // SEQUENCE_BLOCK),)
    if width:
        mix_stages[grid](*rows, weight, models, mail, scratch, stages, width, BLOCK=SEQUENCE_BLOCK)
