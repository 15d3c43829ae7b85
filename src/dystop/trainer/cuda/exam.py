"""Examining a stack of small networks by the kernels: all models see the same samples."""

import torch
from torch import Tensor

from dystop.trainer.cuda import kernels
from dystop.trainer.cuda.chain import Stage
from dystop.trainer.cuda.desk import desk_for
from dystop.trainer.cuda.work import power, works_of
from dystop.trainer.evaluate import Evaluation, Exam, pieces

SAMPLES = 128  # seen at once; keeps what is between the layers near the cores


class ChainExam:
    """Examines up to `exam.chunk` models at once; keeps its buffers between examinations."""

    def __init__(self, exam: Exam, stages: tuple[Stage, ...], precision: str) -> None:
        self._stages, self._precision = stages, precision
        device = exam.samples.y.device
        self._set_up(exam, exam.chunk)
        self._x = torch.zeros(1, SAMPLES, *exam.samples.shape, device=device)
        self._y = torch.zeros(SAMPLES, dtype=torch.int64, device=device)

    def _set_up(self, exam: Exam, height: int) -> None:
        """Buffers for so many models."""
        sizes, shape = (exam.layout.width, 0, 0), (1, height, SAMPLES)
        self._desk = desk_for(sizes, shape, exam.samples.y.device)
        self._desk.count.fill_(SAMPLES)
        self._works = works_of(self._stages, self._desk, self._precision, trains=False)

    def __call__(self, exam: Exam, models: Tensor, counters: Tensor, index: Tensor) -> Evaluation:
        """Accuracy and loss of models [m, W] on the samples of this index."""
        rows = len(models)
        if rows > self._desk.height:
            self._set_up(exam, rows)
        self._desk.parameters[:rows] = models
        right = torch.zeros(rows, dtype=torch.int32, device=models.device)
        total = torch.zeros(rows, dtype=torch.float64, device=models.device)
        for some in pieces(len(index), SAMPLES):
            x, y = exam.samples.take(index[some])
            self._x[0, : len(y)], self._y[: len(y)] = x, y
            self._examine(rows, len(y), right, total)
        return Evaluation(
            right.cpu().numpy() / len(index),
            total.cpu().numpy() / len(index),
        )

    def _examine(self, rows: int, samples: int, right: Tensor, total: Tensor) -> None:
        x = self._x.expand(rows, *self._x.shape[1:])
        for work in self._works:
            x = work.forward(x, rows)
        classes = x.shape[2]
        kernels.examine[(rows,)](
            x, self._y, right, total, samples, BATCH=SAMPLES, CLASSES=classes, BLOCK_B=SAMPLES,
            BLOCK_C=power(classes, 2),
        )  # fmt: skip
