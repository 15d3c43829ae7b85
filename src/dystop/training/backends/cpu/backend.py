"""Local training and examination of small chain networks in fused CPU kernels.

The same arithmetic as `sequential`, in another order: a whole local training is one compiled call
that holds no interpreter lock, so lanes run side by side without waiting for each other. Rows are
trained one by one; how a job is cut changes no bit of the result.
"""

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from dystop.errors import DataError
from dystop.sparse import Floats, Ints
from dystop.training.backends.cpu.chain import read_chain, why_not_fused
from dystop.training.backends.cpu.layout import Plan, padded
from dystop.training.backends.cpu.passes import Data, Net, Work, work_through
from dystop.training.backends.cpu.program import program_of
from dystop.training.evaluate import EvalTask, Evaluation
from dystop.training.flat import Layout
from dystop.training.memory import ModelSize
from dystop.training.problem import Job, Problem, Trained
from dystop.training.samples import Samples

__all__ = ["evaluate", "fused_size", "train", "why_not_fused"]

EXAMINED = 32  # samples side by side
KINDS = (np.uint8, np.float32)  # in which samples are stored


class Workspace:
    """What the kernels need of a module; belongs to one lane, as the module does."""

    def __init__(self, plan: Plan, samples: Samples) -> None:
        self.plan, self.samples = plan, samples
        self.data = _data(samples, plan.classes)
        self._arena = np.zeros(plan.size, np.float32)
        self._arena[plan.width : plan.spare] = plan.constants
        self._nets: dict[tuple[int, ...], Net] = {}

    def net(self, sizes: tuple[int, ...]) -> Net:
        """The chain with programs for mini-batches of these sizes."""
        if sizes not in self._nets:
            self._nets[sizes] = self._made(sizes)
        return self._nets[sizes]

    def _made(self, sizes: tuple[int, ...]) -> Net:
        plan, last = self.plan, self.plan.spots[-1]
        programs = [program_of(plan, size) for size in sizes]
        ends = ((last.target.place * size, last.gradient * size) for size in sizes)
        places = [
            (size, program.turn, plan.base + scores, plan.base + slopes)
            for size, program, (scores, slopes) in zip(sizes, programs, ends, strict=True)
        ]
        return Net(
            arena=self._arena,
            table=programs[0].table,
            programs=np.stack([program.calls for program in programs]),
            places=np.array(places, np.int64),
            classes=plan.classes,
            width=plan.width,
            rate=plan.rate,
            rows=plan.rows,
            row=plan.row,
            rims=plan.base if plan.has_rims else plan.size,
        )


_workspaces: "WeakKeyDictionary[nn.Module, Workspace]" = WeakKeyDictionary()


def train(problem: Problem, job: Job) -> Trained:
    """Run every row of the job by itself."""
    space = _workspace(problem.module, problem.layout, problem.samples, problem.batch)
    models = job.models.clone(memory_format=torch.contiguous_format)
    plan = problem.batches(job.workers, job.versions, job.steps)
    index = problem.shards.lookup(job.workers, plan.positions)
    rates = (problem.learning_rate * job.rates).astype(np.float32)
    results = _work(space, models, (index, plan.counts), rates)
    seen = plan.counts.sum(axis=1)
    with np.errstate(invalid="ignore"):
        return Trained(models, job.counters.clone(), results[:, 1] / seen, int(seen.sum()))


def evaluate(exam: EvalTask, models: Tensor, counters: Tensor, index: Tensor) -> Evaluation:
    """Examine models [m, W] with the test samples of this index; counters play no part."""
    batch = min(exam.batch, EXAMINED)
    space = _workspace(exam.module, exam.layout, exam.samples, batch)
    steps = -(-len(index) // batch)
    picked = np.resize(index.numpy(), (1, steps, batch))
    counts = np.minimum(len(index) - batch * np.arange(steps), batch)[None]
    results = _work(space, models.contiguous(), (picked, counts), np.zeros(0, np.float32))
    return Evaluation(results[:, 0] / len(index), results[:, 1] / len(index))


def _work(space: Workspace, models: Tensor, picked: tuple[Ints, Ints], rates: Any) -> Floats:
    """Train or examine models in place; right answers and losses, summed, [models, 2]."""
    index, counts = picked
    results = np.zeros((len(models), 2))
    if counts.any():
        # A step that does not take place has no samples; the smallest program stands for it.
        sizes, which = np.unique(padded(np.maximum(counts, 1)), return_inverse=True)
        net = space.net(tuple(sizes.tolist()))
        work = Work(index, counts, which.reshape(counts.shape), rates)
        work_through(net, space.data, work, models.numpy(), results)
    return results


def _workspace(module: nn.Module, layout: Layout, samples: Samples, batch: int) -> Workspace:
    """The module's workspace, made at its first use and kept as long as the module."""
    found = _workspaces.get(module)
    if found is None or found.samples is not samples or found.plan.batch != padded(batch):
        plan = plan_for(module, layout, samples.shape, batch)
        found = _workspaces[module] = Workspace(plan, samples)
    return found


def plan_for(module: nn.Module, layout: Layout, shape: tuple[int, ...], batch: int) -> Plan:
    """Lay a module out for mini-batches of at most `batch` samples."""
    return Plan(read_chain(module, layout, shape), layout.width, padded(batch))


def fused_size(
    size: ModelSize, module: nn.Module, layout: Layout, shape: tuple[int, ...]
) -> ModelSize:
    """The size of a model with what the fused kernels need for a sample, there and back."""
    one = plan_for(module, layout, shape, 1)
    each = 4 * (one.units + one.row + one.turned_row)
    return replace(size, activation_bytes=each, forward_bytes=each)


def _data(samples: Samples, classes: int) -> Data:
    """Samples without copying them; the normalisation of every single input."""
    low, top = int(samples.y.min()), int(samples.y.max())
    if low < 0 or top >= classes:
        raise DataError(
            f"labels {low} to {top} do not fit a model with {classes} scores; expected 0 to "
            f"{classes - 1}"
        )
    scale, shift = (
        part.expand(samples.shape).reshape(-1).contiguous().numpy()
        for part in (samples.scale, samples.shift)
    )
    x = samples.x.flatten(1).numpy()
    bytes_, floats = (x if x.dtype == kind else np.zeros((0, x.shape[1]), kind) for kind in KINDS)
    return Data(bytes_, floats, samples.y.numpy(), scale, shift)
