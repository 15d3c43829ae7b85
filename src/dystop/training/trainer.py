"""The trainer: everything the engine needs to know about learning.

`Trainer.train` runs local trainings, `Trainer.evaluate` examines models; both work on stacks of
flat models and hide which back end does the work.
"""

import copy
import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from dystop.parallel import cores
from dystop.sparse import Floats, Ints
from dystop.training import evaluate as evaluation
from dystop.training.backend_choice import (
    check_last_batches,
    choose_path,
    draws_numbers,
    stack_height,
)
from dystop.training.backends import sequential
from dystop.training.backends.cuda.chain import chain_of
from dystop.training.device import Timer, pick_devices, steady_kernels, upload
from dystop.training.evaluate import EvalTask, Evaluated, stratified_first
from dystop.training.executors import (
    SOLO_LANES,
    ModelEvaluator,
    WorkerPool,
    evaluated_at_once,
    evaluators_on,
    executors_on,
)
from dystop.training.flat import Layout, layout_of
from dystop.training.memory import MemoryEstimate, ModelSize, held_bytes, model_size
from dystop.training.params import TrainerParams
from dystop.training.problem import Collector, Job, Problem, Trained, cut
from dystop.training.randomness import address_names, restored, with_addresses
from dystop.training.samples import Source, both_samples, shards_of

PIECES = 8  # of a round's fused trainings for each lane: few enough to cost little, to end together

WORKSPACE_BYTES = 2**25  # that a matrix library takes for each stream that records


