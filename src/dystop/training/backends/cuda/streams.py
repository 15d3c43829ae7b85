"""A lane: one large model at a time, replaying its own step on a stream of its own.

A lane has a stream, a desk of one row, and a recording for every size of mini-batch that occurs.
The step of full mini-batches may be compiled; the rare sizes at the end of an epoch are recorded
as they are, since compiling takes far longer than they will ever run.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from dystop.sparse import Floats, Ints
from dystop.training.backends.cuda.graphs import (
    EagerRunner,
    GraphRecorder,
    GraphRunner,
    StaticBuffers,
    static_buffers,
    stream_on,
)
from dystop.training.backends.cuda.stacks import deals
from dystop.training.batches import step_counts
from dystop.training.device import autocast, download, finish, upload
from dystop.training.problem import Job, Problem, Trained
from dystop.training.randomness import addressed

State = tuple[Tensor, Tensor, Tensor]
Loss = Callable[[State, Tensor, Tensor, Tensor], Tensor]


class StreamRunner:
    """One model at a time on one stream."""

    def __init__(self, problem: Problem, steps: int, loss: Loss) -> None:
        self.problem, self._compiled = problem, loss
        layout = problem.layout
        sizes = (layout.parameters, layout.width - layout.parameters, layout.counters)
        self.desk: StaticBuffers = static_buffers(sizes, (steps, 1, problem.batch), problem.device)
        on_cuda = problem.device.type == "cuda"
        self._stream = stream_on(problem.device) if on_cuda else None
        self._player: GraphRunner = GraphRecorder(self.desk.changing) if on_cuda else EagerRunner()
        self.sizes: set[int] = set()  # of mini-batches that were met before

    def active(self) -> AbstractContextManager[object]:
        """Work inside goes to the lane's stream."""
        return torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()

    def wait(self) -> None:
        """Let the lane begin only after what was asked for before."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.problem.device))

    def join(self) -> None:
        """Let what is asked for from now on begin only after the lane's work."""
        if self._stream is not None:
            torch.cuda.current_stream(self.problem.device).wait_stream(self._stream)

    def play(self, count: int) -> None:
        """The next mini-batch, which has `count` samples."""
        self.sizes.add(count)
        self._player.play(count, lambda: self._step(count))

    def _step(self, count: int) -> None:
        problem, desk = self.problem, self.desk
        index = desk.table.index_select(0, desk.step)[0, 0, :count].long()
        x, y = problem.samples.take(index)
        leaf = desk.parameters[0].detach().requires_grad_()
        asked = self._compiled if count == problem.batch else loss_of(problem)
        state = (leaf, desk.kept[0], desk.counters[0])
        place = problem.places(desk.address, desk.step)[0]
        loss = asked(state, place, _spread(problem, x), y)
        (gradient,) = torch.autograd.grad(loss, leaf)
        desk.parameters[0].addcmul_(gradient, desk.rate, value=-1)  # one pass over the numbers
        desk.total.add_(loss.detach() * count)
        desk.step.add_(1)


def _spread(problem: Problem, x: Tensor) -> Tensor:
    """Images with their channels last, as the matrix units of bfloat16 want them."""
    if problem.precision != "bfloat16" or x.dim() != 4:
        return x
    return x.contiguous(memory_format=torch.channels_last)


def loss_of(problem: Problem) -> Loss:
    """Mean loss of a mini-batch as a function of (model, address, x, y)."""
    # Asked for inside, they would have the compiler begin again for a data set of another size.
    device, precision = problem.device, problem.precision

    def loss(state: State, address: Tensor, x: Tensor, y: Tensor) -> Tensor:
        named = problem.named(state, address)
        with autocast(device, precision):
            logits = functional_call(problem.module, named, (x,))
        return F.cross_entropy(logits.float(), y)

    return loss


class CompiledStep:
    """A loss that is compiled at its first call, or stays as it is where that is not possible."""

    def __init__(self, loss: Loss, **options: Any) -> None:
        self._plain = loss
        self._best: Loss = torch.compile(loss, dynamic=False, **options)

    def __call__(self, state: State, address: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Mean loss of a mini-batch."""
        try:
            return self._best(state, address, x, y)
        except RuntimeError as error:
            from torch._dynamo.exc import BackendCompilerFailed  # slow to import

            if not isinstance(error, BackendCompilerFailed):
                raise
            reason = " ".join(str(error).split("\n")[:2])
            warnings.warn(
                f"torch could not compile this model, so it trains more slowly ({reason}); "
                f"training.compile = false avoids the attempt",
                stacklevel=2,
            )
            self._best = self._plain
            return self._plain(state, address, x, y)


# MERGED: The back end for large models on a CUDA device: some side by side, each in a lane of its
#   own. One mini-batch of one large model does not fill a device, but several models side by side
#   do. Every lane works through a queue of models. Nobody waits for another lane: their steps are
#   asked for in turn, and only the end of the job waits for all.


RECORDING = 50  # steps that could be taken while a new size of mini-batch is recorded
MOST = 16  # lanes: each takes two streams, and torch has 32 of a device before they come again
_DONE = object()


@dataclass(frozen=True)
class StreamJob:
    """What the lanes read and where they write, all rows of a job."""

    job: Job
    counts: Ints  # [A, S], samples of every mini-batch
    table: Tensor  # [S, A, b]
    rates: Tensor  # [A]
    addresses: Tensor  # [A]
    models: Tensor  # [A, W]
    counters: Tensor  # [A, C]
    total: Tensor  # [A]


class StreamBackend:
    """Trains every row of a job in one of the lanes; keeps recordings between jobs."""

    def __init__(self, problem: Problem, lanes: int) -> None:
        self._problem, self._count = problem, min(lanes, MOST)
        self._deal = deals(problem)
        loss = loss_of(problem)
        compiles = problem.compiles and problem.device.type == "cuda"
        self._loss: Loss = CompiledStep(loss) if compiles else loss
        sizes = problem.shards.sizes
        self._set_up(int(-(-sizes.max(initial=1) // problem.batch)))

    def _set_up(self, steps: int) -> None:
        self._steps = steps
        self._lanes = [StreamRunner(self._problem, steps, self._loss) for _ in range(self._count)]

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

    def _laid_out(self, job: Job, counts: Ints, work: tuple[Ints, Ints]) -> StreamJob:
        problem = self._problem
        shape = (counts.shape[1], len(counts), problem.batch)
        table = torch.zeros(shape, dtype=torch.int32, device=problem.device)
        self._deal((job.workers, job.versions), work, table)
        rates = (problem.learning_rate * job.rates).astype(np.float32)
        return StreamJob(
            job, counts, table, upload(rates, problem.device),
            problem.addresses(job.workers, job.versions), job.models.clone(), job.counters.clone(),
            torch.zeros(len(counts), dtype=torch.float64, device=problem.device),
        )  # fmt: skip

    def _work(self, sheets: StreamJob) -> None:
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

    def _through(
        self, lane: StreamRunner, rows: Sequence[int], sheets: StreamJob
    ) -> Iterator[None]:
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
