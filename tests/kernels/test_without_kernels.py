"""Runs without kernels reach the same decisions."""

import pytest

from dystop import acceleration
from dystop.acceleration import Accelerated
from support.stored_runs import (
    GOLDEN,
    GOLDEN_RUNS,
    LAWS,
    assert_same,
    golden_lines,
    lines_again,
    read_lines,
    unpacked,
)

MECHANISMS = ("dystop", "matcha", "asydfl", "d-psgd", "epidemic", "hadfl", "sa-adfl", "fedavg")


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch):
    """Only references run; importing a kernel fails the test."""
    monkeypatch.setattr(Accelerated, "enabled", False)
    monkeypatch.setattr(acceleration, "_imported", lambda path: pytest.fail(f"imported {path}"))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return unpacked("runs", tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", GOLDEN_RUNS)
def test_golden_runs_repeat(name):
    assert_same(golden_lines(name), read_lines(GOLDEN / f"{name}.jsonl"))


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_runs_of_80_workers_repeat(runs, mechanism, law):
    folder = runs / f"{mechanism}--{law}"
    assert_same(lines_again(folder), read_lines(folder / "records.jsonl"))