class Trainer:
    """Trains and examines the models of all workers; holds the data, not the models."""

    def __init__(
        self,
        module: nn.Module,
        data: Source,
        shards: Sequence[Ints],
        params: TrainerParams,
        seed: int,
    ) -> None:
        """Put the data on the device and choose the back end.

        Args:
            module: The model with its initial weights; copied, never modified.
            data: The data set.
            shards: For each worker, which training samples it owns.
            params: Knobs.
            seed: Seed of the run; addresses the order of samples and dropout.
        """
        self.params, devices = params, pick_devices(params.device)
        self.device = devices[0]
        self._tests = Timer(self.device)
        self.layout: Layout = layout_of(module)
        self._test_labels = np.asarray(data.y_test, np.int64)
        train, test = both_samples(data, self.device)
        parts = shards_of(shards, len(train))
        with restored(self.device):  # trial passes may draw
            self._start = with_addresses(module, train.shape).to(self.device).train()
            check_last_batches(self._start, train.shape, parts, params.batch)
            self.path = choose_path(self._start, self.layout, train.shape, params)
            self.size = self._model_size(train.shape)
            draws = draws_numbers(self._start, train.shape)
        self.chunk = stack_height(self.size, params, self.device) if self.is_stacked else 1
        self._problem = Problem(
            module=self._start,
            layout=self.layout,
            samples=train,
            shards=parts,
            batch=params.batch,
            learning_rate=params.learning_rate,
            l2=params.l2,
            seed=seed,
            chunk=self.chunk,
            draws=draws,
            dropouts=address_names(self._start),
            precision=params.precision,
            compiles=self.path == "sequential" and params.compile is not False and not draws,
        )
        idle = copy.deepcopy(self._start).eval()
        # With the CNN on two cores a large batch of one model was faster than the stacks tried.
        height = min(self.chunk, len(shards)) if self.device.type == "cuda" else 1
        batch = evaluated_at_once(self.path, params.evaluation_batch, self.size, self.device)
        self._exam = EvalTask(idle, self.layout, test, height, batch, params.precision)
        # Torch's generators are shared by all threads: a module that draws from them goes alone.
        side_by_side = self.device.type == "cpu" and not draws
        self.lanes = (params.lanes or cores()) if side_by_side else len(devices)
        wanted = self.lanes if self.device.type == "cpu" else params.lanes
        self._lanes = WorkerPool(executors_on(self._problem, self.path, devices, wanted))
        examiners = evaluators_on(self._exam, self._problem, self.path, devices, self.lanes)
        self._examiners, self._examiner = WorkerPool(examiners), examiners[0]

    def _model_size(self, shape: tuple[int, ...]) -> ModelSize:
        size = model_size(self._start, self.layout, shape)
        if self.path != "fused":
            return size
        from dystop.training.backends.cpu.backend import fused_size

        return fused_size(size, self._start, self.layout, shape)

    @property
    def width(self) -> int:
        """Floats of one model, W."""
        return self.layout.width

    @property
    def is_stacked(self) -> bool:
        """Whether models are trained in stacks."""
        return self.path == "stacked"

    @property
    def has_kernels(self) -> bool:
        """Whether a GPU trains these models with kernels of our own."""
        stages = chain_of(self._start, self.layout, self._problem.samples.shape)
        return self.device.type == "cuda" and self.is_stacked and stages is not None

    @property
    def returns_early(self) -> bool:
        """Whether `train` only asks a device to train, and its losses come later."""
        return self.device.type == "cuda"

    def initial(self) -> tuple[Tensor, Tensor]:
        """The model that every worker starts from: vector [W] and counters [C]."""
        return self.layout.flatten(self._start)

    def train(
        self,
        models: Tensor,
        counters: Tensor,
        workers: Ints,
        versions: Ints,
        steps: Ints,
        rates: Floats | None = None,
    ) -> Trained:
        """Run local trainings: `steps` mini-batches of plain SGD for each row (paper eq:updating).

        ceil(D_i / batch) steps are exactly one epoch, with a smaller last mini-batch where it does
        not divide. More steps go on with a fresh permutation, fewer stop early. A row's result
        depends on its model, worker, version and steps, and not on the other rows (to rounding).

        Args:
            models: [A, W], what each training starts from; may be written over.
            counters: [A, C]; may be written over.
            workers: [A], whose data; a worker may appear more than once.
            versions: [A], trainings that worker has finished before.
            steps: [A], mini-batches; a worker without data takes none.
            rates: [A], factors on the learning rate; 1 where not given.
        """
        rows = len(workers)
        if models.shape != (rows, self.width) or counters.shape != (rows, self.layout.counters):
            raise ValueError(
                f"models {tuple(models.shape)} and counters {tuple(counters.shape)} do not fit "
                f"{rows} workers of width {self.width} and {self.layout.counters} counters"
            )
        rates = np.ones(rows) if rates is None else rates
        job = Job(models.to(self.device), counters.to(self.device), workers, versions, steps, rates)
        pieces = cut(steps, self._piece(rows))
        kept = Collector(job, len(pieces))
        with steady_kernels():
            done = self._lanes.map(
                lambda station, rows: kept.keep(rows, station.train(job, rows)), pieces
            )
        return kept.joined(pieces, done)

    def _piece(self, rows: int) -> int:
        """Rows of a job that go to a station at once; on GPUs everything, shared evenly."""
        if self.path == "fused":  # every row by itself: the cut changes no bit of the results
            return max(1, rows // (PIECES * self.lanes))
        if self.device.type == "cpu":
            return self.chunk
        share = max(1, -(-rows // self.lanes))
        return min(self.chunk, share) if self.is_stacked else share

    def evaluate(
        self,
        models: Tensor,
        counters: Tensor,
        samples: int | None = None,
        whose: Ints | None = None,
    ) -> Evaluated:
        """Accuracy and loss of models [M, W] on the test set, or on its first samples.

        Models that are changed after this call do not change the results.

        Args:
            models: [M, W]; one row for a global model.
            counters: [M, C].
            samples: Use only so many test samples, the first of each class in proportion.
            whose: [M], workers on whose samples batch norm's statistics are computed anew, or
                `EVERYBODY`; the models' own statistics where not given.
        """
        labels = self._test_labels
        chosen = np.arange(len(labels)) if samples is None else stratified_first(labels, samples)
        index = upload(chosen, self.device)
        models, counters = models.to(self.device), counters.to(self.device)

        def examine(examiner: ModelEvaluator, rows: slice) -> Evaluated:
            fit = None if whose is None else whose[rows]
            return examiner.examine(models[rows], counters[rows], index, fit)

        stacks = list(evaluation.pieces(len(models), self._exam.chunk))
        with steady_kernels(), self._tests.running():
            return evaluation.join(self._examiners.map(examine, stacks))

    def fitted(self, models: Tensor, counters: Tensor, whose: Ints) -> Tensor:
        """Models [M, W] with batch norm's statistics computed anew on workers' samples."""
        with steady_kernels():
            return self._examiner.fitted(models.to(self.device), counters.to(self.device), whose)

    @property
    def examined_s(self) -> float:
        """Seconds spent in evaluations so far."""
        return self._tests.seconds()

    def measure_batch_s(self, repeats: int = 100) -> float:
        """Median seconds of one real mini-batch of one worker, after a short warm-up."""
        vector, counters = self.initial()
        cut = self.layout.parameters
        state = (vector[:cut].clone(), vector[cut:].clone(), counters.clone())
        count = min(self.params.batch, len(self._problem.samples))
        index = torch.arange(count, device=self.device)
        seconds = [self._timed_step(state, index) for _ in range(3 + repeats)]
        return float(np.median(seconds[3:]))

    def _timed_step(self, state: tuple[Tensor, Tensor, Tensor], index: Tensor) -> float:
        """Seconds of one step of the reference path."""
        with steady_kernels(), restored(self.device):
            begin = time.perf_counter()
            none = torch.zeros((), dtype=torch.int64, device=self.device)
            sequential.sgd_step(self._problem, state, index, self.params.learning_rate, none)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            return time.perf_counter() - begin

    def estimate(self, workers: int, stacks: float) -> MemoryEstimate:
        """What a run takes: what is held already, the models, and what training and tests add.

        Args:
            workers: Workers N.
            stacks: Stacks of models [N, W] that the engine keeps or makes at once.
        """
        row, batch = self.size.row_bytes, self.params.batch
        at_once = min(self.lanes * self.chunk, workers)
        training = at_once * (3 * row + self.size.activation_bytes * batch)
        examined = min(self.lanes * self._exam.chunk, workers)
        evaluation = examined * self.size.forward_bytes * self._exam.batch
        if self.device.type == "cuda":
            training, evaluation = self._cuda_bytes(workers)
        return MemoryEstimate(
            (
                (f"models ({workers} workers)", int((stacks + 1) * workers * row)),
                (f"training ({at_once} at once)", training),
                ("evaluation", evaluation),
            ),
            held_bytes(self.device),
        )

    def _cuda_bytes(self, workers: int) -> tuple[int, int]:
        """What training and evaluation take on a GPU beside the buffers that stand already."""
        size, solo = self.size, self.path == "sequential"
        if self.has_kernels:
            return 4 * workers * size.row_bytes + WORKSPACE_BYTES, WORKSPACE_BYTES
        # Activations and, for a while, their gradients; bfloat16 halves both.
        width = 1 if self.params.precision == "bfloat16" else 2
        lanes = 1 if self._problem.draws else self.params.lanes or SOLO_LANES
        rows = lanes if solo else min(self.chunk, workers)
        training = rows * (width * size.activation_bytes * self.params.batch + 3 * size.row_bytes)
        examined = min(self._exam.chunk, workers) * self._exam.batch
        return training, width * examined * size.forward_bytes // 2
