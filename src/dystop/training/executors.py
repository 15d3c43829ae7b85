"""Executors: who runs local trainings and evaluations, one for each CPU core or each GPU.

For models of this size, threads inside a torch operation cost more than they bring, and on a busy
machine they wait for each other. So a `WorkerPool` runs independent pieces of work side by side,
each on one core from its first mini-batch to its last. The cut into pieces does not depend on the
number of threads, so the results do not either, to the last bit.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch
from torch import Tensor

from dystop.sparse import Ints
from dystop.training.adapters import copied
from dystop.training.backend_choice import CUDA_BACKENDS, cuda_stages, why_not_importable
from dystop.training.backends import sequential
from dystop.training.batch_norm import BatchNormRecalibration, recalibration_of
from dystop.training.device import on_device
from dystop.training.evaluate import EvalTask, Evaluated, evaluate
from dystop.training.memory import ModelSize
from dystop.training.problem import Backend, Job, Problem, Trained
from dystop.training.samples import Samples

Executor = TypeVar("Executor")
Item = TypeVar("Item")
Result = TypeVar("Result")

EvalBackend = Callable[[EvalTask, Tensor, Tensor, Tensor], Evaluated]

CPU_EVAL_BYTES = 2**25  # activations of one forward pass on a CPU
DEFAULT_STREAMS = 4  # for large models on a GPU; with ResNet-18 on an H200 more bring nothing


class WorkerPool(Generic[Executor]):
    """A pool of threads. Each thread takes an executor of its own: modules cannot be shared."""

    def __init__(self, executors: Sequence[Executor]) -> None:
        self.count = len(executors)
        self._idle: SimpleQueue[Executor] = SimpleQueue()
        for executor in executors:
            self._idle.put(executor)

    def map(self, work: Callable[[Executor, Item], Result], items: Sequence[Item]) -> list[Result]:
        """Apply `work` to every item; return the results in the order of the items."""

        def run(item: Item) -> Result:
            executor = self._idle.get()
            try:
                return work(executor, item)
            finally:
                self._idle.put(executor)

        # With a single executor too: two torch threads bring little and may cost much.
        with single_threaded_torch():
            if self.count == 1:
                return [run(item) for item in items]
            with ThreadPoolExecutor(self.count) as pool:
                return list(pool.map(run, items))


@contextmanager
def single_threaded_torch() -> Iterator[None]:
    """Make torch operations inside, in any Python thread, use one thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class DeviceExecutor:
    """A training problem on one device, with the back end that runs it there."""

    problem: Problem
    backend: Backend

    def train(self, job: Job, rows: Ints) -> Trained:
        """Train some rows of a job on this device."""
        with on_device(self.problem.device):
            return self.backend(self.problem, job.rows(rows, self.problem.device))


def executors_on(
    problem: Problem, path: str, devices: Sequence[torch.device], threads: int | None
) -> list[DeviceExecutor]:
    """Return one executor for each GPU, or on a CPU one for each thread.

    On a GPU, `threads` is the number of streams for large models.
    """
    if devices[0].type == "cpu":
        problems = [problem, *(_copied(problem) for _ in range((threads or 1) - 1))]
        return [DeviceExecutor(one, _cpu_backend(path)) for one in problems]
    problems = [problem, *(_moved(problem, device) for device in devices[1:])]
    return [DeviceExecutor(one, _cuda_backend(one, path, threads)) for one in problems]


def _cpu_backend(path: str) -> Backend:
    if path == "fused":
        from dystop.training.backends.cpu import backend

        return backend.train
    return _torch_backend(path)


def _torch_backend(path: str) -> Backend:
    if path == "stacked":
        from dystop.training.backends import stacked

        return stacked.train
    return sequential.train


def _cuda_backend(problem: Problem, path: str, streams: int | None) -> Backend:
    if problem.steps_differ:  # from those of the CUDA graphs
        return _torch_backend(path)
    if reason := why_not_importable(CUDA_BACKENDS):
        warnings.warn(f"training on the GPU is slower than it could be: {reason}", stacklevel=2)
        return _torch_backend(path)
    from dystop.training.backends.cuda.stacks import StackBackend, can_stack
    from dystop.training.backends.cuda.streams import StreamBackend

    if path == "sequential":
        # Torch has one random generator for a device: modules that draw from it train in turn.
        return StreamBackend(problem, 1 if problem.draws else streams or DEFAULT_STREAMS)
    if can_stack(problem):
        return StackBackend(problem, min(problem.chunk, len(problem.shards.sizes)))
    return _torch_backend(path)


