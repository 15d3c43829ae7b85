"""Examining a stack of small networks by the kernels: all models see the same samples.

A single model, such as the global one, sees as many samples at once as a whole stack does: small
pieces would leave the device waiting for launches. Its buffers are those of the stack.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dystop.training.backends.cuda import kernels
from dystop.training.backends.cuda.chain import Conv, Stage
from dystop.training.backends.cuda.graphs import (
    EagerRunner,
    GraphRecorder,
    GraphRunner,
    StaticBuffers,
    compile_together,
    launch,
    static_buffers,
)
from dystop.training.backends.cuda.layers import ConvWork, DenseWork, power, works_of
from dystop.training.device import download, finish
from dystop.training.evaluate import Awaited, EvalTask, Evaluated, Evaluation

SAMPLES = 128  # seen at once by a stack; keeps what is between the layers near the cores
WIDEST = 2**15  # samples seen at once by a single model
_POSITIONS = 2**31 - 1  # that a kernel can count in one buffer


@dataclass(frozen=True)
class EvalBuffers:
    """Where some rows are examined, a piece of the test set after the other."""

    desk: StaticBuffers  # its table [S, 1, b] has the samples of every piece
    works: list[ConvWork | DenseWork]
    x: Tensor  # [1, b, ...], the current piece
    y: Tensor  # [b] int32
    count: Tensor  # [1] int32, samples of it that count

    @property
    def batch(self) -> int:
        """Samples of a piece."""
        return self.desk.batch

    def lay(self, index: Tensor) -> int:
        """Deal the samples to the pieces, the last one filled up; returns how many pieces."""
        many = -(-len(index) // self.batch)
        table, counts = self.desk.table[:many].view(-1), self.desk.counts
        table[: len(index)] = index
        table[len(index) :] = 0
        counts[:many] = self.batch
        counts[many - 1 : many] = len(index) - (many - 1) * self.batch
        self.desk.step.zero_()
        return many


class ChainEvaluator:
    """Examines up to `exam.chunk` models at once; keeps buffers and recordings."""

    def __init__(self, exam: EvalTask, stages: tuple[Stage, ...], precision: str) -> None:
        self._stages, self._precision, self._samples = stages, precision, exam.samples
        channels = exam.samples.shape[0]
        self._scale = exam.samples.scale.reshape(-1).expand(channels).contiguous()
        self._shift = exam.samples.shift.reshape(-1).expand(channels).contiguous()
        self._set_up(exam, exam.chunk, len(exam.samples))

    def _set_up(self, exam: EvalTask, height: int, most: int) -> None:
        """Buffers for so many models and so many test samples; nothing recorded yet."""
        sizes, device = (exam.layout.width, 0, 0), exam.samples.y.device
        desk = static_buffers(sizes, (1, height, SAMPLES), device)
        works = works_of(self._stages, desk, self._precision, trains=False)
        self._most, self._right = most, torch.zeros(height, dtype=torch.int32, device=device)
        self._stack = self._room(desk, works, height, SAMPLES)
        wide = self._widest(height, most)
        self._single = self._room(desk, works, 1, wide)
        changing = (self._right, desk.total, desk.step, self._stack.count, self._single.count)
        on_cuda = device.type == "cuda"
        self._player: GraphRunner = (
            GraphRecorder(changing, compile_together) if on_cuda else EagerRunner()
        )

    def _widest(self, height: int, most: int) -> int:
        """Samples that a single model sees at once: whole blocks that fit the stack's buffers."""
        largest = max(_largest(stage) for stage in self._stages)
        room = min(height * SAMPLES, _POSITIONS // largest, WIDEST)
        return max(1, min(room // SAMPLES, -(-most // SAMPLES))) * SAMPLES

    def _room(
        self, desk: StaticBuffers, works: list[ConvWork | DenseWork], rows: int, batch: int
    ) -> EvalBuffers:
        """A room for so many rows and samples, inside the buffers of a stack."""
        where, many = desk.step.device, -(-self._most // batch)
        desk = replace(
            desk,
            parameters=desk.parameters[:rows],
            table=torch.zeros(many, 1, batch, dtype=torch.int32, device=where),
            counts=torch.zeros(many, 1, dtype=torch.int32, device=where),
            count=desk.count[:rows],
        )
        x = torch.zeros(1, batch, *self._samples.shape, device=where)
        y = torch.zeros(batch, dtype=torch.int32, device=where)
        count = torch.zeros(1, dtype=torch.int32, device=where)
        return EvalBuffers(desk, [work.viewed(desk) for work in works], x, y, count)

    def __call__(
        self, exam: EvalTask, models: Tensor, counters: Tensor, index: Tensor
    ) -> Evaluated:
        """Accuracy and loss of models [m, W] on the samples of this index; does not wait."""
        rows, height = len(models), self._stack.desk.height
        if rows > height or len(index) > self._most:
            finish(models.device)  # recordings that may still be played are thrown away
            self._set_up(exam, max(rows, height), max(len(index), self._most))
        room = self._single if rows == 1 else self._stack
        self._admit(models)
        pieces = room.lay(index)
        for _ in range(pieces):
            self._examine(room, rows)
        right, total = download(self._right[:rows]), download(room.desk.total[:rows])
        return Awaited(lambda: Evaluation(right() / len(index), total() / len(index)))

    def _admit(self, models: Tensor) -> None:
        """Put the models on the desk; rows without one are passed over."""
        desk, rows = self._stack.desk, len(models)
        desk.parameters[:rows] = models
        desk.count[:rows], desk.count[rows:] = 1, 0
        desk.total.zero_()
        self._right.zero_()

    def _examine(self, room: EvalBuffers, rows: int) -> None:
        """The next piece, for a few heights of the stack: powers of two."""
        high = min(1 << (rows - 1).bit_length(), room.desk.height)
        self._player.play(high, lambda: self._piece(room, high))

    def _piece(self, room: EvalBuffers, rows: int) -> None:
        x = self._gather(room).expand(rows, *room.x.shape[1:])
        for work in room.works:
            x = work.forward(x, rows)
        classes = x.shape[2]
        launch(
            kernels.examine, (rows,),
            x, room.y, room.count, self._right, room.desk.total, room.batch, CLASSES=classes,
            BLOCK_B=SAMPLES, BLOCK_C=power(classes, 2),
        )  # fmt: skip
        room.desk.step.add_(1)

    def _gather(self, room: EvalBuffers) -> Tensor:
        samples, desk, size = self._samples, room.desk, math.prod(self._samples.shape)
        launch(
            kernels.gather_samples, (1, room.batch),
            samples.x, samples.y, self._scale, self._shift, desk.table, desk.counts, desk.step,
            room.x, room.y, room.count, 1, room.batch, SIZE=size, PLANE=size // samples.shape[0],
            BLOCK=power(size, 64) // 4,
        )  # fmt: skip
        return room.x


def _largest(stage: Stage) -> int:
    """Numbers of one sample in the largest buffer before or behind a stage."""
    if isinstance(stage, Conv):
        return max(math.prod(stage.inputs), math.prod(stage.inner))
    return max(stage.inputs, stage.outputs)
