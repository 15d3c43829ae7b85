"""A lane: one large model at a time, replaying its own step on a stream of its own.

A lane has a stream, a desk of one row, and a recording for every size of mini-batch that occurs.
The step of full mini-batches may be compiled; the rare sizes at the end of an epoch are recorded
as they are, since compiling takes far longer than they will ever run.
"""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from dystop.trainer.cuda.desk import Desk, desk_for
from dystop.trainer.cuda.record import Live, Player, Recorder, stream_on
from dystop.trainer.device import autocast
from dystop.trainer.problem import Problem

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