def _copied(problem: Problem) -> Problem:
    return replace(problem, module=copied(problem.module))


def _moved(problem: Problem, device: torch.device) -> Problem:
    module = copy.deepcopy(problem.module).to(device)
    return replace(problem, module=module, samples=samples_to(problem.samples, device))


def samples_to(samples: Samples, device: torch.device) -> Samples:
    """Copy samples to another device."""
    parts = (samples.x, samples.y, samples.scale, samples.shift)
    return Samples(*(part.to(device) for part in parts))


@dataclass(frozen=True)
class ModelEvaluator:
    """An evaluation task on one device, with the back end that runs it there."""

    task: EvalTask
    backend: EvalBackend
    problem: Problem

    @cached_property
    def recalibration(self) -> BatchNormRecalibration | None:
        """The batch-norm recalibration of these models; None if they have no batch norm."""
        return recalibration_of(self.problem, self.task.module)

    def evaluate(
        self, models: Tensor, counters: Tensor, index: Tensor, recalibrate_on: Ints | None = None
    ) -> Evaluated:
        """Return score and loss of models on the test samples of this index.

        With `recalibrate_on`, batch norm is first recalibrated on the samples of these workers.
        """
        device = self.task.samples.y.device
        with on_device(device):
            models, counters = models.to(device), counters.to(device)
            if recalibrate_on is not None:
                models = self.recalibrated(models, counters, recalibrate_on)
            return self.backend(self.task, models, counters, index.to(device))

    def recalibrated(self, models: Tensor, counters: Tensor, workers: Ints) -> Tensor:
        """Return the models after batch-norm recalibration on the samples of these workers."""
        if self.recalibration is None:
            return models
        return self.recalibration.recalibrated(models, counters, workers)


def eval_batch(path: str, wanted: int, size: ModelSize, device: torch.device) -> int:
    """Return how many test samples go through a model in one forward pass.

    A CPU is faster when few activations are alive. Blocks of some ten megabytes are given back to
    the system and taken again, page by page, in every layer: MobileNet-V2 is evaluated three to
    four times as fast with 19 samples at once as with 500.
    """
    if path == "fused":
        from dystop.training.backends.cpu.backend import EVAL_BATCH

        return min(wanted, EVAL_BATCH)
    if device.type == "cpu":
        return max(1, min(wanted, CPU_EVAL_BYTES // max(1, size.forward_bytes)))
    return wanted


def evaluators_on(
    task: EvalTask, problem: Problem, path: str, devices: Sequence[torch.device], threads: int
) -> list[ModelEvaluator]:
    """Return one evaluator for each GPU, or on a CPU one for each thread."""
    if devices[0].type == "cpu":
        copies = (replace(task, module=copied(task.module)) for _ in range(threads - 1))
        return [ModelEvaluator(one, _cpu_eval_backend(path), problem) for one in (task, *copies)]
    tasks = (task, *(_moved_task(task, device) for device in devices[1:]))
    return [ModelEvaluator(one, _cuda_eval_backend(one), problem) for one in tasks]


def _cpu_eval_backend(path: str) -> EvalBackend:
    if path == "fused":
        from dystop.training.backends.cpu import backend

        return backend.evaluate
    return evaluate


def _cuda_eval_backend(task: EvalTask) -> EvalBackend:
    known = task.learned.has_kernels
    stages = cuda_stages(task.module, task.layout, task.samples.shape) if known else None
    if stages is None:
        return evaluate
    from dystop.training.backends.cuda.evaluate import StageEvaluator
    from dystop.training.backends.cuda.stacks import PRODUCTS

    return StageEvaluator(task, stages, PRODUCTS[task.precision])


def _moved_task(task: EvalTask, device: torch.device) -> EvalTask:
    module = copy.deepcopy(task.module).to(device)
    return replace(task, module=module, samples=samples_to(task.samples, device))
