"""Small training problems on the CPU, and the comparison of a back end with the reference."""

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn

from dystop.training.flat import layout_of
from dystop.training.problem import Job, Problem
from dystop.training.samples import Arrays, both_samples, shards_of

CPU = torch.device("cpu")


def problem_of(module: nn.Module, sizes: list[int], batch: int = 4, draws: bool = False) -> Problem:
    random = np.random.default_rng(1)
    total = sum(sizes)
    x = random.integers(0, 256, (total, 1, 6, 6), dtype=np.uint8)
    y = random.integers(0, 3, total)
    data = Arrays(x, y, x[:4], y[:4], 0.5, 0.25)
    ends = np.cumsum([0, *sizes])
    parts = [np.arange(lo, hi) for lo, hi in pairwise(ends)]
    samples, _ = both_samples(data, CPU)
    module = module.train()
    shards = shards_of(parts, total)
    return Problem(module, layout_of(module), samples, shards, batch, 0.1, 7, 8, draws)


def job_of(problem: Problem, workers: list[int], steps: list[int]) -> Job:
    vector, counters = problem.layout.flatten(problem.module)
    rows = len(workers)
    noise = torch.from_numpy(np.random.default_rng(2).normal(0, 0.05, (rows, len(vector))))
    models = vector + noise.float()
    return Job(
        models,
        counters.repeat(rows, 1),
        np.array(workers),
        np.arange(rows),
        np.array(steps),
        np.linspace(0.5, 1.0, rows),
    )


def assert_same(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours.models, theirs.models, rtol=1e-4, atol=1e-5)
    assert torch.equal(ours.counters, theirs.counters)
    np.testing.assert_allclose(ours.loss, theirs.loss, rtol=1e-4)
    assert ours.samples == theirs.samples


def normed(channels, size, classes):
    """A user's own model with two batch norms and dropout."""
    width = channels * size[0] * size[1]
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(width, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(6, 5), nn.BatchNorm1d(5, momentum=None), nn.ReLU(), nn.Linear(5, classes),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    for parameter in module.parameters():
        parameter.data.copy_(torch.from_numpy(rng.normal(size=tuple(parameter.shape))))
    return module
