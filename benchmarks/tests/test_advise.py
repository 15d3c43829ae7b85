"""The worlds on which benchmarks/advise.py checks the advice."""

import importlib.util
import sys
from pathlib import Path

import pytest

from dystop.config import read_experiment
from dystop.studies.trials import pace_of

FILE = Path(__file__).parents[1] / "advise.py"


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("benchmark_advise", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclass looks itself up
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        del sys.modules[spec.name]


def test_worlds_follow_from_a_seed_and_cover_both_laws(benchmark):
    every = benchmark.worlds(2026, 10)
    assert every == benchmark.worlds(2026, 10)
    assert every != benchmark.worlds(2027, 10)
    assert {world.timing for world in every} == {"paper", "overlap"}


def test_a_world_is_where_its_place_says(benchmark):
    world = benchmark.worlds(2026, 10)[0]
    experiment = read_experiment(None, world.words)
    assert experiment.world.compute.spread == world.place["spread"]
    assert experiment.data.phi == world.place["skew"]
    assert pace_of(experiment).ratio == pytest.approx(world.place["communication"], rel=0.01)
