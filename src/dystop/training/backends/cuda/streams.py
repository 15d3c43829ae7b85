"""The back end for large models on a CUDA device: several side by side, each on its own stream.

One mini-batch of one large model does not fill a device; several models side by side do. Every
stream has a queue of models and trains them one after another. The steps of all streams are
launched in turn, so that no stream waits for another, and only the end of the job waits for all.

A stream has buffers of one row and a CUDA graph for each size of mini-batch. The step of full
mini-batches may be compiled by torch. The rare sizes at the end of an epoch are captured without
compilation, which would take far longer than they will ever run.
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

from dystop.sparse import Floats, Ints
from dystop.training.backends.cuda.buffers import (
    StaticBuffers,
    model_sizes,
    static_buffers,
    table_filler,
)
from dystop.training.backends.cuda.graphs import EagerRunner, GraphRunner, StepRunner, new_stream
from dystop.training.device import autocast, download, finish
from dystop.training.local_steps.batches import Trainings
from dystop.training.problem import Job, Problem, Trained
from dystop.training.randomness import seed_generators

CAPTURE_STEPS = 50  # steps that could be taken while a graph for a new size is captured
MAX_STREAMS = 16  # each takes two of the 32 streams that torch has for a device
_DONE = object()

State = tuple[Tensor, Tensor, Tensor]
Loss = Callable[[State, Tensor, Tensor, Tensor], Tensor]


def loss_of(problem: Problem) -> Loss:
    """Return the mean loss of a mini-batch as a function of (model, address, x, y)."""
    # Read here: inside the function, torch would compile again for a data set of another size.
    device, precision, task = problem.device, problem.precision, problem.task

    def loss(state: State, address: Tensor, x: Tensor, y: Tensor) -> Tensor:
        named = problem.named(state, address)
        with autocast(device, precision):
            outputs = functional_call(problem.module, named, (x,))
        return task.loss(outputs.float(), y)

    return loss


class CompiledLoss:
    """A loss that torch compiles at the first call; if torch cannot, it runs uncompiled."""

    def __init__(self, loss: Loss, **options: Any) -> None:
        self._plain = loss
        self._best: Loss = torch.compile(loss, dynamic=False, **options)

    def __call__(self, state: State, address: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a mini-batch."""
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


