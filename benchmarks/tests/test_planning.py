"""Planning for many workers: it equals a plain reference, and its memory is linear in the links.

`dystop bench planner` measures the time; these tests do not.
"""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from dystop import parallel
from dystop_benchmarks.planning import fleet_of, params_of, planned_rounds, queues_of
from planning_reference import PlanningReference


def same(a, b):
    """Return whether two sequences hold equal arrays."""
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("workers", [12, 700])
def test_the_planner_decides_as_the_reference(workers):
    fleet, params = fleet_of(workers, 24, seed=3), params_of(workers)
    planned = planned_rounds(fleet, params, 6)
    expected = PlanningReference(params, fleet).rounds(queues_of(fleet), 6)
    for found, wanted in zip(planned, expected, strict=True):
        assert found[1] == wanted[1]
        assert same(found[2:], wanted[2:])


def test_decisions_do_not_depend_on_cores_or_blocks(monkeypatch):
    fleet, params = fleet_of(400, 16, seed=1), params_of(400, mobile=True)
    plain = [done[2:] for done in planned_rounds(fleet, params, 4)]
    monkeypatch.setattr(parallel, "cores", lambda: 3)
    for name in (
        "kernels.geometry._ROWS",
        "kernels.mixing_rows._ROWS",
        "kernels.neighbours._CELLS",
        "kernels.neighbours._ROWS",
        "kernels.pairs._BLOCK",
        "kernels.priority._BLOCK",
        "kernels.topology._ROWS",
        "kernels.topology._WORKERS",
        "world.reach._LINKS",
        "world.world._LINKS",
    ):
        monkeypatch.setattr(f"dystop.{name}", 7)
    monkeypatch.setattr("dystop.kernels.pairs._PAIRS", 64)
    assert all(
        same(done[2:], before)
        for done, before in zip(planned_rounds(fleet, params, 4), plain, strict=True)
    )


def peak_bytes_per_link(workers):
    """Return the peak memory of four planned rounds, divided by the links in reach."""
    fleet, params = fleet_of(workers, 8, seed=0), params_of(workers)
    tracemalloc.start()
    try:
        edges = [edges for _, edges, *_ in planned_rounds(fleet, params, 4)][-1]
        return tracemalloc.get_traced_memory()[1] / edges
    finally:
        tracemalloc.stop()


def test_memory_is_linear_in_links():
    """A million workers with 20 links each must fit into 4 GB: 200 bytes a link."""
    peak_bytes_per_link(500)  # do not count what is allocated once
    small, large = peak_bytes_per_link(4_000), peak_bytes_per_link(16_000)
    assert large < 190
    assert large < 1.2 * small


def test_planning_a_hundred_thousand_workers_stays_sparse():
    """Memory of view, WAA and PTCA at 20 candidates each."""
    script = Path(__file__).parents[1] / "planning.py"
    words = [sys.executable, str(script), "--workers", "100000", "--rounds", "2", "--json"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    (row,) = json.loads(result.stdout)
    assert row["candidates"] == pytest.approx(20, abs=1)
    assert row["links"] > 100_000
    assert row["peak_bytes"] < 2e9
