"""Local training and evaluation of small networks in compiled CPU kernels.

The arithmetic is that of `sequential`, in another order. A whole local training is one compiled
call that releases the interpreter lock, so threads run side by side. Rows are trained one by one,
and the cut of a job into pieces changes no bit of the result.
"""

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dystop.errors import DataError
from dystop.sparse import Floats, Ints
from dystop.training.backends.cpu.arena import ArenaLayout, padded
from dystop.training.backends.cpu.passes import Network, SampleArrays, Schedule, train_or_evaluate
from dystop.training.backends.cpu.program import program_of
from dystop.training.backends.layers import read_layers
from dystop.training.evaluate import EvalTask, Evaluation
from dystop.training.flat import Layout
from dystop.training.local_steps.optimisers import RATE
from dystop.training.memory import ModelSize
from dystop.training.problem import Job, Problem, Trained
from dystop.training.samples import Samples

EVAL_BATCH = 32  # test samples in one forward pass
SAMPLE_TYPES = (np.uint8, np.float32)
_NO_MOVES = np.zeros((0, 0, 0, 0), np.int64)


class Workspace:
    """Arena and programs of one module. Like the module, it belongs to one thread at a time."""

    def __init__(self, arena: ArenaLayout, samples: Samples, crop: int = 0) -> None:
        self.arena, self.samples, self.crop = arena, samples, crop
        self.sample_arrays = _sample_arrays(samples, arena.classes, crop)
        self._floats = np.zeros(arena.size, np.float32)
        self._floats[arena.width : arena.workspace] = arena.constants
        self._networks: dict[tuple[int, ...], Network] = {}

    def network(self, sizes: tuple[int, ...]) -> Network:
        """Return the network with programs for mini-batches of these sizes."""
        if sizes not in self._networks:
            self._networks[sizes] = self._make_network(sizes)
        return self._networks[sizes]

    def _make_network(self, sizes: tuple[int, ...]) -> Network:
        arena, last = self.arena, self.arena.regions[-1]
        programs = [program_of(arena, size) for size in sizes]
        rows = [
            (
                size,
                program.forward_calls,
                arena.activations + last.target.offset * size,
                arena.activations + last.gradient * size,
            )
            for size, program in zip(sizes, programs, strict=True)
        ]
        return Network(
            arena=self._floats,
            table=programs[0].table,
            programs=np.stack([program.calls for program in programs]),
            sizes=np.array(rows, np.int64),
            classes=arena.classes,
            width=arena.width,
            rate=arena.rate,
            samples=arena.samples,
            sample_stride=arena.sample_stride,
            velocity=arena.velocity,
            padded_start=arena.activations if arena.has_padding else arena.size,
        )


_workspaces: "WeakKeyDictionary[nn.Module, Workspace]" = WeakKeyDictionary()


def train(problem: Problem, job: Job) -> Trained:
    """Train every row of the job by itself."""
    workspace = _workspace_of(problem)
    models = job.models.clone(memory_format=torch.contiguous_format)
    batches = problem.batches(job.workers, job.versions, job.steps)
    index = problem.shards.lookup(job.workers, batches.positions)
    numbers = problem.step_numbers(job, batches.counts.shape[1])
    rates = numbers[..., RATE].to(torch.float32).numpy()
    moments = None if job.moments is None else job.moments.contiguous()
    moves = _moves(problem, job, batches.counts.shape[1])
    results = _run(workspace, models, (index, batches.counts), (rates, moves, moments))
    seen = batches.counts.sum(axis=1)
    with np.errstate(invalid="ignore"):
        loss = results[:, 1] / seen
    return Trained(models, job.counters.clone(), loss, int(seen.sum()), moments)


def _moves(problem: Problem, job: Job, steps: int) -> NDArray[np.int64]:
    """Return the moves of all images, [A, steps, batch, 3]; [0, 0, 0, 0] if they are not moved."""
    if not problem.augmentation.is_on:
        return _NO_MOVES
    trainings = problem.addresses(job.workers, job.versions)[:, None]
    addresses = problem.batch_addresses(trainings, torch.arange(steps))
    moves: NDArray[np.int64] = problem.augmentation.moves(addresses, problem.batch).numpy()
    return moves