class StreamRunner:
    """Trains one model at a time on one stream."""

    def __init__(self, problem: Problem, steps: int, loss: Loss) -> None:
        self.problem, self._loss = problem, loss
        sizes, shape = model_sizes(problem.layout), (steps, 1, problem.batch)
        self.buffers: StaticBuffers = static_buffers(
            sizes, shape, problem.device, problem.optimiser
        )
        on_cuda = problem.device.type == "cuda"
        self._stream = new_stream(problem.device) if on_cuda else None
        self._runner: StepRunner = GraphRunner(self.buffers.changing) if on_cuda else EagerRunner()
        self.captured: set[int] = set()  # sizes of mini-batches that have a graph

    def active(self) -> AbstractContextManager[object]:
        """Return a context in which work goes to this stream."""
        return torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()

    def wait(self) -> None:
        """Make this stream wait for the work launched so far."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self.problem.device))

    def join(self) -> None:
        """Make the work launched from now on wait for this stream."""
        if self._stream is not None:
            torch.cuda.current_stream(self.problem.device).wait_stream(self._stream)

    def train_batch(self, count: int) -> None:
        """Train on the next mini-batch, which has `count` samples."""
        self.captured.add(count)
        self._runner.run(count, lambda: self._step(count))

    def _step(self, count: int) -> None:
        problem, buffers = self.problem, self.buffers
        index = buffers.table.index_select(0, buffers.step)[0, 0, :count].long()
        address = problem.batch_addresses(buffers.address, buffers.step)[0]
        x, y = problem.take(index, address)
        leaf = buffers.parameters[0].detach().requires_grad_()
        mean_loss = self._loss if count == problem.batch else loss_of(problem)
        state = (leaf, buffers.kept[0], buffers.counters[0])
        loss = mean_loss(state, address, _channels_last(problem, x), y)
        (gradient,) = torch.autograd.grad(loss, leaf)
        if problem.optimiser.changes_numbers:
            buffers.next_numbers()
        parameters = buffers.parameters[0]
        if problem.optimiser.is_plain:
            parameters.addcmul_(gradient, buffers.rate, value=-1)  # one pass over memory
        else:
            problem.optimiser.step(parameters, gradient, buffers.moments[0], buffers.now[:, 0])
        buffers.total.add_(loss.detach() * count)
        buffers.step.add_(1)


def _channels_last(problem: Problem, x: Tensor) -> Tensor:
    """Return images with their channels last, which the matrix units want for bfloat16."""
    if problem.precision != "bfloat16" or x.dim() != 4:
        return x
    return x.contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class StreamJob:
    """All rows of a job, as the streams read and write them."""

    job: Job
    counts: Ints  # [A, S], samples of every mini-batch
    table: Tensor  # [S, A, b]
    numbers: Tensor  # [A, S, n], of the optimiser
    moments: Tensor | None  # [A, n P]
    addresses: Tensor  # [A]
    models: Tensor  # [A, W]
    counters: Tensor  # [A, C]
    total: Tensor  # [A]


class StreamBackend:
    """Trains every row of a job on one of the streams; keeps graphs between jobs."""

    def __init__(self, problem: Problem, streams: int) -> None:
        self._problem, self._count = problem, min(streams, MAX_STREAMS)
        self._fill_table = table_filler(problem)
        loss = loss_of(problem)
        compiles = problem.compiles and problem.device.type == "cuda"
        self._loss: Loss = CompiledLoss(loss) if compiles else loss
        self._allocate(int(-(-problem.shards.sizes.max(initial=1) // problem.batch)))

    def _allocate(self, steps: int) -> None:
        """Make streams with buffers for so many steps; no graph is captured yet."""
        self._steps = steps
        self._streams = [StreamRunner(self._problem, steps, self._loss) for _ in range(self._count)]

    def __call__(self, problem: Problem, job: Job) -> Trained:
        """Train every row of the job."""
        sizes = problem.shards.sizes[job.workers]
        steps = np.where(sizes > 0, job.steps, 0)
        trainings = Trainings(job.workers, job.versions, sizes, steps)
        counts = trainings.counts(problem.batch)
        if counts.shape[1] > self._steps:
            finish(problem.device)  # graphs that may still run are about to be dropped
            self._allocate(2 * counts.shape[1])
        stream_job = self._stream_job(job, trainings, counts)
        self._run(stream_job)
        total = download(stream_job.total)

        def losses() -> Floats:
            with np.errstate(invalid="ignore"):
                mean: Floats = total() / counts.sum(1)
            return mean

        trained = (stream_job.models, stream_job.counters)
        return Trained(*trained, losses, int(counts.sum()), stream_job.moments)

    def _stream_job(self, job: Job, trainings: Trainings, counts: Ints) -> StreamJob:
        problem = self._problem
        shape = (counts.shape[1], len(counts), problem.batch)
        table = torch.zeros(shape, dtype=torch.int32, device=problem.device)
        self._fill_table(trainings, table)
        numbers = problem.step_numbers(job, counts.shape[1])
        return StreamJob(
            job, counts, table, numbers, job.moments,
            problem.addresses(job.workers, job.versions), job.models.clone(), job.counters.clone(),
            torch.zeros(len(counts), dtype=torch.float64, device=problem.device),
        )  # fmt: skip

    def _run(self, job: StreamJob) -> None:
        """Run the queues of all streams, one step of each in turn."""
        queues = queues_for(job.counts, [stream.captured for stream in self._streams])
        for stream in self._streams:
            stream.wait()
        running = [
            self._run_queue(stream, rows, job)
            for stream, rows in zip(self._streams, queues, strict=True)
        ]
        while running:
            running = [queue for queue in running if next(queue, _DONE) is not _DONE]
        for stream in self._streams:
            stream.join()

    def _run_queue(
        self, stream: StreamRunner, rows: Sequence[int], job: StreamJob
    ) -> Iterator[None]:
        """Train the rows of one stream, one after another; pause after every step."""
        buffers = stream.buffers
        for row in rows:
            one = slice(row, row + 1)
            with stream.active():
                buffers.load(job.models[one], job.counters[one], job.addresses[one])
                moments = None if job.moments is None else job.moments[one]
                buffers.load_optimiser(moments, job.numbers[one])
                buffers.table[: len(job.table), 0] = job.table[:, row]
            for step, count in enumerate(job.counts[row].tolist()):
                if count:
                    with stream.active(), self._seeded(job.job, row, step):
                        stream.train_batch(count)
                    yield
            with stream.active():
                job.models[row], job.counters[row] = buffers.models(1)[0], buffers.counters[0]
                job.total[row] = buffers.total[0]
                if job.moments is not None:
                    job.moments[row] = buffers.moments[0]

    def _seeded(self, job: Job, row: int, step: int) -> AbstractContextManager[None]:
        """Seed torch's generators by worker, training and step if the module draws from them."""
        if not self._problem.draws:
            return nullcontext()
        address = (int(job.workers[row]), int(job.versions[row]), step)
        return seed_generators(self._problem.device, self._problem.seed, "dropout", *address)


def queues_for(counts: Ints, captured: Sequence[set[int]]) -> list[list[int]]:
    """Assign rows to streams, the longest row first, each to the stream that ends it first.

    The capture of a graph for a new size of mini-batch takes as long as many steps, so rows with
    the same sizes gather on the same stream.

    Args:
        counts: Samples of every mini-batch [A, S], 0 after a row's last one.
        captured: Sizes for which each stream has a graph.

    >>> queues_for(np.array([[4, 4, 1], [4, 2, 0], [4, 1, 0]]), [{4, 1}, {4}])
    [[0, 2], [1]]
    """
    queues: list[list[int]] = [[] for _ in captured]
    known, busy = [set(sizes) for sizes in captured], [0] * len(captured)
    steps = (counts > 0).sum(1)
    for row in np.argsort(-steps, kind="stable").tolist():
        if not steps[row]:
            break
        sizes = set(counts[row].tolist()) - {0}
        ends = [
            load + int(steps[row]) + CAPTURE_STEPS * len(sizes - seen)
            for load, seen in zip(busy, known, strict=True)
        ]
        stream = ends.index(min(ends))
        queues[stream].append(row)
        busy[stream] = ends[stream]
        known[stream] |= sizes
    return queues
