"""The back ends for CUDA devices, run eagerly on the CPU: same numbers as the reference."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dystop.rng import bits
from dystop.training import executors
from dystop.training.backends import sequential
from dystop.training.backends.cuda.stacks import StackBackend, can_stack
from dystop.training.backends.cuda.streams import (
    MAX_STREAMS,
    CompiledLoss,
    StreamBackend,
    loss_of,
    queues_for,
)
from dystop.training.executors import DeviceExecutor, WorkerPool
from dystop.training.flat import layout_of
from dystop.training.local_steps.augmentation import Augmentation
from dystop.training.local_steps.batches import Trainings, batches, sample_table, shards_on
from dystop.training.local_steps.optimisers import optimiser_of
from dystop.training.params import AugmentParams, ScheduleParams, TrainerParams
from dystop.training.problem import Collector, cut
from dystop.training.randomness import (
    address_names,
    device_bits,
    seed_generators,
    signed,
    with_addresses,
)
from dystop.training.samples import shards_of
from support.rng_vectors import NAME, VECTOR
from support.training_fixtures import CPU, assert_same, job_of, problem_of


def small_cnn() -> nn.Module:
    with seed_generators(CPU, 0, "test"):
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3))


def with_norm() -> nn.Module:
    with seed_generators(CPU, 0, "test"):
        body = (nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU())
        return nn.Sequential(*body, nn.Flatten(), nn.Linear(32, 3))


@settings(max_examples=40)
@given(
    st.lists(st.integers(0, 13), min_size=1, max_size=5),
    st.lists(st.integers(0, 9), min_size=5, max_size=5),
    st.integers(1, 5),
    st.integers(0, 2**63),
)
def test_tables_on_the_device_equal_batches(
    sizes: list[int], steps: list[int], batch: int, seed: int
) -> None:
    if not sum(sizes):
        return
    ends = np.cumsum([0, *sizes])
    parts = [np.arange(lo, hi)[::-1] for lo, hi in pairwise(ends)]
    shards = shards_of(parts, sum(sizes))
    workers = np.arange(len(sizes))
    size = shards.sizes[workers]
    asked = np.where(size > 0, np.array(steps[: len(sizes)]), 0)
    plan = batches(seed, workers, workers + 5, asked, size, batch)
    trainings = Trainings(workers, workers + 5, size, asked)
    counts = trainings.counts(batch)
    assert np.array_equal(counts, plan.counts)
    table = sample_table(shards_on(shards, CPU), seed, trainings, batch)
    wanted = shards.lookup(workers, plan.positions)
    real = counts[..., None] > 0
    ours = table.transpose(0, 1).numpy()
    assert np.array_equal(np.where(real, ours, 0), np.where(real, wanted, 0))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 2**40))
def test_device_bits_are_the_bits(seed: int, a: int, b: int) -> None:
    ours = device_bits(seed, "x", torch.tensor([a, b]), torch.tensor([b, a]))
    theirs = bits(seed, "x", np.array([a, b]), np.array([b, a]))
    assert np.array_equal(ours.numpy().astype(np.uint64), theirs)


@pytest.mark.parametrize(("seed", "identity", "word"), VECTOR)
def test_device_bits_of_the_shared_vector(seed: int, identity: tuple[int, ...], word: int) -> None:
    found = device_bits(seed, NAME, *(torch.tensor(part) for part in identity))
    assert found.tolist() == [signed(word)]


@pytest.mark.parametrize("steps", [[3, 3, 3, 3], [1, 0, 7, 2], [0, 0, 0, 0]])
def test_stacks_train_as_the_reference(steps: list[int]) -> None:
    problem = problem_of(small_cnn(), [9, 4, 11, 0])
    job = job_of(problem, [0, 1, 2, 3], steps)
    ours = StackBackend(problem, 4)(problem, job)
    assert_same(ours, sequential.train(problem, job))


def test_stacks_may_be_used_again_for_longer_and_smaller_jobs() -> None:
    problem = problem_of(small_cnn(), [9, 4, 11, 3])
    backend = StackBackend(problem, 4)
    for workers, steps in (([0, 1, 2, 3], [3, 1, 3, 1]), ([2, 2], [20, 5]), ([1], [1])):
        job = job_of(problem, workers, steps)
        assert_same(backend(problem, job), sequential.train(problem, job))


def test_a_finished_row_is_left_alone_even_if_it_diverged() -> None:
    problem = problem_of(small_cnn(), [4, 40])
    job = job_of(problem, [0, 1], [1, 10])
    job.models[0, :5] = torch.inf
    ours, theirs = StackBackend(problem, 2)(problem, job), sequential.train(problem, job)
    torch.testing.assert_close(ours.models, theirs.models, equal_nan=True, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("make", [small_cnn, with_norm])
def test_streams_train_as_the_reference(make: Any, streams: int) -> None:
    problem = problem_of(make(), [9, 6, 11, 0])
    job = job_of(problem, [0, 1, 2, 3, 0], [3, 2, 7, 1, 3])
    ours = StreamBackend(problem, streams)(problem, job)
    assert_same(ours, sequential.train(problem, job))


def test_streams_may_be_used_again_and_keep_their_graphs() -> None:
    problem = problem_of(with_norm(), [9, 6, 11, 0])
    backend = StreamBackend(problem, 2)
    for rows, steps in (([0, 1], [3, 2]), ([2, 0, 1], [9, 1, 2]), ([1], [2])):
        job = job_of(problem, rows, steps)
        assert_same(backend(problem, job), sequential.train(problem, job))


def test_no_two_runners_share_a_stream() -> None:
    """Nor the workspace that belongs to the stream: graphs are replayed side by side."""
    assert len(StreamBackend(problem_of(small_cnn(), [9]), 50)._streams) == MAX_STREAMS


@given(
    st.lists(st.lists(st.integers(1, 5), max_size=6), max_size=9),
    st.lists(st.sets(st.integers(1, 5)), min_size=1, max_size=4),
)
def test_every_row_is_in_one_queue(rows: list[list[int]], captured: list[set[int]]) -> None:
    width = max((len(row) for row in rows), default=0)
    counts = np.array([row + [0] * (width - len(row)) for row in rows], np.int64)
    queues = queues_for(counts.reshape(len(rows), width), captured)
    assert sorted(row for queue in queues for row in queue) == [
        k for k, row in enumerate(rows) if row
    ]
    for queue in queues:
        lengths = [len(rows[row]) for row in queue]
        assert lengths == sorted(lengths, reverse=True)


def test_rows_of_the_same_sizes_gather_on_a_stream() -> None:
    counts = np.array([[4, 3], [4, 2], [4, 1]] * 8)
    captured: list[set[int]] = [set(), set(), set()]
    queues = queues_for(counts, captured)
    for queue in queues:
        assert len({int(counts[row, 1]) for row in queue}) == 1


def test_streams_draw_the_same_from_torch() -> None:
    with seed_generators(CPU, 0, "test"):
        module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3))
    problem = problem_of(module, [9, 6], draws=True)
    job = job_of(problem, [0, 1], [3, 5])
    assert_same(StreamBackend(problem, 1)(problem, job), sequential.train(problem, job))


@pytest.mark.parametrize("backend", [StreamBackend, StackBackend])
def test_every_back_end_drops_the_same_numbers(backend: Any) -> None:
    with seed_generators(CPU, 0, "test"):
        plain = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(36, 3), nn.Dropout(0.1))
    module = with_addresses(plain, (1, 6, 6))
    problem = replace(problem_of(module, [9, 6, 3]), layout=layout_of(plain))
    undropped = problem
    problem = replace(problem, dropouts=address_names(module))
    job = job_of(problem, [0, 1, 2], [3, 5, 1])
    ours, theirs = backend(problem, 3)(problem, job), sequential.train(problem, job)
    assert_same(ours, theirs)
    assert not torch.allclose(sequential.train(undropped, job).models, theirs.models)


def refuse(*_: object) -> Any:
    raise NotImplementedError("no kernel for that")


def test_a_model_that_torch_cannot_compile_trains_all_the_same() -> None:
    plain = nn.Linear(3, 2)

    def loss(state: Any, address: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if len(x) == 1:
            raise RuntimeError("the model's own mistake")
        return nn.functional.cross_entropy(plain(x), y)

    ours = CompiledLoss(loss, backend=refuse)
    given = (None, None, torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))
    with pytest.warns(UserWarning, match=r"not compile .*no kernel.*training.compile = false"):
        first = ours(*given)
    assert torch.equal(first, loss(*given))
    assert torch.equal(ours(*given), first)  # and says it once
    with pytest.raises(RuntimeError, match="own mistake"):
        ours(None, None, torch.ones(1, 3), torch.zeros(1, dtype=torch.int64))


def test_a_model_is_compiled_once_whatever_the_data() -> None:
    """Another run of the process, with as many models and another number of samples."""
    compiled: list[object] = []

    def backend(graph: Any, _: object) -> Any:
        compiled.append(graph)
        return graph.forward

    with seed_generators(CPU, 0, "test"):
        modules = [nn.Sequential(nn.Flatten(), nn.Linear(36, 3)) for _ in range(3)]
    for samples, module in enumerate(modules, 9):
        problem = problem_of(module, [samples])
        vector, counters = problem.layout.flatten(module)
        x, y = problem.samples.take(torch.arange(4))
        given = ((vector, torch.zeros(0), counters), torch.tensor(0), x, y)
        assert torch.equal(
            CompiledLoss(loss_of(problem), backend=backend)(*given), loss_of(problem)(*given)
        )
    assert len(compiled) == 1


def test_rows_with_batch_norm_are_not_filled_up() -> None:
    assert can_stack(problem_of(small_cnn(), [4]))
    assert not can_stack(problem_of(with_norm(), [4]))


def test_a_job_of_no_rows() -> None:
    problem = problem_of(small_cnn(), [4])
    job = job_of(problem, [0], [1]).rows(np.zeros(0, np.int64))
    assert StackBackend(problem, 2)(problem, job).samples == 0
    assert StreamBackend(problem, 2)(problem, job).samples == 0
    assert replace(problem, compiles=True).compiles


@pytest.mark.parametrize("path", ["stacked", "sequential"])
def test_several_devices_share_a_job(path: str) -> None:
    """Two devices that are both the CPU: data copied, pieces shared out, results in order."""
    problem = problem_of(small_cnn(), [9, 4, 11, 0, 6])
    problems = [problem, executors._moved(problem, CPU)]
    assert problems[1].module is not problem.module
    pool = WorkerPool(
        [DeviceExecutor(one, executors._cuda_backend(one, path, 2)) for one in problems]
    )
    job = job_of(problem, [0, 1, 2, 3, 4], [3, 1, 5, 1, 2])
    pieces = cut(job.steps, 3)
    collector = Collector(job, len(pieces))
    done = pool.map(lambda one, rows: collector.collect(rows, one.train(job, rows)), pieces)
    assert len(pieces) == pool.count == 2
    assert_same(collector.joined(pieces, done), sequential.train(problem, job))


OPTIMISERS = {
    "momentum": {"momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.5},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1, "optimizer_state": "kept"},
    "schedule": {"schedule": ScheduleParams("cosine", warmup=3, steps=6)},
    "augmented": {"augment": AugmentParams(crop=2, flip=True)},
}


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("backend", [StackBackend, StreamBackend])
def test_optimisers_and_moves_are_those_of_the_reference(backend: Any, name: str) -> None:
    params = TrainerParams(**OPTIMISERS[name])
    problem = problem_of(small_cnn(), [9, 4, 11, 0])
    moves = Augmentation(params.augment)
    problem = replace(problem, optimiser=optimiser_of(params), augmentation=moves)
    job = job_of(problem, [0, 1, 2, 3, 0], [7, 3, 5, 2, 0])
    floats = problem.optimiser.moments * problem.layout.parameters
    state = torch.linspace(0, 0.1, 5 * floats).view(5, floats)
    job = replace(job, moments=state.clone(), taken=torch.tensor([0, 5, 2, 0, 1]))
    ours = backend(problem, 5)(problem, job)
    theirs = sequential.train(problem, replace(job, moments=state.clone()))
    assert_same(ours, theirs)
    torch.testing.assert_close(ours.moments, theirs.moments, rtol=1e-4, atol=1e-6)
    plain = sequential.train(problem_of(small_cnn(), [9, 4, 11, 0]), job)
    assert not torch.allclose(plain.models, theirs.models)
    again = replace(job, moments=None)  # zeros, whatever the buffers held
    assert_same(backend(problem, 5)(problem, again), sequential.train(problem, again))
