"""Runs without kernels reach the same decisions."""

import json

import pytest

import dystop
from dystop import acceleration
from dystop.acceleration import Accelerated
from support.stored_runs import (
    GOLDEN,
    GOLDEN_RUNS,
    SMALL,
    assert_same,
    golden_lines,
    read_lines,
)

MECHANISMS = ("dystop", "matcha", "asydfl", "d-psgd", "epidemic", "hadfl", "sa-adfl", "fedavg")


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    """Only references run; importing a kernel fails the test."""
    monkeypatch.setattr(Accelerated, "enabled", False)
    monkeypatch.setattr(acceleration, "_imported", lambda path: pytest.fail(f"imported {path}"))


@pytest.mark.parametrize("name", GOLDEN_RUNS)
def test_golden_runs_repeat(name):
    assert_same(golden_lines(name), read_lines(GOLDEN / f"{name}.jsonl"))


@pytest.mark.parametrize("laws", [("paper", "eager"), ("overlap", "on_completion")], ids="-".join)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_80_workers_decide_the_same_with_kernels(mechanism, laws, monkeypatch):
    timing, publish = laws
    words = [*SMALL, f"engine.timing={timing}", f"engine.publish={publish}"]

    def lines():
        run = dystop.simulate(
            mechanism, workers=80, dataset="synthetic", rounds=10, seed=5, overrides=words
        )
        return [json.loads(record.to_json()) for record in run]

    without = lines()
    monkeypatch.undo()
    assert_same(lines(), without)
