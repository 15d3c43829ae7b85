"""The benchmarks of the testbed, with few workers and short trainings."""

from pathlib import Path

import pytest
import torch

from dystop.errors import DystopError
from dystop_benchmarks.settings import Scale, Settings
from dystop_benchmarks.suite import BENCHES
from dystop_benchmarks.testbed import coordinator, serving

TINY = Scale(8, 20, 2, 20, (64,), 0.02, 1)


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch) -> Settings:
    monkeypatch.setattr(coordinator, "_ROUNDS", 5)
    monkeypatch.setattr(coordinator, "_LEAST_ROUNDS", 5)
    monkeypatch.setattr(serving, "_LEAST_REPEATS", 2)
    return Settings(torch.device("cpu"), ("softmax",), TINY, tmp_path, workers=8, repeat=2)


def test_both_lines_are_measured_beside_their_reference(tiny):
    said = []
    rounds, pace = BENCHES["testbed"](tiny, said.append)
    assert said == [rounds.name, pace.name]
    assert rounds.name == "coordinator of 8 in-process workers"
    assert (rounds.unit, pace.unit) == ("rounds/s", "images/s")
    assert rounds.ratio.low > 0.0
    assert len(pace.ratio.samples) == 2
    assert pace.ratio.low > 0.0
    assert pace.detail["served_mb_per_s"] > 0.0


def test_processor_time_is_told_beside_the_clock(tmp_path):
    setup = coordinator.setup_of(6, 15)
    cost = coordinator.coordinator_speed(setup, tmp_path)
    assert 0.0 < cost["coordinator_cpu_s_per_round"] <= cost["cpu_s_per_round"]
    assert cost["rounds_per_s"] > 0.0


def test_a_worker_that_does_not_join_is_quoted(tiny, monkeypatch):
    monkeypatch.setattr(serving, "_EXPERIMENT", 'model.name = "no such model"\n')
    with pytest.raises(DystopError, match="no such model"):
        list(serving.serving_lines(tiny, lambda text: None))
