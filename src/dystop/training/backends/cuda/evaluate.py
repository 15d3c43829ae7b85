"""Evaluation of a stack of small networks by the kernels: all models see the same samples.

A single model, such as the global one, sees as many samples at once as a whole stack does: with
small batches the device would wait for launches. It uses the memory of the stack's buffers.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dystop.training.backends.cuda import kernels
from dystop.training.backends.cuda.buffers import StaticBuffers, static_buffers
from dystop.training.backends.cuda.graphs import (
    EagerRunner,
    GraphRunner,
    StepRunner,
    compile_together,
    launch,
)
from dystop.training.backends.cuda.stage_passes import (
    ConvPass,
    LinearPass,
    passes_of,
    power_of_two,
)
from dystop.training.backends.cuda.stages import ConvStage, Stage
from dystop.training.device import download, finish
from dystop.training.evaluate import EvalTask, Evaluated, Evaluation, PendingEvaluation

STACK_BATCH = 128  # samples in one batch of a stack; small activations stay in the caches
MAX_BATCH = 2**15  # samples in one batch of a single model
_MAX_ELEMENTS = 2**31 - 1  # that a kernel can index in one buffer


@dataclass(frozen=True)
class EvalBuffers:
    """The buffers of an evaluation, which goes through the test set batch by batch."""

    static: StaticBuffers  # its table [S, 1, b] holds the samples of every batch
    passes: list[ConvPass | LinearPass]
    x: Tensor  # [1, b, ...], the current batch
    y: Tensor  # [b] int32
    count: Tensor  # [1] int32, samples of the current batch

    @property
    def batch(self) -> int:
        """Samples of a full batch."""
        return self.static.batch

    def load(self, index: Tensor) -> int:
        """Cut the samples of an index into batches; return the number of batches."""
        batches = -(-len(index) // self.batch)
        table, counts = self.static.table[:batches].view(-1), self.static.counts
        table[: len(index)] = index
        table[len(index) :] = 0
        counts[:batches] = self.batch
        counts[batches - 1 : batches] = len(index) - (batches - 1) * self.batch
        self.static.step.zero_()
        return batches


class StageEvaluator:
    """Evaluates up to `task.chunk` models at once; keeps buffers and graphs between calls."""

    def __init__(self, task: EvalTask, stages: tuple[Stage, ...], precision: str) -> None:
        self._stages, self._precision, self._samples = stages, precision, task.samples
        channels = task.samples.shape[0]
        self._scale = task.samples.scale.reshape(-1).expand(channels).contiguous()
        self._shift = task.samples.shift.reshape(-1).expand(channels).contiguous()
        self._allocate(task, task.chunk, len(task.samples))

    def _allocate(self, task: EvalTask, height: int, samples: int) -> None:
        """Allocate buffers for so many models and test samples; no graph is captured yet."""
        sizes, device = (task.layout.width, 0, 0), task.samples.y.device
        static = static_buffers(sizes, (1, height, STACK_BATCH), device)
        passes = passes_of(self._stages, static, self._precision, trains=False)
        self._capacity = samples
        self._correct = torch.zeros(height, dtype=torch.int32, device=device)
        self._stack = self._eval_buffers(static, passes, height, STACK_BATCH)
        self._single = self._eval_buffers(static, passes, 1, self._single_batch(height, samples))
        changing = (
            self._correct, static.total, static.step, self._stack.count, self._single.count,
        )  # fmt: skip
        on_cuda = device.type == "cuda"
        self._runner: StepRunner = (
            GraphRunner(changing, compile_together) if on_cuda else EagerRunner()
        )

    def _single_batch(self, height: int, samples: int) -> int:
        """Return the batch of a single model: whole blocks that fit the buffers of the stack."""
        largest = max(_largest_volume(stage) for stage in self._stages)
        fitting = min(height * STACK_BATCH, _MAX_ELEMENTS // largest, MAX_BATCH)
        return max(1, min(fitting // STACK_BATCH, -(-samples // STACK_BATCH))) * STACK_BATCH

    def _eval_buffers(
        self, static: StaticBuffers, passes: list[ConvPass | LinearPass], rows: int, batch: int
    ) -> EvalBuffers:
        """Return buffers for so many rows and samples, in the memory of the stack's buffers."""
        device, batches = static.step.device, -(-self._capacity // batch)
        static = replace(
            static,
            parameters=static.parameters[:rows],
            table=torch.zeros(batches, 1, batch, dtype=torch.int32, device=device),
            counts=torch.zeros(batches, 1, dtype=torch.int32, device=device),
            count=static.count[:rows],
        )
        x = torch.zeros(1, batch, *self._samples.shape, device=device)
        y = torch.zeros(batch, dtype=torch.int32, device=device)
        count = torch.zeros(1, dtype=torch.int32, device=device)
        return EvalBuffers(static, [stage.resized(static) for stage in passes], x, y, count)

    def __call__(
        self, task: EvalTask, models: Tensor, counters: Tensor, index: Tensor
    ) -> Evaluated:
        """Return accuracy and loss of models [m, W] on these samples, without waiting for them."""
        rows, height = len(models), self._stack.static.height
        if rows > height or len(index) > self._capacity:
            finish(models.device)  # graphs that may still run are about to be dropped
            self._allocate(task, max(rows, height), max(len(index), self._capacity))
        buffers = self._single if rows == 1 else self._stack
        self._load_models(models)
        for _ in range(buffers.load(index)):
            self._evaluate_batch(buffers, rows)
        correct, total = download(self._correct[:rows]), download(buffers.static.total[:rows])
        return PendingEvaluation(lambda: Evaluation(correct() / len(index), total() / len(index)))

    def _load_models(self, models: Tensor) -> None:
        """Copy the models into the buffers; the kernels skip rows without a model."""
        static, rows = self._stack.static, len(models)
        static.parameters[:rows] = models
        static.count[:rows], static.count[rows:] = 1, 0
        static.total.zero_()
        self._correct.zero_()

    def _evaluate_batch(self, buffers: EvalBuffers, rows: int) -> None:
        """Evaluate the next batch; graphs exist for a few heights, the powers of two."""
        height = min(1 << (rows - 1).bit_length(), buffers.static.height)
        self._runner.run(height, lambda: self._step(buffers, height))

    def _step(self, buffers: EvalBuffers, rows: int) -> None:
        x = self._gather(buffers).expand(rows, *buffers.x.shape[1:])
        for stage in buffers.passes:
            x = stage.forward(x, rows)
        classes = x.shape[2]
        launch(
            kernels.evaluate, (rows,),
            x, buffers.y, buffers.count, self._correct, buffers.static.total, buffers.batch,
            CLASSES=classes, BLOCK_B=STACK_BATCH, BLOCK_C=power_of_two(classes, 2),
        )  # fmt: skip
        buffers.static.step.add_(1)

    def _gather(self, buffers: EvalBuffers) -> Tensor:
        samples, static, size = self._samples, buffers.static, math.prod(self._samples.shape)
        launch(
            kernels.gather_samples, (1, buffers.batch),
            samples.x, samples.y, self._scale, self._shift, static.table, static.counts,
            static.step, buffers.x, buffers.y, buffers.count, 1, buffers.batch, SIZE=size,
            PLANE=size // samples.shape[0], BLOCK=power_of_two(size, 64) // 4,
        )  # fmt: skip
        return buffers.x


def _largest_volume(stage: Stage) -> int:
    """Return the numbers of one sample in the largest buffer of a stage."""
    if isinstance(stage, ConvStage):
        return max(math.prod(stage.inputs), math.prod(stage.convolved))
    return max(stage.inputs, stage.outputs)
