"""A real run, played back in the simulator: same plans, same models, about the same time."""

import subprocess
import sys

import numpy as np
import pytest

from dystop.engine.rounds import begin, simulate
from dystop.experiments.build import build
from dystop.experiments.gap import gap_of
from dystop.experiments.spec import read_experiment
from dystop.runtime.shell.vault import decode

# Links and trainings take a good part of a second, so that what the machine itself needs for
# messages and mixing is small beside them.
WORDS = [
    "fleet.workers=4",
    "stop.rounds=8",
    "data.name=synthetic",
    "data.synthetic.train=400",
    "data.synthetic.test=100",
    "model.name=softmax",
    "world.compute.batch_s=0.1",
    "world.range_m=80",
    "world.channel.bandwidth_hz=30000",
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Folder of a run of the testbed in which nothing failed."""
    out = tmp_path_factory.mktemp("runs")
    words = ["testbed", "--transport", "memory", *WORDS, "--out", str(out), "--name", "trial"]
    done = subprocess.run(
        [sys.executable, "-m", "dystop", *words, "--no-report", "--quiet"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out / "trial"


def test_plans_and_completion_time(recorded):
    found = gap_of(recorded, lambda *_: None)
    assert found.rounds == 8
    assert found.replay.plans.same_active == 1.0
    assert found.replay.plans.same_links == 1.0
    assert abs(found.replay.durations.total) <= 0.10
    assert found.link_model.count > 0
    assert found.step_model.count > 0


def test_models(recorded):
    """What a worker published last is its newest finished model in the replay."""
    parts = build(read_experiment(recorded / "config.toml", [f"trace={recorded}"])).parts
    *_, (_, state) = simulate(parts, begin(parts))
    for node, version in enumerate(state.books.version.tolist()):
        saved = recorded / "workers" / f"w{node:02d}" / "worker.safetensors"
        worker = decode(saved.read_bytes())
        assert worker.number in (version, version - 1)
        models = state.models.latest if worker.number == version else state.models.finished
        np.testing.assert_allclose(worker.published, models[node].numpy(), atol=1e-5)
