"""Optimisers in whole runs: the example, waves, the testbed's workers, bad input."""

from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.config import read_experiment
from dystop.folders.run_folder import open_run
from dystop.runs.building import build
from dystop.simulator.pipeline import simulate_ahead
from dystop.simulator.round import begin, simulate
from dystop.testbed.events import StartTraining
from dystop.testbed.setup.parts import observer_parts, worker_parts

EXAMPLE = Path(__file__).parents[2] / "examples" / "optimisers.toml"
SMALL = ["data.name=synthetic", "fleet.workers=5", "model.name=softmax", "training.momentum=0.9"]


def test_the_example(tmp_path):
    words = ["data.train_limit=400", "data.test_limit=100", "model.name=softmax", "stop.rounds=12"]
    out = ["--out", str(tmp_path), "--name", "x", "--no-report"]
    done = CliRunner().invoke(app, ["run", str(EXAMPLE), *words, "evaluate.every_rounds=4", *out])
    assert done.exit_code == 0, done.output
    assert "optimiser state" in done.output
    scores = [r.accuracy for r in open_run(tmp_path / "x").records if r.accuracy is not None]
    assert scores[-1] > 0.15


@pytest.mark.parametrize("state", ["kept", "mixed"])
def test_trainings_that_wait_take_their_state_along(state):
    words = [*SMALL, f"training.optimizer_state={state}", "training.schedule.warmup=9"]
    words += ["mechanism.name=ad-psgd", "stop.rounds=12", "engine.publish=on_completion"]
    parts = build(read_experiment(None, words)).components
    assert parts.trainer.path == "fused"
    runs = []
    for run in (
        simulate(parts, begin(parts)),
        simulate_ahead(parts, begin(parts), lambda t: False),
    ):
        records, states = zip(*run, strict=True)
        runs.append(([r.to_json() for r in records], states[-1].models))
    assert runs[0][0] == runs[1][0]
    assert torch.equal(runs[0][1].latest, runs[1][1].latest)
    assert torch.equal(runs[0][1].counters, runs[1][1].counters)
    assert runs[0][1].counters.any()


@pytest.mark.parametrize("state", ["reset", "kept", "mixed"])
def test_a_worker_of_the_testbed_takes_the_steps_of_the_simulator(state):
    """Two trainings, one after the other; images are moved alike."""
    words = [*SMALL, f"training.optimizer_state={state}", "training.augment.crop=1",
             "training.augment.flip=true", "training.schedule.warmup=4"]  # fmt: skip
    experiment = read_experiment(None, words)
    parts, worker = build(experiment).components, worker_parts(experiment, 3)
    assert worker.schema.width == parts.trainer.width == observer_parts(experiment).schema.width
    assert parts.fleet.model_bytes == 4 * parts.trainer.width
    vector, counters = worker.vector, worker.counters
    models, counts = (part[None] for part in parts.trainer.initial())
    for number in (0, 1):
        ended = worker.train(StartTraining(number, vector, counters, 3, 1.0))
        vector, counters = ended.vector, ended.counters
        trained = parts.trainer.train(models, counts, *np.array([[3], [number], [3]]))
        models, counts = trained.models, trained.counters
        np.testing.assert_array_equal(vector, models[0].numpy())
        np.testing.assert_array_equal(counters, counts[0].numpy())


def test_a_plan_counts_the_bytes_of_a_mixed_state():
    words = [*SMALL, "engine.train=false", "training.optimizer_state="]
    reset, mixed = (build(read_experiment(None, [*words[:-1], words[-1] + state]))
                    for state in ("reset", "mixed"))  # fmt: skip
    plain, double = (built.components.fleet.model_bytes for built in (reset, mixed))
    assert double == 2 * plain


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["training.momentum=1.5"], "training.momentum = 1.5; expected a number >= 0 and < 1"),
        (["training.nesterov=true"], "training.nesterov = true needs training.momentum above 0"),
        (["training.betas=[0.9, 1]", "training.optimizer=adam"], "training.betas = [0.9, 1]"),
        (["training.optimizer=rmsprop"], "expected one of 'sgd', 'adam', 'adamw'"),
        (["training.schedule.name=cosine"], "needs training.schedule.steps"),
        (["training.augment.crop=8"], "images of 8 x 8 would be moved out of sight"),
    ],
)
def test_bad_input_is_refused_before_a_folder_exists(tmp_path, words, why):
    given = ["data.name=synthetic", "model.name=softmax", *words, "--out", str(tmp_path)]
    done = CliRunner().invoke(app, ["run", *given])
    assert done.exit_code != 0
    assert why in " ".join(done.output.split())
    assert not list(tmp_path.iterdir())
