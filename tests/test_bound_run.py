"""`dystop bound`: the corrected bound holds in every round of real convex runs."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.errors import ConfigError
from dystop.experiments.bound import bound_of_experiment
from dystop.experiments.spec import read_experiment

CONVEX = [
    "model.name=softmax-unit",
    "training.l2=0.1",
    "training.local_steps=1",
    "training.learning_rate=0.1",
    "data.train_limit=400",
    "data.test_limit=50",
    "fleet.workers=6",
    "stop.rounds=25",
]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("phi", [0.4, 1.0])
@pytest.mark.parametrize("limit", [0, 2, 8])
def test_the_measured_gap_stays_below_the_bound(seed: int, phi: float, limit: int) -> None:
    words = [f"seed={seed}", f"data.phi={phi}", f"mechanism.staleness_bound={limit}"]
    found = bound_of_experiment(read_experiment(None, [*CONVEX, *words]))
    assert found.rounds == 25
    assert (found.gap > 0).all()
    assert (found.gap <= found.recursion).all()
    assert found.gap[-1] < found.gap[0]
    assert found.literal[-1] > found.recursion[-1]


def test_other_mechanisms_that_pull_are_covered() -> None:
    words = ["mechanism.name=d-psgd", "stop.rounds=8"]
    found = bound_of_experiment(read_experiment(None, [*CONVEX, *words]))
    assert found.holds
    assert found.gap_seconds is None


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("model.name=cnn", "model.name = 'cnn'"),
        ("training.l2=0", "training.l2 = 0"),
        ("training.local_steps=2", "training.local_steps = 2"),
        ("engine.publish=on_completion", "engine.publish"),
        ("mechanism.name=fedavg", "mechanism fedavg"),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused(word: str, named: str) -> None:
    with pytest.raises(ConfigError, match="Theorem 1 says nothing") as error:
        bound_of_experiment(read_experiment(None, [*CONVEX, word]))
    assert named in str(error.value)


def test_a_step_that_is_too_large_is_refused() -> None:
    words = [*CONVEX, "training.learning_rate=0.5"]
    with pytest.raises(ConfigError, match=r"training\.learning_rate=0\.125"):
        bound_of_experiment(read_experiment(None, words))


def test_the_command(tmp_path: Path) -> None:
    words = [*CONVEX, "stop.rounds=6", "--out", str(tmp_path), "--name", "convex", "--no-report"]
    assert CliRunner().invoke(app, ["run", *words, "-q"]).exit_code == 0
    result = CliRunner().invoke(app, ["bound", str(tmp_path / "convex")])
    assert result.exit_code == 0, result.output
    assert "in every round" in result.output
    folder = tmp_path / "convex" / "bound"
    told = json.loads((folder / "bound.json").read_text())
    assert len(told["gap"]) == 7
    assert told["holds"]
    assert np.isfinite(told["F_star"])
    assert {p.suffix for p in folder.iterdir()} == {".json", ".png", ".pdf", ".svg"}
