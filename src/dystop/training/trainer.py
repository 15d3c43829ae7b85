"""The trainer: all that the simulator and the testbed need to know about learning.

`Trainer.train` runs local trainings, `Trainer.evaluate` tests models. Both work on stacks of flat
models and hide which back end does the work.
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from dystop.carried import Places
from dystop.errors import ConfigError
from dystop.parallel import cores
from dystop.sparse import Floats, Ints, ints
from dystop.training import evaluate as evaluation
from dystop.training.adapters import copied, held_once, parameters_of
from dystop.training.backend_choice import (
    check_last_batches,
    choose_path,
    cuda_stages,
    draws_numbers,
    stack_height,
)
from dystop.training.backends import sequential
from dystop.training.carried_vectors import CarriedVectors
from dystop.training.device import Timer, deterministic_kernels, pick_devices, upload
from dystop.training.evaluate import EvalTask, Evaluated, stratified_first
from dystop.training.executors import (
    DEFAULT_STREAMS,
    ModelEvaluator,
    WorkerPool,
    eval_batch,
    evaluators_on,
    executors_on,
    single_threaded_torch,
)
from dystop.training.flat import Layout, layout_of
from dystop.training.local_steps.augmentation import augmentation_of
from dystop.training.local_steps.optimisers import optimiser_of
from dystop.training.local_steps.privacy import Privacy, check_private_training
from dystop.training.memory import MemoryEstimate, ModelSize, Workload, model_size
from dystop.training.params import TrainerParams
from dystop.training.problem import Collector, Job, Problem, Trained, cut
from dystop.training.randomness import address_names, preserve_generators, with_addresses
from dystop.training.samples import Samples, Source, both_samples, shards_of, strata
from dystop.training.tasks.task import CLASSIFICATION, Task
from dystop.types import Mechanism

PIECES = 8  # for each thread of the fused back end: many enough to end together, few enough
# to cost little


def samples_seen(sizes: Ints, steps: Ints, batch: int) -> int:
    """Return how many samples local trainings on so many samples see together.

    >>> samples_seen(ints([10, 10, 0]), ints([3, 4, 5]), 4)
    24
    """
    if len(sizes) == 1:  # without arrays
        size, count = int(sizes[0]), int(steps[0])
        whole, left = divmod(count, max(-(-size // batch), 1))
        return whole * size + min(left * batch, size)
    epochs, rest = np.divmod(steps, np.maximum(-(-sizes // batch), 1))
    return int((epochs * sizes + np.minimum(rest * batch, sizes)).sum())


class Trainer:
    """Trains and evaluates the models of all workers. It holds the data, not the models."""

    _vectors = CarriedVectors(Layout((), (), ()))  # beside the model: none

    def __init__(  # noqa: PLR0913 (what a trainer is made of)
        self,
        module: nn.Module,
        data: Source,
        shards: Sequence[Ints],
        params: TrainerParams,
        seed: int,
        task: Task = CLASSIFICATION,
        privacy: Privacy | None = None,
        mechanism: Mechanism | None = None,
    ) -> None:
        """Put the data on the device and choose the back end.

        Args:
            module: The model with its initial weights; copied, never modified.
            data: The data set.
            shards: For each worker, the indices of its training samples.
            params: Parameters of training and evaluation.
            seed: Seed of the run; part of the address of sample orders and of dropout.
            task: What is learned.
            privacy: Differential privacy of local training; None: it is not private.
            mechanism: What may carry vectors beside the model; None: nothing does.
        """
        self.task = task
        able = mechanism.capabilities() if mechanism is not None else None
        corrects = able is not None and able.corrects
        self.params, devices = params, pick_devices(params.device)
        self.device = devices[0]
        self._eval_timer = Timer(self.device)
        self._vectors = CarriedVectors(layout_of(module), mechanism, optimiser_of(params))
        self.layout: Layout = self._vectors.layout
        self._test_labels = strata(np.asarray(data.y_test))
        train, test = both_samples(data, self.device)
        owned = shards_of(shards, len(train))
        with preserve_generators(self.device):  # trial passes may draw random numbers
            shape, dtype = train.shape, train.dtype
            self._start = with_addresses(module, shape, dtype).to(self.device).train()
            check_last_batches(self._start, shape, owned, params.batch, dtype)
            draws = draws_numbers(self._start, shape, dtype)
            if privacy is not None:
                check_private_training(params, self._start, draws)
            if corrects and params.path not in ("auto", "sequential"):
                raise ConfigError(
                    f"training.path = {params.path!r} cannot add the mechanism's corrections to "
                    "gradients; use 'sequential', or leave it out"
                )
            one_by_one = corrects or privacy is not None
            chosen = replace(params, path="sequential") if one_by_one else params
            self.path = choose_path(self._start, self._vectors.model, shape, chosen, task, dtype)
            self.size = self._model_size(train)
        self.chunk = stack_height(self.size, params, self.device) if self.is_stacked else 1
        self._problem = Problem(
            module=self._start,
            layout=self._vectors.model,
            samples=train,
            shards=owned,
            batch=params.batch,
            learning_rate=params.learning_rate,
            l2=params.l2,
            optimiser=self._vectors.optimiser,
            augmentation=augmentation_of(params.augment, train.shape, train.dtype),
            seed=seed,
            chunk=self.chunk,
            draws=draws,
            dropouts=address_names(self._start),
            precision=params.precision,
            compiles=self.path == "sequential" and params.compile is not False and not draws,
            task=task,
            privacy=privacy,
            corrects=corrects,
        )
        eval_module = copied(self._start).eval()
        # With the CNN on two cores, a large batch of one model was faster than all stacks tried.
        height = min(self.chunk, len(shards)) if self.device.type == "cuda" else 1
        batch = eval_batch(self.path, params.evaluation_batch, self.size, self.device)
        layout, precision = self._vectors.model, params.precision
        self._task = EvalTask(eval_module, layout, test, height, batch, precision, task)
        # All threads share torch's generators: a module that draws from them gets one thread.
        has_threads = self.device.type == "cpu" and not draws
        self.executor_count = (params.lanes or cores()) if has_threads else len(devices)
        threads = self.executor_count if self.device.type == "cpu" else params.lanes
        self._executors = WorkerPool(executors_on(self._problem, self.path, devices, threads))
        evaluators = evaluators_on(
            self._task, self._problem, self.path, devices, self.executor_count
        )
        self._evaluators, self._evaluator = WorkerPool(evaluators), evaluators[0]

    def _model_size(self, samples: Samples) -> ModelSize:
        size = model_size(self._start, replace(self.layout, own=()), samples.shape, samples.dtype)
        if self.path != "fused":
            return size
        from dystop.training.backends.cpu.backend import kernel_size

        return kernel_size(size, self._start, self._vectors.model, samples.shape)

    @property
    def width(self) -> int:
        """Number of floats of one model, W."""
        return self.layout.width

    @property
    def places(self) -> Places:
        """Where the vectors that a mechanism carries lie in those of a worker."""
        return self._vectors.places

    @property
    def _moments(self) -> int:
        """Numbers of the state of one worker's optimiser."""
        return self._problem.optimiser.moments * self._vectors.model.parameters

    @property
    def base_parameters(self) -> int:
        """Numbers of the frozen base that all workers share; 0 without adapters."""
        return parameters_of(self._start, held_once(self._start))

    @property
    def is_stacked(self) -> bool:
        """Whether models are trained in stacks."""
        return self.path == "stacked"

    @property
    def has_kernels(self) -> bool:
        """Whether a GPU trains these models with dystop's own kernels."""
        if self.device.type != "cuda" or not self.is_stacked or not self._problem.suits_kernels:
            return False
        shape = self._problem.samples.shape
        return cuda_stages(self._start, self._vectors.model, shape) is not None

    @property
    def returns_early(self) -> bool:
        """Whether `train` returns before the device has finished, with losses still to come."""
        return self.device.type == "cuda"

    @property
    def rows_independent(self) -> bool:
        """Whether the result of a training has the same bits whatever is trained beside it."""
        return not self.is_stacked or self.has_kernels

    def samples_seen(self, workers: Ints, steps: Ints) -> int:
        """Return how many samples local trainings see together, before they run."""
        return samples_seen(self._problem.shards.sizes[workers], steps, self.params.batch)

    def initial(self) -> tuple[Tensor, Tensor]:
        """Return the initial model of every worker: vector [W] and counters [C]."""
        return self._vectors.initial(self._start)

    def train(
        self,
        models: Tensor,
        counters: Tensor,
        workers: Ints,
        versions: Ints,
        steps: Ints,
        rates: Floats | None = None,
    ) -> Trained:
        """Run local trainings: `steps` mini-batches for each row (paper eq:updating).

        ceil(D_i / batch) steps are exactly one epoch; its last mini-batch may be smaller. More
        steps continue with a new permutation, fewer steps stop early. The result of a row depends
        on its model, worker, version and steps, and not on the other rows (up to rounding).

        Args:
            models: [A, W], the start of each training; may be overwritten.
            counters: [A, C]; may be overwritten.
            workers: [A], whose data to train on; a worker may appear more than once.
            versions: [A], trainings that the worker has finished before.
            steps: [A], mini-batches; a worker without data takes none.
            rates: [A], factors of the learning rate; 1 by default.
        """
        rates = np.ones(len(workers)) if rates is None else rates
        models, counters = models.to(self.device), counters.to(self.device)
        job = Job(models, counters, workers, versions, steps, rates)
        vectors = self._vectors
        if vectors.is_empty:
            return self.train_job(job)
        plain, before = vectors.split(job)
        trained, taken = self.train_job(plain), self._taken(workers, steps)
        return vectors.joined(plain, before, trained, taken, self.params.learning_rate * rates)

    def train_job(self, job: Job) -> Trained:
        """Run the local trainings of a job, whose models have nothing beside them."""
        rows, model = len(job.workers), self._vectors.model
        shapes = tuple(job.models.shape), tuple(job.counters.shape)
        if shapes != ((rows, model.width), (rows, model.counters)):
            raise ValueError(
                f"models {shapes[0]} and counters {shapes[1]} do not fit {rows} workers of width "
                f"{model.width} and {model.counters} counters"
            )
        pieces = cut(job.steps, self._piece_rows(rows))
        collector = Collector(job, len(pieces))
        with deterministic_kernels():
            results = self._executors.map(
                lambda executor, rows: collector.collect(rows, executor.train(job, rows)), pieces
            )
        return collector.joined(pieces, results)

    def _taken(self, workers: Ints, steps: Ints) -> Ints:
        """Return the mini-batches that some workers take; one without data takes none."""
        return np.where(self._problem.shards.sizes[workers] > 0, steps, 0)

    def _piece_rows(self, rows: int) -> int:
        """Return how many rows of a job an executor takes at once; GPUs share a job evenly."""
        if self.path == "fused":  # trains every row by itself: the cut changes no bit
            return max(1, rows // (PIECES * self.executor_count))
        if self.device.type == "cpu":
            return self.chunk
        share = max(1, -(-rows // self.executor_count))
        return min(self.chunk, share) if self.is_stacked else share

    def evaluate(
        self,
        models: Tensor,
        counters: Tensor,
        samples: int | None = None,
        recalibrate_on: Ints | None = None,
    ) -> Evaluated:
        """Return score and loss of models [M, W] on the test set, or on its first samples.

        The caller may change the models after this call; the results do not change.

        Args:
            models: [M, W]; one row for a global model.
            counters: [M, C].
            samples: Number of test samples, the first of each class in proportion; all by default.
            recalibrate_on: [M], workers (or `ALL_WORKERS`) on whose samples batch norm is
                recalibrated; by default the models keep their own statistics.
        """
        labels = self._test_labels
        chosen = np.arange(len(labels)) if samples is None else stratified_first(labels, samples)
        index = upload(chosen, self.device)
        models, counters = self._on_device(models, counters)

        def evaluate(evaluator: ModelEvaluator, rows: slice) -> Evaluated:
            workers = None if recalibrate_on is None else recalibrate_on[rows]
            return evaluator.evaluate(models[rows], counters[rows], index, workers)

        stacks = list(evaluation.pieces(len(models), self._task.chunk))
        with deterministic_kernels(), self._eval_timer.running():
            return evaluation.join(self._evaluators.map(evaluate, stacks))

    def _on_device(self, models: Tensor, counters: Tensor) -> tuple[Tensor, Tensor]:
        """Return models and counters on the device, without the state of the optimiser."""
        models, counters = self._vectors.models_alone(models, counters)
        return models.to(self.device), counters.to(self.device)

    def own_losses(
        self, models: Tensor, counters: Tensor, worker: int, samples: int
    ) -> Floats | None:
        """Return the loss of models [M, W] on training samples of one worker, [M].

        None for a node that has no samples, such as a server.

        Args:
            models: [M, W].
            counters: [C], taken for every model.
            worker: Whose samples.
            samples: How many of them, evenly spread over those that the worker has.
        """
        shards = self._problem.shards
        own = shards.of(worker) if worker < len(shards.sizes) else ints([])
        if not len(own):
            return None
        spread = np.linspace(0, len(own) - 1, min(samples, len(own))).astype(np.int64)
        index = upload(own[spread], self.device)
        models, each = self._on_device(models, counters.expand(len(models), -1))
        with deterministic_kernels(), single_threaded_torch():
            found = [
                self._own_evaluator.evaluate(models[rows], each[rows], index)
                for rows in evaluation.pieces(len(models), self._task.chunk)
            ]
            return evaluation.join(found).loss

    @cached_property
    def _own_evaluator(self) -> ModelEvaluator:
        """The evaluator on training samples, made when first needed."""
        task = replace(self._task, samples=self._problem.samples)
        return evaluators_on(task, self._problem, self.path, [self.device], 1)[0]

    def recalibrated(self, models: Tensor, counters: Tensor, workers: Ints) -> Tensor:
        """Return models [M, W] after batch-norm recalibration on these workers' samples [M]."""
        models, counters = self._on_device(models, counters)
        with deterministic_kernels():
            return self._evaluator.recalibrated(models, counters, workers)

    @property
    def evaluated_s(self) -> float:
        """Seconds spent in evaluations so far."""
        return self._eval_timer.seconds()

    def measure_batch_s(self, repeats: int = 100) -> float:
        """Measure the median seconds of one real mini-batch of one worker, after a warm-up."""
        vector, counters = self.initial()
        (vector, counters), cut = self._on_device(vector, counters), self.layout.parameters
        moments = torch.zeros(self._moments, device=self.device)
        state = (vector[:cut].clone(), vector[cut:].clone(), counters.clone(), moments)
        count = min(self.params.batch, len(self._problem.samples))
        index = torch.arange(count, device=self.device)
        seconds = [self._timed_step(state, index) for _ in range(3 + repeats)]
        return float(np.median(seconds[3:]))

    def _timed_step(self, state: tuple[Tensor, Tensor, Tensor, Tensor], index: Tensor) -> float:
        """Return the seconds of one step of the sequential back end."""
        with deterministic_kernels(), preserve_generators(self.device):
            begin = time.perf_counter()
            none = torch.zeros((), dtype=torch.int64, device=self.device)
            numbers = (self.params.learning_rate, 1.0, 1.0)
            sequential.train_step(self._problem, state, index, numbers, none)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            return time.perf_counter() - begin

    def estimate(self, workers: int, stacks: float) -> MemoryEstimate:
        """Estimate the memory of a run: held already, models, training and evaluation.

        Args:
            workers: Number of workers N.
            stacks: Stacks of models [N, W] that the simulator keeps or makes at once.
        """
        params = self.params
        streams = 1 if self._problem.draws else params.lanes or DEFAULT_STREAMS
        workload = Workload(
            size=self.size,
            device=self.device,
            executors=self.executor_count,
            rows=self.chunk,
            batch=params.batch,
            tested_rows=self._task.chunk,
            tested_batch=self._task.batch,
            streams=streams if self.path == "sequential" else 0,
            has_kernels=self.has_kernels,
            is_half=params.precision == "bfloat16",
            state_floats=self._moments,
            keeps_state=params.optimizer_state == "kept",
        )
        return workload.estimate(workers, stacks)
