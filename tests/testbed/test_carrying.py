"""Mechanisms that carry vectors train from the same models in the testbed as in the simulator."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment
from dystop.runs.building import build
from dystop.simulator.round import begin, simulate
from dystop.testbed.audit.check import check_run
from dystop.testbed.setup import threads

FOLDER = Path(__file__).parents[2] / "examples" / "mechanisms"
WORDS = [
    f"mechanism.folder={FOLDER}", "fleet.workers=4", "stop.rounds=4", "data.name=synthetic",
    "data.options.train=120", "data.options.test=20", "model.name=softmax", "world.range_m=200",
    "training.device=cpu",
]  # fmt: skip
NAMES = ("push_sum:PushSum", "kgt:KGT", "noloco:NoLoCo")
OPTIONS = {
    "plain": [],
    "momentum": ["training.momentum=0.9", "training.optimizer_state=kept"],
    "adam": [
        "training.optimizer=adam", "training.learning_rate=0.01", "training.optimizer_state=mixed",
    ],
}  # fmt: skip


def starts_in_simulator(words):
    """Return vector and counters with which each training begins, by worker and number."""
    components = build(read_experiment(None, words)).components
    found, train = {}, components.trainer.train

    def record(models, counters, workers, versions, steps, rates=None):
        for k, (worker, number) in enumerate(zip(workers, versions, strict=True)):
            found[int(worker), int(number)] = models[k].numpy().copy(), counters[k].numpy().copy()
        return train(models, counters, workers, versions, steps, rates)

    components.trainer.train = record
    for _ in simulate(components, begin(components)):
        pass
    return found


def starts_on_testbed(words, monkeypatch):
    """Return the same of a testbed whose parties are threads."""
    found, make = {}, threads.worker_parts

    def parts_of(experiment, node, *file):
        parts = make(experiment, node, *file)

        def train(request):
            found[node, request.number] = np.array(request.vector), np.array(request.counters)
            return parts.train(request)

        return replace(parts, train=train)

    monkeypatch.setattr(threads, "worker_parts", parts_of)
    options = ["testbed.time_scale=0.01", "testbed.links=free", "--transport", "memory"]
    end = ["--quiet", "--no-report", "--name", "trial"]
    result = CliRunner().invoke(app, ["testbed", *words, *options, *end])
    assert result.exit_code == 0, result.output
    assert check_run(Path("runs/trial")) == []
    return found


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", NAMES)
def test_trainings_begin_where_they_do_in_the_simulator(name, option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*WORDS, f"mechanism.name={name}", *OPTIONS[option]]
    simulated, real = starts_in_simulator(words), starts_on_testbed(words, monkeypatch)
    assert simulated.keys() == real.keys()
    for key, (vector, counters) in simulated.items():
        np.testing.assert_allclose(real[key][0], vector, atol=2e-5, err_msg=str(key))
        assert counters.shape == real[key][1].shape
        if option != "adam":  # what is at home; it has a number of steps in front
            floats = counters.view(np.float32), real[key][1].view(np.float32)
            np.testing.assert_allclose(*floats, atol=2e-5, err_msg=str(key))
