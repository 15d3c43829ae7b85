"""Mini-batches dealt by two kernels and a sort: `orders.sample_table` without its many launches."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vmap
from torch.nn import functional as F

from dystop.rng import bits
from dystop.sparse import Floats, Ints
from dystop.training.backend_choice import mixes_samples
from dystop.training.backends.cuda import kernels
from dystop.training.backends.cuda.chain import chain_of
from dystop.training.backends.cuda.graphs import (
    EagerRunner,
    GraphRecorder,
    GraphRunner,
    StaticBuffers,
    launch,
    static_buffers,
)
from dystop.training.batches import DeviceShards, epochs_of, sample_table, shards_on, step_counts
from dystop.training.device import autocast, download, finish, upload
from dystop.training.problem import Job, Problem, Trained

BLOCK = 1024


class BatchSampler:
    """Deals the mini-batches of one problem."""

    def __init__(self, shards: DeviceShards, seed: int, batch: int) -> None:
        self._shards, self._batch = shards, batch
        self._start = torch.tensor([_first_state(seed)], device=shards.start.device)

    def deal(self, who: tuple[Ints, Ints], work: tuple[Ints, Ints], table: Tensor) -> None:
        """Fill table [S, M, b] for workers in its first rows; arguments as in `sample_table`."""
        shards, rows, (sizes, steps) = self._shards, len(who[0]), work
        workers, versions = (upload(part, table.device) for part in who)
        width, columns = max(int(sizes.max(initial=0)), 1), int(steps.max(initial=0)) * self._batch
        keys = torch.empty(rows, width, dtype=torch.int64, device=table.device)
        for epoch in range(epochs_of(sizes, steps, self._batch)):
            launch(
                kernels.sort_keys, (rows, -(-width // BLOCK)), workers, versions, shards.sizes,
                self._start, epoch, keys, width, BLOCK=BLOCK,
            )  # fmt: skip
            order = keys.sort(dim=1, stable=True).indices
            launch(
                kernels.deal, (rows, -(-columns // BLOCK)),
                order, workers, shards.sizes, shards.start, shards.samples, table, epoch, columns,
                table.shape[1], width, BATCH=self._batch, BLOCK=BLOCK,
            )  # fmt: skip


def _first_state(seed: int) -> int:
    """Bits of the address before its first part, as a signed number."""
    return int(bits(seed, "batches").astype(np.int64))


# MERGED: The back end for small models on a CUDA device: a stack of them trained by recorded
#   steps. Rows are sorted by their number of steps, so the rows that still train are the first
#   few; a step is recorded for a few heights (powers of two) and rows that have no samples in it
#   are left alone.


StackStep = Callable[[int], None]  # trains the first rows of the desk on their next mini-batch
PRODUCTS = {"float32": "tf32x3", "bfloat16": "bf16"}  # how kernels multiply; tf32x3 is as exact
LOWEST = 8  # rows; recordings for fewer would hardly be shorter


def can_record(problem: Problem) -> bool:
    """Whether rows may be filled up: not where samples of a mini-batch influence each other."""
    return not mixes_samples(problem.module)


class Stacks:
    """Trains jobs of up to `height` rows; keeps its desk and recordings between jobs."""

    def __init__(self, problem: Problem, height: int) -> None:
        self._problem, self._height = problem, height
        self._deal = deals(problem)
        self._sizes = problem.shards.sizes
        epoch = int(-(-self._sizes.max(initial=1) // problem.batch))
        self._set_up(epoch)

    def _set_up(self, steps: int) -> None:
        """A desk for so many steps, a step that works on it, nothing recorded yet."""
        problem, layout = self._problem, self._problem.layout
        sizes = (layout.parameters, layout.width - layout.parameters, layout.counters)
        self.desk = static_buffers(sizes, (steps, self._height, problem.batch), problem.device)
        self._step = step_for(problem, self.desk)
        on_cuda = problem.device.type == "cuda"
        compiles = getattr(self._step, "compiles", None)
        self._player: GraphRunner = (
            GraphRecorder(self.desk.changing, compiles) if on_cuda else EagerRunner()
        )

    def __call__(self, problem: Problem, job: Job) -> Trained:
        """Train every row of the job."""
        sizes = self._sizes[job.workers]
        steps = np.where(sizes > 0, job.steps, 0)
        order = np.argsort(-steps, kind="stable")
        part, sizes, steps = job.rows(order), sizes[order], steps[order]
        counts = step_counts(sizes, steps, problem.batch)
        if counts.shape[1] > len(self.desk.table):
            finish(problem.device)  # recordings that may still be played are thrown away
            self._set_up(2 * counts.shape[1])
        self._lay(part, (sizes, steps), counts)
        for rows in np.count_nonzero(counts, axis=0):
            self._train_prefix(int(rows))
        return self._result(order, counts)

    def _lay(self, part: Job, work: tuple[Ints, Ints], counts: Ints) -> None:
        problem, device = self._problem, self._problem.device
        who = (part.workers, part.versions)
        rates = upload((problem.learning_rate * part.rates).astype(np.float32), device)
        self.desk.lay(part.models, part.counters, rates, problem.addresses(*who))
        self._deal(who, work, self.desk.table)
        self.desk.note(upload(counts.T.astype(np.int32), device))

    def _train_prefix(self, rows: int) -> None:
        high = min(max(LOWEST, 1 << (rows - 1).bit_length()), self._height)
        self._player.play(high, lambda: self._step(high))

    def _result(self, order: Ints, counts: Ints) -> Trained:
        rows, seen = len(order), counts.sum(1)
        back = np.argsort(order, kind="stable")
        where = upload(back, self.desk.total.device)
        models, total = self.desk.models(rows)[where], download(self.desk.total[:rows])

        def losses() -> Floats:
            with np.errstate(invalid="ignore"):
                mean: Floats = total() / seen
            return mean[back]

        return Trained(models, self.desk.counters[:rows][where], losses, int(seen.sum()))


def deals(problem: Problem) -> Callable[[tuple[Ints, Ints], tuple[Ints, Ints], Tensor], None]:
    """How mini-batches get into a table: by kernels where there are some, else by torch."""
    shards = shards_on(problem.shards, problem.device)
    if problem.device.type == "cuda":
        # needs Triton, which CUDA builds bring

        return BatchSampler(shards, problem.seed, problem.batch).deal

    def deal(who: tuple[Ints, Ints], work: tuple[Ints, Ints], table: Tensor) -> None:
        drawn = sample_table(shards, problem.seed, who, work, problem.batch)
        table[: drawn.shape[0], : drawn.shape[1]] = drawn

    return deal


def step_for(problem: Problem, desk: StaticBuffers) -> StackStep:
    """Hand-written kernels where there are some for this network, torch's own elsewhere."""
    stages = chain_of(problem.module, problem.layout, problem.samples.shape)
    if problem.device.type != "cuda" or stages is None:
        return VmapStep(problem, desk)
    from dystop.training.backends.cuda.layers import ChainStep

    return ChainStep(stages, desk, problem.samples, PRODUCTS[problem.precision])


