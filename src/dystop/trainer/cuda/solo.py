"""The back end for large models on a CUDA device: some side by side, each in a lane of its own.

One mini-batch of one large model does not fill a device, but several models side by side do. Every
lane works through a queue of models. Nobody waits for another lane: their steps are asked for in
turn, and only the end of the job waits for all.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dystop.sparse import Floats, Ints
from dystop.trainer.cuda.lane import Compiled, Lane, Loss, loss_of
from dystop.trainer.cuda.stacks import deals
from dystop.trainer.device import download, finish, upload
from dystop.trainer.orders import step_counts
from dystop.trainer.problem import Job, Problem, Trained
from dystop.trainer.seeding import addressed

RECORDING = 50  # steps that could be taken while a new size of mini-batch is recorded
MOST = 16  # lanes: each takes two streams, and torch has 32 of a device before they come again
_DONE = object()


@dataclass(frozen=True)
class Sheets:
    """What the lanes read and where they write, all rows of a job."""

    job: Job
    counts: Ints  # [A, S], samples of every mini-batch
    table: Tensor  # [S, A, b]
    rates: Tensor  # [A]
    addresses: Tensor  # [A]
    models: Tensor  # [A, W]
    counters: Tensor  # [A, C]
    total: Tensor  # [A]


class Solo:
    """Trains every row of a job in one of the lanes; keeps recordings between jobs."""

    def __init__(self, problem: Problem, lanes: int) -> None:
        self._problem, self._count = problem, min(lanes, MOST)
        self._deal = deals(problem)
        loss = loss_of(problem)
        compiles = problem.compiles and problem.device.type == "cuda"
        self._loss: Loss = Compiled(loss) if compiles else loss
        sizes = problem.shards.sizes
        self._set_up(int(-(-sizes.max(initial=1) // problem.batch)))

    def _set_up(self, steps: int) -> None:
        self._steps = steps
        self._lanes = [Lane(self._problem, steps, self._loss) for _ in range(self._count)]

    def __call__(self, problem: Problem, job: Job) -> Trained:
        """Train every row of the job."""
        sizes = problem.shards.sizes[job.workers]
        steps = np.where(sizes > 0, job.steps, 0)
        counts = step_counts(sizes, steps, problem.batch)
        if counts.shape[1] > self._steps:
            finish(problem.device)  # recordings that may still be played are thrown away
            self._set_up(2 * counts.shape[1])
        sheets = self._laid_out(job, counts, (sizes, steps))
        self._work(sheets)
        summed = download(sheets.total)

        def losses() -> Floats:
            with np.errstate(invalid="ignore"):
                mean: Floats = summed() / counts.sum(1)
            return mean

        return Trained(sheets.models, sheets.counters, losses, int(counts.sum()))

    def _laid_out(self, job: Job, counts: Ints, work: tuple[Ints, Ints]) -> Sheets:
        problem = self._problem
        shape = (counts.shape[1], len(counts), problem.batch)
        table = torch.zeros(shape, dtype=torch.int32, device=problem.device)
        self._deal((job.workers, job.versions), work, table)
        rates = (problem.learning_rate * job.rates).astype(np.float32)
        return Sheets(
            job, counts, table, upload(rates, problem.device),
            problem.addresses(job.workers, job.versions), job.models.clone(), job.counters.clone(),
            torch.zeros(len(counts), dtype=torch.float64, device=problem.device),
        )  # fmt: skip

    def _work(self, sheets: Sheets) -> None:
        """All lanes through their queues, a step of each in turn."""
        queues = queues_for(sheets.counts, [lane.sizes for lane in self._lanes])
        for lane in self._lanes:
            lane.wait()
        turns = [
            self._through(lane, rows, sheets)
            for lane, rows in zip(self._lanes, queues, strict=True)
        ]
        while turns:
            turns = [turn for turn in turns if next(turn, _DONE) is not _DONE]
        for lane in self._lanes:
            lane.join()

    def _through(self, lane: Lane, rows: Sequence[int], sheets: Sheets) -> Iterator[None]:
        """One lane's rows, one after the other; stops after every step."""
        for row in rows:
            one = slice(row, row + 1)
            with lane.active():
                lane.desk.lay(
                    sheets.models[one], sheets.counters[one], sheets.rates[one],
                    sheets.addresses[one],
                )  # fmt: skip
                lane.desk.table[: len(sheets.table), 0] = sheets.table[:, row]
            for step, count in enumerate(sheets.counts[row].tolist()):
                if count:
                    with lane.active(), self._randomness(sheets.job, row, step):
                        lane.play(count)
                    yield
            with lane.active():
                sheets.models[row], sheets.counters[row] = (
                    lane.desk.models(1)[0], lane.desk.counters[0],
                )  # fmt: skip
                sheets.total[row] = lane.desk.total[0]

    def _randomness(self, job: Job, row: int, step: int) -> AbstractContextManager[None]:
        """What the module draws from torch is addressed by worker, training and step too."""
        if not self._problem.draws:
            return nullcontext()
        address = (int(job.workers[row]), int(job.versions[row]), step)
        return addressed(self._problem.device, self._problem.seed, "dropout", *address)


def queues_for(counts: Ints, met: Sequence[set[int]]) -> list[list[int]]:
    """Rows for every lane, the longest first, each where it would be done first.

    A lane has to record a size of mini-batch that it has not met, which takes as long as many
    steps, so rows of the same sizes gather in the same lane.

    Args:
        counts: Samples of every mini-batch [A, S], 0 behind a row's last one.
        met: Sizes that each lane knows.

    >>> queues_for(np.array([[4, 4, 1], [4, 2, 0], [4, 1, 0]]), [{4, 1}, {4}])
    [[0, 2], [1]]
    """
    queues: list[list[int]] = [[] for _ in met]
    known, busy = [set(sizes) for sizes in met], [0] * len(met)
    steps = (counts > 0).sum(1)
    for row in np.argsort(-steps, kind="stable").tolist():
        if not steps[row]:
            break
        sizes = set(counts[row].tolist()) - {0}
        ends = [
            load + int(steps[row]) + RECORDING * len(sizes - seen)
            for load, seen in zip(busy, known, strict=True)
        ]
        lane = ends.index(min(ends))
        queues[lane].append(row)
        busy[lane] = ends[lane]
        known[lane] |= sizes
    return queues
