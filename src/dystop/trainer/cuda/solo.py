"""The back end for large models on a CUDA device: each in its own lane, replaying its own step.

One mini-batch of one large model does not fill a device, but several models side by side do. A
lane has a stream, a desk of one row, and a recording for every size of mini-batch that occurs. The
step of full mini-batches may be compiled; the rare sizes at the end of an epoch are recorded as
they are, since compiling takes far longer than they will ever run.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from dystop.sparse import Floats, Ints
from dystop.trainer.cuda.desk import Desk, desk_for
from dystop.trainer.cuda.record import Live, Player, Recorder, stream_on
from dystop.trainer.cuda.stacks import deals
from dystop.trainer.device import autocast, download, finish, upload
from dystop.trainer.orders import step_counts
from dystop.trainer.problem import Job, Problem, Trained
from dystop.trainer.seeding import addressed

State = tuple[Tensor, Tensor, Tensor]
Loss = Callable[[State, Tensor, Tensor, Tensor], Tensor]


class Lane:
    """One model at a time on one stream."""

    def __init__(self, problem: Problem, steps: int, loss: Loss) -> None:
        self.problem, self._compiled = problem, loss
        layout = problem.layout
        sizes = (layout.parameters, layout.width - layout.parameters, layout.counters)
        self.desk: Desk = desk_for(sizes, (steps, 1, problem.batch), problem.device)
        on_cuda = problem.device.type == "cuda"
        self._stream = stream_on(problem.device) if on_cuda else None
        self._player: Player = Recorder(self.desk.changing) if on_cuda else Live()

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
        self._player.play(count, lambda: self._step(count))

    def _step(self, count: int) -> None:
        problem, desk = self.problem, self.desk
        index = desk.table.index_select(0, desk.step)[0, 0, :count].long()
        x, y = problem.samples.take(index)
        leaf = desk.parameters[0].detach().requires_grad_()
        loss_of = self._compiled if count == problem.batch else _loss(problem)
        state = (leaf, desk.kept[0], desk.counters[0])
        place = problem.places(desk.address, desk.step)[0]
        loss = loss_of(state, place, _spread(problem, x), y)
        (gradient,) = torch.autograd.grad(loss, leaf)
        desk.parameters[0].addcmul_(gradient, desk.rate, value=-1)  # one pass over the numbers
        desk.total.add_(loss.detach() * count)
        desk.step.add_(1)


def _spread(problem: Problem, x: Tensor) -> Tensor:
    """Images with their channels last, as the matrix units of bfloat16 want them."""
    if problem.precision != "bfloat16" or x.dim() != 4:
        return x
    return x.contiguous(memory_format=torch.channels_last)


def _loss(problem: Problem) -> Loss:
    """Mean loss of a mini-batch as a function of (model, address, x, y)."""

    def loss(state: State, address: Tensor, x: Tensor, y: Tensor) -> Tensor:
        named = problem.named(state, address)
        with autocast(problem.device, problem.precision):
            logits = functional_call(problem.module, named, (x,))
        return F.cross_entropy(logits.float(), y)

    return loss


class Compiled:
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


class Solo:
    """Trains every row of a job in one of the lanes; keeps recordings between jobs."""

    def __init__(self, problem: Problem, lanes: int) -> None:
        self._problem, self._count = problem, lanes
        self._deal = deals(problem)
        loss = _loss(problem)
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
        shape = (counts.shape[1], len(steps), problem.batch)
        table = torch.zeros(shape, dtype=torch.int32, device=problem.device)
        self._deal((job.workers, job.versions), (sizes, steps), table)
        models, counters = job.models.clone(), job.counters.clone()
        total = torch.zeros(len(steps), dtype=torch.float64, device=problem.device)
        order = np.argsort(-steps, kind="stable")
        for first in range(0, len(order), self._count):
            rows = order[first : first + self._count]
            self._wave(job, rows, counts, (table, models, counters, total))
        summed = download(total)

        def losses() -> Floats:
            with np.errstate(invalid="ignore"):
                mean: Floats = summed() / counts.sum(1)
            return mean

        return Trained(models, counters, losses, int(counts.sum()))

    def _wave(
        self, job: Job, rows: Ints, counts: Ints, out: tuple[Tensor, Tensor, Tensor, Tensor]
    ) -> None:
        """Train as many rows as there are lanes, step by step in turn."""
        table, models, counters, total = out
        addresses = self._problem.addresses(job.workers[rows], job.versions[rows])
        pairs = list(zip(self._lanes, rows.tolist(), strict=False))
        for place, (lane, row) in enumerate(pairs):
            rate = self._problem.learning_rate * job.rates[row : row + 1]
            one = slice(row, row + 1)
            rates = upload(rate.astype(np.float32), models.device)
            lane.desk.lay(models[one], counters[one], rates, addresses[place])
            lane.desk.table[: len(table), 0] = table[:, row]
            lane.wait()
        for k in range(counts.shape[1]):
            for lane, row in pairs:
                if counts[row, k]:
                    with lane.active(), self._randomness(job, row, k):
                        lane.play(int(counts[row, k]))
        for lane, row in pairs:
            lane.join()
            models[row], counters[row] = lane.desk.models(1)[0], lane.desk.counters[0]
            total[row] = lane.desk.total[0]

    def _randomness(self, job: Job, row: int, step: int) -> AbstractContextManager[None]:
        """What the module draws from torch is addressed by worker, training and step too."""
        if not self._problem.draws:
            return nullcontext()
        address = (int(job.workers[row]), int(job.versions[row]), step)
        return addressed(self._problem.device, self._problem.seed, "dropout", *address)