class VmapStep:
    """One mini-batch of plain SGD for the first rows of a desk, for any module that vmap bears."""

    def __init__(self, problem: Problem, desk: StaticBuffers) -> None:
        self.problem, self.desk = problem, desk

    def __call__(self, rows: int) -> None:
        """Gather, forward, loss, gradient, update."""
        desk = self.desk
        index = desk.table.index_select(0, desk.step)[0, :rows]
        desk.count.copy_(desk.counts.index_select(0, desk.step)[0])
        count = desk.count[:rows, None]
        leaf = desk.parameters[:rows].detach().requires_grad_()
        loss = self._losses(leaf, index.long(), count)
        (gradient,) = torch.autograd.grad((loss / count[:, 0].clamp(min=1)).sum(), leaf)
        change = torch.where(count > 0, desk.rate[:rows, None] * gradient, 0.0)
        desk.parameters[:rows].sub_(change)
        desk.total[:rows] += loss.detach()
        desk.step.add_(1)

    def _losses(self, leaf: Tensor, index: Tensor, count: Tensor) -> Tensor:
        """Loss of every row, summed over the samples that count, [m]."""
        problem, desk, rows = self.problem, self.desk, len(index)
        x, y = problem.samples.take(index)
        state = (leaf, desk.kept[:rows], desk.counters[:rows])
        named = problem.named(state, problem.places(desk.address[:rows], desk.step))
        with autocast(problem.device, problem.precision):
            logits = vmap(lambda state, xs: functional_call(problem.module, state, (xs,)))(named, x)
        each = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), reduction="none")
        used = torch.arange(y.shape[1], device=y.device) < count
        return torch.where(used, each.view(y.shape), 0.0).sum(1)
