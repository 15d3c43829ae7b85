"""Stations: where local trainings and examinations are carried out, one per core or per GPU."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from dystop.sparse import Ints
from dystop.trainer import sequential, stacked
from dystop.trainer.cuda.chain import chain_of
from dystop.trainer.device import on_device
from dystop.trainer.evaluate import Evaluated, Exam, evaluate
from dystop.trainer.fitting import Fitting, fitting_of
from dystop.trainer.memory import ModelSize
from dystop.trainer.problem import Backend, Job, Problem, Trained
from dystop.trainer.samples import Samples

Evaluator = Callable[[Exam, Tensor, Tensor, Tensor], Evaluated]
ALIVE_BYTES = 2**25  # of a test on a CPU
SOLO_LANES = 4  # streams for large models; with ResNet-18 on an H200 more bring nothing


@dataclass(frozen=True)
class Station:
    """A problem on one device and the back end that works on it."""

    problem: Problem
    backend: Backend

    def train(self, job: Job, rows: Ints) -> Trained:
        """Run some rows of a job here."""
        with on_device(self.problem.device):
            return self.backend(self.problem, job.rows(rows, self.problem.device))


def stations_on(
    problem: Problem, path: str, devices: Sequence[torch.device], lanes: int | None
) -> list[Station]:
    """One station for every GPU, or on a CPU one for every lane."""
    if devices[0].type == "cpu":
        problems = [problem, *(_copied(problem) for _ in range((lanes or 1) - 1))]
        return [Station(one, _cpu_backend(path)) for one in problems]
    problems = [problem, *(_moved(problem, device) for device in devices[1:])]
    return [Station(one, _cuda_backend(one, path, lanes)) for one in problems]


def _cpu_backend(path: str) -> Backend:
    if path == "fused":
        from dystop.trainer.fused import backend

        return backend.train
    return stacked.train if path == "stacked" else sequential.train


def _cuda_backend(problem: Problem, path: str, lanes: int | None) -> Backend:
    if problem.l2:  # the recorded steps know no penalty
        return stacked.train if path == "stacked" else sequential.train
    from dystop.trainer.cuda.solo import Solo
    from dystop.trainer.cuda.stacks import Stacks, can_record

    if path == "sequential":
        # Torch has one generator for the whole device: modules that draw from it go one by one.
        return Solo(problem, 1 if problem.draws else lanes or SOLO_LANES)
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
class Examiner:
    """An exam on one device and what carries it out there."""

    exam: Exam
    backend: Evaluator
    problem: Problem

    @cached_property
    def fitting(self) -> Fitting | None:
        """What computes statistics anew, made when it is first asked for."""
        return fitting_of(self.problem, self.exam.module)

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


def examined_at_once(path: str, batch: int, size: ModelSize, device: torch.device) -> int:
    """Test samples examined at once; a CPU likes what is alive at once to be small.

    Blocks of some ten megabytes are given back to the system and taken again, page by page, in
    every layer: MobileNet-V2 is tested three to four times as fast with 19 at once as with 500.
    """
    if path == "fused":
        from dystop.trainer.fused.backend import EXAMINED

        return min(batch, EXAMINED)
    if device.type == "cpu":
        return max(1, min(batch, ALIVE_BYTES // max(1, size.forward_bytes)))
    return batch


def examiners_on(
    exam: Exam, problem: Problem, path: str, devices: Sequence[torch.device], lanes: int
) -> list[Examiner]:
    """One examiner for every GPU, or on a CPU one for every lane."""
    if devices[0].type == "cpu":
        copies = (replace(exam, module=copy.deepcopy(exam.module)) for _ in range(lanes - 1))
        return [Examiner(one, _cpu_examiner(path), problem) for one in (exam, *copies)]
    exams = (exam, *(_moved_exam(exam, device) for device in devices[1:]))
    return [Examiner(one, _cuda_examiner(one), problem) for one in exams]


def _cpu_examiner(path: str) -> Evaluator:
    """The fused kernels examine what they train."""
    if path == "fused":
        from dystop.trainer.fused import backend

        return backend.evaluate
    return evaluate


def _cuda_examiner(exam: Exam) -> Evaluator:
    stages = chain_of(exam.module, exam.layout, exam.samples.shape)
    if stages is None:
        return evaluate
    from dystop.trainer.cuda.exam import ChainExam
    from dystop.trainer.cuda.stacks import PRODUCTS

    return ChainExam(exam, stages, PRODUCTS[exam.precision])


def _moved_exam(exam: Exam, device: torch.device) -> Exam:
    module = copy.deepcopy(exam.module).to(device)
    return replace(exam, module=module, samples=moved_samples(exam.samples, device))