def evaluate(task: EvalTask, models: Tensor, counters: Tensor, index: Tensor) -> Evaluation:
    """Evaluate models [m, W] on the test samples of this index; counters are not used."""
    batch = min(task.batch, EVAL_BATCH)
    workspace = _workspace(task.module, task.layout, task.samples, batch)
    steps = -(-len(index) // batch)
    table = np.resize(index.numpy(), (1, steps, batch))
    counts = np.minimum(len(index) - batch * np.arange(steps), batch)[None]
    none = np.zeros((0, 0), np.float32), _NO_MOVES, None
    results = _run(workspace, models.contiguous(), (table, counts), none)
    return Evaluation(results[:, 0] / len(index), results[:, 1] / len(index))


def _run(
    workspace: Workspace,
    models: Tensor,
    batches: tuple[Ints, Ints],
    how: tuple[Any, Any, Tensor | None],
) -> Floats:
    """Train or evaluate models in place; return correct answers and summed losses, [models, 2].

    `how` holds the learning rates, the moves of images and the momentum of `Schedule`.
    """
    (index, counts), (rates, moves, moments) = batches, how
    results = np.zeros((len(models), 2))
    if counts.any():
        # A step that is not taken has no samples; it counts as one of the smallest size.
        sizes, which = np.unique(padded(np.maximum(counts, 1)), return_inverse=True)
        network = workspace.network(tuple(sizes.tolist()))
        state = np.zeros((0, 0), np.float32) if moments is None else moments.numpy()
        schedule = Schedule(index, counts, which.reshape(counts.shape), rates, moves, state)
        train_or_evaluate(network, workspace.sample_arrays, schedule, models.numpy(), results)
    return results


def _workspace_of(problem: Problem) -> Workspace:
    """Return the workspace for the trainings of a problem."""
    parts = (problem.module, problem.layout, problem.samples, problem.batch)
    return _workspace(*parts, problem.optimiser.kernel_numbers, problem.augmentation.params.crop)


def _workspace(
    module: nn.Module,
    layout: Layout,
    samples: Samples,
    batch: int,
    momentum: tuple[float, ...] = (),
    crop: int = 0,
) -> Workspace:
    """Return the workspace of a module; it is made at the first use and kept with the module."""
    found = _workspaces.get(module)
    wanted = (padded(batch), momentum, crop)
    if (
        found is None
        or found.samples is not samples
        or (found.arena.batch, found.arena.momentum, found.crop) != wanted
    ):
        arena = replace(arena_for(module, layout, samples.shape, batch), momentum=momentum)
        found = _workspaces[module] = Workspace(arena, samples, crop)
    return found


def arena_for(module: nn.Module, layout: Layout, shape: tuple[int, ...], batch: int) -> ArenaLayout:
    """Return the arena of a module for mini-batches of at most `batch` samples."""
    return ArenaLayout(read_layers(module, layout, shape), layout.width, padded(batch))


def kernel_size(
    size: ModelSize, module: nn.Module, layout: Layout, shape: tuple[int, ...]
) -> ModelSize:
    """Return the size of a model with the memory that these kernels need for one sample."""
    arena = arena_for(module, layout, shape, 1)
    sample_bytes = 4 * (arena.sample_floats + arena.sample_stride + arena.transposed_stride)
    return replace(size, activation_bytes=sample_bytes, forward_bytes=sample_bytes)


def _sample_arrays(samples: Samples, classes: int, crop: int) -> SampleArrays:
    """Return the samples without a copy, with a scale and a shift for every input."""
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
    bytes_, floats = (
        x if x.dtype == dtype else np.zeros((0, x.shape[1]), dtype) for dtype in SAMPLE_TYPES
    )
    sides = (samples.shape[1], samples.shape[2]) if len(samples.shape) == 3 else (1, 1)
    return SampleArrays(bytes_, floats, samples.y.numpy(), scale, shift, sides, crop)
