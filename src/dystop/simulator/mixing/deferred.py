"""Mixes that wait for each other and run as one sequence.

A GPU mixes two models in a microsecond, and the host takes a hundred to start it. A mix of few
rows therefore waits until somebody reads or writes its rows, or a wave begins. Then all mixes that
wait run in their order in one call. Every column of the models is independent of the others, so
that a block of columns goes through the whole sequence by itself, and a later mix reads what an
earlier one has written.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from dystop.acceleration import accelerated
from dystop.parallel import as_readonly, block_size, run_in_blocks
from dystop.plan import Mix
from dystop.simulator.mixing.product import LARGE
from dystop.simulator.mixing.stage import Sources
from dystop.simulator.model_stack import Models
from dystop.sparse import Bools, Floats, Ints
from dystop.training.device import on_device, upload

FEW_ROWS = 4  # of a stage that waits; a block of columns would go through many one by one
MAX_STAGES = 256  # that wait
MAX_MAIL_BYTES = 2**26  # of snapshots that wait with them


@dataclass(frozen=True)
class Sequence:
    """Stages of mixing in their order: all rows of a stage are read before one is written.

    Row r adds up `column[begin[r]:middle[r]]` of the models and, apart from that,
    `column[middle[r]:begin[r + 1]]` of the mail.
    """

    first_row: Ints  # [stages + 1]
    target: Ints  # [R], the node whose row is written
    begin: Ints  # [R + 1]
    middle: Ints  # [R]
    column: Ints  # [M]
    weight: Floats  # [M]

    @property
    def most_rows(self) -> int:
        """The rows of the largest stage."""
        return int((self.first_row[1:] - self.first_row[:-1]).max())

    def apply(self, models: Tensor, mail: Tensor) -> None:
        """Write all rows into the stack of models [nodes, W]; `mail` is a stack of snapshots."""
        run = self._on_cpu if models.device.type == "cpu" else self._on_device
        run(models, mail)

    def _on_cpu(self, models: Tensor, mail: Tensor) -> None:
        stack, snapshots = models.numpy(), as_readonly(mail.numpy())
        weight = as_readonly(self.weight.astype(stack.dtype))
        rows = tuple(as_readonly(part) for part in self._numbers())
        scratch = np.empty((self.most_rows, stack.shape[1]), stack.dtype)

        def mix(lo: int, hi: int) -> None:
            mix_sequence(rows, weight, stack, snapshots, scratch, lo, hi)

        width = stack.shape[1]
        is_large = len(self.column) * width >= LARGE
        run_in_blocks(mix, width, block_size(width, 4096) if is_large else max(width, 1))

    def _on_device(self, models: Tensor, mail: Tensor) -> None:
        from dystop.simulator.mixing.cuda import mix_in_sequence

        # One copy to the device: the bits of the weights travel as integers.
        parts = [*self._numbers(), self.weight.view(np.int64)]
        ends = np.cumsum([len(part) for part in parts])[:-1].tolist()
        with on_device(models.device):
            *rows, bits = upload(np.concatenate(parts), models.device).tensor_split(ends)
            weight = bits.view(torch.float64).to(models.dtype)
            mix_in_sequence(rows, weight, models, mail, self.most_rows)

    def _numbers(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        return self.first_row, self.target, self.begin, self.middle, self.column


@accelerated("dystop.simulator.mixing.cpu:mix_sequence")
def mix_sequence(
    rows: tuple[Ints, ...],
    weight: Floats,
    stack: Floats,
    mail: Floats,
    scratch: Floats,
    lo: int,
    hi: int,
) -> None:
    """Mix columns lo to hi of a stack in place; see `Sequence`."""
    first_row, target, begin, middle, column = rows
    for stage in range(len(first_row) - 1):
        here = range(first_row[stage], first_row[stage + 1])
        for place, row in enumerate(here):
            total, posted = np.zeros((2, hi - lo), stack.dtype)
            for at in range(begin[row], middle[row]):
                total += weight[at] * stack[column[at], lo:hi]
            for at in range(middle[row], begin[row + 1]):
                posted += weight[at] * mail[column[at], lo:hi]
            scratch[place, lo:hi] = total + posted
        for place, row in enumerate(here):
            stack[target[row], lo:hi] = scratch[place, lo:hi]


class WaitingMixes:
    """The mixes of the latest models that wait."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._row_bytes = models.latest[0].nbytes
        self._writes_more = not (models.finished is models.start is models.aggregated is None)
        self._is_written: Bools = np.zeros(len(models.latest), bool)
        self._stages: list[tuple[Mix, Ints, Ints, Floats]] = []  # and middle, column, weight
        self._places: dict[int, int] = {}  # of snapshots in the mail
        self._mail: list[Tensor] = []

    def __len__(self) -> int:
        return len(self._stages)

    def accepts(self, stage: Mix, sources: Sources) -> bool:
        """Return whether a mix may wait: a plain one of few rows, of which only the result counts.

        Other mixes look at more than the latest models and the mail, or write more than them.
        """
        if self._writes_more or stage.kind != "linear" or stage.compensation:
            return False
        if stage.carried is not None:
            return False
        if sources.sent.nodes(stage.kind):
            return False
        if not 0 < len(stage.receiver) <= FEW_ROWS:
            return False
        ends = stage.indptr.tolist()
        return all(begin < end for begin, end in pairwise(ends))

    def add(self, stage: Mix, sources: Sources) -> None:
        """Let a mix wait; the models that it reads are trained, or are results of those before."""
        column, weight, middle = stage.source, stage.weight, stage.indptr[1:]
        mailed = sources.mailed
        if np.count_nonzero(mailed):
            column = column.copy()
            column[mailed] = [self._place(k) for k in sources.snapshot[mailed].tolist()]
            order = np.lexsort((mailed, stage.row_of))  # of each row, the mail comes last
            column, weight = column[order], weight[order]
            middle = middle - np.bincount(stage.row_of[mailed], minlength=len(stage.receiver))
        self._stages.append((stage, middle, column, weight))
        self._is_written[stage.receiver] = True
        if len(self) >= MAX_STAGES or len(self._mail) * self._row_bytes > MAX_MAIL_BYTES:
            self.run()

    def _place(self, snapshot: int) -> int:
        if snapshot not in self._places:
            self._places[snapshot] = len(self._mail)
            self._mail.append(self._models.snapshots[snapshot])
        return self._places[snapshot]

    def write(self, nodes: Ints) -> bool:
        """Return whether a mix that waits writes the model of one of these nodes."""
        return bool(self._stages and np.count_nonzero(self._is_written[nodes]))

    def run(self) -> None:
        """Run all mixes that wait."""
        if not self._stages:
            return
        latest = self._models.latest
        mail = torch.stack(self._mail) if self._mail else latest[:0]
        self._sequence().apply(latest, mail)
        self._stages, self._mail, self._places = [], [], {}
        self._is_written[:] = False

    def _sequence(self) -> Sequence:
        mixes, middles, columns, weights = zip(*self._stages, strict=True)
        rows = [len(mix.receiver) for mix in mixes]
        ends = np.cumsum([len(column) for column in columns])
        offset = np.repeat([0, *ends[:-1].tolist()], rows)
        return Sequence(
            first_row=np.cumsum([0, *rows]),
            target=np.concatenate([mix.receiver for mix in mixes]),
            begin=np.concatenate(
                [np.concatenate([mix.indptr[:-1] for mix in mixes]) + offset, ends[-1:]]
            ),
            middle=np.concatenate(middles) + offset,
            column=np.concatenate(columns),
            weight=np.concatenate(weights),
        )
