"""Benchmarks small enough for a test."""

import json
import time

import pytest

from bench_fixtures import CPU, TINY
from dystop_benchmarks import child, planning, processes, references
from dystop_benchmarks import settings as bench_settings
from dystop_benchmarks.settings import Settings


@pytest.fixture
def tiny(tmp_path):
    return Settings(CPU, ("softmax",), TINY, tmp_path, workers=3, repeat=2)


@pytest.fixture
def quick(monkeypatch):
    """`--quick` made quicker still, and no plain loop in processes of its own."""
    monkeypatch.setattr(bench_settings, "QUICK", TINY)
    monkeypatch.setattr(references, "plain_loop_images_per_s", lambda processes, n, rounds: 100.0)


@pytest.fixture
def planned(monkeypatch):
    """Planning that costs 1 microsecond per worker, and 4 by the twin."""

    def cost(workers, rounds, seed=0, each_s=1e-6):
        s = each_s * workers
        return planning.PlannerCost(workers, 20.0, workers, 9 * workers, s, s, (s,) * rounds, 10**8)

    monkeypatch.setattr(planning, "measure_planner", cost)
    monkeypatch.setattr(planning, "measure_planner", cost)
    monkeypatch.setattr(planning, "reference_planner", lambda *args: cost(*args, each_s=4e-6))


@pytest.fixture
def inline(monkeypatch):
    """Runs that are measured in processes of their own happen here instead."""
    seen = []

    def python(words, more=processes.NOTHING):
        seen.append(dict(more))
        return json.dumps(child.measure(list(words[2:]), time.perf_counter()))

    monkeypatch.setattr(processes, "python", python)
    return seen
