"""The system of the paper is a small core; everything around it may be absent.

The core is what `support.core_run.CORE` lists, with the sequential training back end. Kernels, fast
back ends, testbed, experiments, reports, dashboard, benchmarks and command line stand around it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dystop.config import read_experiment
from dystop.runs.building import build
from dystop.simulator import run_rounds
from dystop.simulator.round import begin
from support import core_run

MECHANISMS = ("dystop", "matcha")
MEASURED = ("loss", "accuracy", "accuracy_std", "accuracy_global", "test_loss", "test_loss_global")


@pytest.fixture(scope="module")
def core():
    """Records of every mechanism, from a process that cannot import what is around the core."""
    command = [sys.executable, str(Path(core_run.__file__)), *MECHANISMS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(MECHANISMS, map(json.loads, done.stdout.splitlines()), strict=True))


def product(mechanism):
    """Records of the whole product, with its kernels and its fastest back end."""
    words = [
        f"mechanism.name={mechanism}",
        f"seed={core_run.SEED}",
        f"fleet.workers={core_run.WORKERS}",
        f"stop.rounds={core_run.ROUNDS}",
        f"evaluate.every_rounds={core_run.ROUNDS}",
        "data.name=synthetic",
        "data.phi=0.5",
        "data.partition=dirichlet",
        "world.area_m=[100,100]",
        f"data.options.train={core_run.TRAIN}",
        f"data.options.test={core_run.TEST}",
        "model.name=softmax",
        "training.device=cpu",
    ]
    components = build(read_experiment(None, words)).components
    assert components.trainer.path != "sequential"
    return [json.loads(record.to_json()) for record, _ in run_rounds(components, begin(components))]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_core_alone_takes_the_same_decisions(mechanism, core):
    records, wanted = core[mechanism], product(mechanism)
    assert len(records) == len(wanted) == core_run.ROUNDS
    assert any(record["link_pairs"] for record in records)
    for record, want in zip(records, wanted, strict=True):
        measured = {name: record.pop(name) for name in MEASURED if name in record}
        assert measured == pytest.approx({name: want.pop(name) for name in measured}, rel=1e-3)
        assert record == want


@pytest.mark.parametrize(
    "name",
    ["dystop.kernels", "dystop.training.backends.cpu.backend", "dystop.testbed.params", "numba"],
)
def test_what_is_around_the_core_is_really_refused(name):
    with pytest.raises(ModuleNotFoundError, match=name):
        core_run.Blocker().find_spec(name)
