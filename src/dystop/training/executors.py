"""Lanes: independent pieces of work run side by side, one torch thread (or one GPU) each.

For models of this size, threads inside an operation cost more than they bring, and on a busy
machine they wait for each other. Lanes never wait: a piece is trained from its first mini-batch to
its last on one core. How the work is cut into pieces does not depend on the number of lanes, so
neither do the results, to the last bit.
"""

import copy
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
from dystop.training.backends import sequential, stacked
from dystop.training.backends.cuda.chain import chain_of
from dystop.training.batch_norm import BatchNormRecalibration, recalibration_of
from dystop.training.device import on_device
from dystop.training.evaluate import EvalTask, Evaluated, evaluate
from dystop.training.memory import ModelSize
from dystop.training.problem import Backend, Job, Problem, Trained
from dystop.training.samples import Samples

Tool = TypeVar("Tool")
Item = TypeVar("Item")
Result = TypeVar("Result")


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Operations started inside, in whatever thread, use no threads of their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class WorkerPool(Generic[Tool]):
    """A pool of threads, each with a tool of its own (a module is not safe to share)."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self.count = len(tools)
        self._spare: SimpleQueue[Tool] = SimpleQueue()
        for tool in tools:
            self._spare.put(tool)

    def map(self, work: Callable[[Tool, Item], Result], items: Sequence[Item]) -> list[Result]:
        """Do the work on every item; results come in the order of the items."""

        def one(item: Item) -> Result:
            tool = self._spare.get()
            try:
                return work(tool, item)
            finally:
                self._spare.put(tool)

        with one_thread_each():  # a single lane too: two threads bring little and may cost much
            if self.count == 1:
                return [one(item) for item in items]
            with ThreadPoolExecutor(self.count) as pool:
                return list(pool.map(one, items))


# MERGED: Stations: where local trainings and examinations are carried out, one per core or per GPU.


Evaluator = Callable[[EvalTask, Tensor, Tensor, Tensor], Evaluated]
ALIVE_BYTES = 2**25  # of a test on a CPU
SOLO_LANES = 4  # streams for large models; with ResNet-18 on an H200 more bring nothing


@dataclass(frozen=True)
class DeviceExecutor:
    """A problem on one device and the back end that works on it."""

    problem: Problem
    backend: Backend

    def train(self, job: Job, rows: Ints) -> Trained:
        """Run some rows of a job here."""
        with on_device(self.problem.device):
            return self.backend(self.problem, job.rows(rows, self.problem.device))


def executors_on(
    problem: Problem, path: str, devices: Sequence[torch.device], lanes: int | None
) -> list[DeviceExecutor]:
    """One station for every GPU, or on a CPU one for every lane."""
    if devices[0].type == "cpu":
        problems = [problem, *(_copied(problem) for _ in range((lanes or 1) - 1))]
        return [DeviceExecutor(one, _cpu_backend(path)) for one in problems]
    problems = [problem, *(_moved(problem, device) for device in devices[1:])]
    return [DeviceExecutor(one, _cuda_backend(one, path, lanes)) for one in problems]


def _cpu_backend(path: str) -> Backend:
    if path == "fused":
        from dystop.training.backends.cpu import backend

        return backend.train
    return stacked.train if path == "stacked" else sequential.train


def _cuda_backend(problem: Problem, path: str, lanes: int | None) -> Backend:
    if problem.l2:  # the recorded steps know no penalty
        return stacked.train if path == "stacked" else sequential.train
    from dystop.training.backends.cuda.stacks import Stacks, can_record
    from dystop.training.backends.cuda.streams import StreamBackend

    if path == "sequential":
        # Torch has one generator for the whole device: modules that draw from it go one by one.
        return StreamBackend(problem, 1 if problem.draws else lanes or SOLO_LANES)
    if can_record(problem):
        return Stacks(problem, min(problem.chunk, len(problem.shards.sizes)))
    return stacked.train


def _copied(problem: Problem) -> Problem:
    return replace(problem, module=copy.deepcopy(problem.module))


def _moved(problem: Problem, device: torch.device) -> Problem:
    module = copy.deepcopy(problem.module).to(device)
    return replace(problem, module=module, samples=moved_samples(problem.samples, device))


def moved_samples(samples: Samples, device: torch.device) -> Samples:
    """The same samples on another device."""
    parts = (samples.x, samples.y, samples.scale, samples.shift)
    return Samples(*(part.to(device) for part in parts))


@dataclass(frozen=True)
class ModelEvaluator:
    """An exam on one device and what carries it out there."""

    exam: EvalTask
    backend: Evaluator
    problem: Problem

    @cached_property
    def fitting(self) -> BatchNormRecalibration | None:
        """What computes statistics anew, made when it is first asked for."""
        return recalibration_of(self.problem, self.exam.module)

    def examine(
        self, models: Tensor, counters: Tensor, index: Tensor, whose: Ints | None = None
    ) -> Evaluated:
        """Accuracy and loss of models on the test samples of this index.

        Where `whose` is given, batch norm's statistics are first computed anew on their samples.
        """
        where = self.exam.samples.y.device
        with on_device(where):
            models, counters = models.to(where), counters.to(where)
            models = models if whose is None else self.fitted(models, counters, whose)
            return self.backend(self.exam, models, counters, index.to(where))

    def fitted(self, models: Tensor, counters: Tensor, whose: Ints) -> Tensor:
        """Models with batch norm's statistics computed anew; the same where they have none."""
        return self.fitting.fitted(models, counters, whose) if self.fitting else models


def evaluated_at_once(path: str, batch: int, size: ModelSize, device: torch.device) -> int:
    """Test samples examined at once; a CPU likes what is alive at once to be small.

    Blocks of some ten megabytes are given back to the system and taken again, page by page, in
    every layer: MobileNet-V2 is tested three to four times as fast with 19 at once as with 500.
    """
    if path == "fused":
        from dystop.training.backends.cpu.backend import EXAMINED

        return min(batch, EXAMINED)
    if device.type == "cpu":
        return max(1, min(batch, ALIVE_BYTES // max(1, size.forward_bytes)))
    return batch


def evaluators_on(
    exam: EvalTask, problem: Problem, path: str, devices: Sequence[torch.device], lanes: int
) -> list[ModelEvaluator]:
    """One examiner for every GPU, or on a CPU one for every lane."""
    if devices[0].type == "cpu":
        copies = (replace(exam, module=copy.deepcopy(exam.module)) for _ in range(lanes - 1))
        return [ModelEvaluator(one, _cpu_examiner(path), problem) for one in (exam, *copies)]
    exams = (exam, *(_moved_exam(exam, device) for device in devices[1:]))
    return [ModelEvaluator(one, _cuda_examiner(one), problem) for one in exams]


def _cpu_examiner(path: str) -> Evaluator:
    """The fused kernels examine what they train."""
    if path == "fused":
        from dystop.training.backends.cpu import backend

        return backend.evaluate
    return evaluate


def _cuda_examiner(exam: EvalTask) -> Evaluator:
    stages = chain_of(exam.module, exam.layout, exam.samples.shape)
    if stages is None:
        return evaluate
    from dystop.training.backends.cuda.evaluate import ChainEvaluator
    from dystop.training.backends.cuda.stacks import PRODUCTS

    return ChainEvaluator(exam, stages, PRODUCTS[exam.precision])


def _moved_exam(exam: EvalTask, device: torch.device) -> EvalTask:
    module = copy.deepcopy(exam.module).to(device)
    return replace(exam, module=module, samples=moved_samples(exam.samples, device))
