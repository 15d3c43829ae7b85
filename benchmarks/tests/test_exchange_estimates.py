"""`benchmarks/exchange_estimates.py` compares expectations with what the same workers realised."""

import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parents[1] / "exchange_estimates.py"
STILL = ["world.channel.fading=false", "world.channel.power_fluctuation=0"]
FREE = [*STILL, "world.budget.binds=nobody", "fleet.workers=20", "stop.seconds=8"]


@pytest.fixture(scope="module")
def measure():
    spec = importlib.util.spec_from_file_location("exchange_estimates", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.measure


def test_without_fading_and_budgets_the_ranked_estimate_is_exact(measure):
    _, _, expected, took, agreement, *_ = measure("ranked", FREE).split("|")
    assert expected == took
    assert float(agreement) == pytest.approx(1.0)


def test_the_kth_fastest_candidate_is_faster_than_the_links_that_are_chosen(measure):
    _, _, expected, took, *_ = measure("kth", FREE).split("|")
    assert float(expected.split()[0]) < float(took.split()[0])
