"""`dystop bound`: the corrected bound holds in every round of real convex runs."""

import json
import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment
from dystop.errors import ConfigError, RunFolderError, VerificationError
from dystop.folders.run_folder import open_run
from dystop.runs.building import build
from dystop.simulator.round import begin
from dystop_paper.bound import (
    RECIPE,
    BoundReport,
    bound_of,
    bound_of_experiment,
    regression_of,
)
from dystop_paper.cli.bound import summary
from dystop_paper.figures.bound import bound_figure
from dystop_paper.theory import convex

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


@pytest.mark.parametrize("seed", [0, 1, 2])
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


def test_whole_shards_leave_nothing_to_chance() -> None:
    """With batches as large as shards every step is exact, so the bound is no mere expectation."""
    experiment = read_experiment(None, [*CONVEX, "training.batch=400"])
    problem, components = regression_of(experiment), build(experiment).components
    first = components.trainer.initial()[0].double().numpy()
    models = begin(components).models.latest.double().numpy()
    for worker, trained in enumerate(models):  # the warm start is a step of eta on F_i
        slope = convex.gradient(problem.part(worker), first)
        np.testing.assert_allclose(trained, first - 0.1 * slope, atol=1e-7)
    found = bound_of_experiment(experiment)
    assert (found.constants.g_star == 0.0).all()
    assert found.holds


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
        ("mechanism.name=gossipfl", "not linearly"),
        ("mechanism.name=ad-psgd", "not activate"),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused(word: str, named: str) -> None:
    with pytest.raises(ConfigError, match="Theorem 1") as error:
        bound_of_experiment(read_experiment(None, [*CONVEX, word]))
    assert named in str(error.value)
    assert str(error.value).endswith(RECIPE)


def test_a_step_that_is_too_large_is_refused() -> None:
    words = [*CONVEX, "training.learning_rate=0.5"]
    with pytest.raises(ConfigError, match=r"training\.learning_rate=0\.125"):
        bound_of_experiment(read_experiment(None, words))


@pytest.fixture(scope="module")
def short() -> BoundReport:
    return bound_of_experiment(read_experiment(None, [*CONVEX, "stop.rounds=3"]))


def test_a_bound_that_says_nothing_says_so(short: BoundReport) -> None:
    rows = dict(summary(short))
    assert rows["measured below Lemma 1"] == "in every round"
    assert rows["Lemma 1 at the end"].endswith("no progress")
    allowed = f"{short.gap_seconds:.4g} s (largest Gamma met)"
    assert rows["Theorem 2: T Gamma / V"].startswith(f"{allowed}, more than")
    assert rows["Theorem 2: T Gamma / V"].endswith("says nothing")
    useful = replace(short, start=2 * float(short.recursion[-1]), durations_s=1e6)
    rows = dict(summary(useful))
    assert rows["Lemma 1 at the end"].endswith(f"was {useful.start:.4g}")
    assert rows["Theorem 2: T Gamma / V"] == allowed


def test_an_averaged_drift_divides_the_gap_by_the_workers() -> None:
    words = [*CONVEX, "stop.rounds=1", "mechanism.drift=mean"]
    summed = bound_of_experiment(read_experiment(None, [*words[:-1], "mechanism.V=10"]))
    averaged = bound_of_experiment(read_experiment(None, [*words, "mechanism.V=10"]))
    workers = len(summed.constants.xi)
    assert averaged.trade_off == workers * 10
    assert averaged.gap_seconds == pytest.approx(summed.gap_seconds / workers)


def test_one_round_above_the_bound_is_not_rounded_away(short: BoundReport) -> None:
    gap = short.gap.copy()
    gap[2] = 2 * short.recursion[2]
    rows = dict(summary(replace(short, gap=gap)))
    assert rows["measured below Lemma 1"] == "NOT at 1 of 4 points, first after round 2"


def test_the_figure_of_gaps_that_vanish_and_bounds_that_overflow(short: BoundReport) -> None:
    gap, literal = short.gap.copy(), short.literal.copy()
    gap[-1], literal[-1] = -1e-12, np.inf
    figure = bound_figure(replace(short, gap=gap, literal=literal)).figure
    assert figure is not None
    (axes,) = figure.axes
    low, high = axes.get_ylim()
    assert 0 < low < short.gap[:-1].min()
    assert short.recursion.max() < high < np.inf


def test_without_a_trade_off_theorem_2_has_no_gap(tmp_path: Path) -> None:
    words = [*CONVEX, "stop.rounds=2", "mechanism.V=0", "--out", str(tmp_path), "--name", "free"]
    assert CliRunner().invoke(app, ["run", *words, "--no-report", "-q"]).exit_code == 0
    result = CliRunner().invoke(app, ["bound", str(tmp_path / "free")])
    assert result.exit_code == 0, result.output
    row = next(x for x in result.output.splitlines() if "T Gamma / V" in x)
    assert "V = 0" in row
    assert "unlimited" in row
    content = json.loads((tmp_path / "free" / "bound" / "bound.json").read_text())
    assert content["theorem_2_gap_s"] is None


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    """A run that was planned for 25 rounds and reached its target after 2."""
    words = [*CONVEX, "stop.accuracy=0.01", "evaluate.every_rounds=2"]
    call = ["run", *words, "--out", str(tmp_path / "a b"), "--name", "stopped", "--no-report", "-q"]
    assert CliRunner().invoke(app, call).exit_code == 0
    return tmp_path / "a b" / "stopped"


def test_the_recorded_rounds_are_followed_and_no_more(stopped: Path) -> None:
    found, records = bound_of(stopped), open_run(stopped).records
    assert found.rounds == len(records) == 2
    assert found.durations_s == records[-1].clock_s
    assert found.tau_max == max(r.staleness_max for r in records)


def test_a_run_that_comes_out_differently_is_refused(stopped: Path) -> None:
    log = stopped / "records.jsonl"
    first, second = log.read_text().splitlines()
    changed = json.dumps({**json.loads(second), "clock_s": 77.0})
    log.write_text(f"{first}\n{changed}\n")
    with pytest.raises(VerificationError, match=r"^round 2 .*'dystop verify RUN'"):
        bound_of(stopped)


def test_what_cannot_be_repeated_is_refused(stopped: Path) -> None:
    info = json.loads((stopped / "run.json").read_text())
    (stopped / "run.json").write_text(json.dumps({**info, "kind": "testbed"}))
    simulate = f"dystop run '{stopped / 'config.toml'}'"
    with pytest.raises(RunFolderError, match=rf"testbed.*{re.escape(simulate)}$"):
        bound_of(stopped)
    (stopped / "run.json").write_text(json.dumps(info))
    (stopped / "records.jsonl").write_text("")
    with pytest.raises(RunFolderError, match=re.escape(f"dystop resume '{stopped}'") + "$"):
        bound_of(stopped)


def test_the_command(tmp_path: Path) -> None:
    words = [*CONVEX, "stop.rounds=6", "--out", str(tmp_path), "--name", "convex", "--no-report"]
    assert CliRunner().invoke(app, ["run", *words, "-q"]).exit_code == 0
    result = CliRunner().invoke(app, ["bound", str(tmp_path / "convex")])
    assert result.exit_code == 0, result.output
    assert "in every round" in result.output
    folder = tmp_path / "convex" / "bound"
    content = json.loads((folder / "bound.json").read_text())
    assert len(content["gap"]) == 7
    assert content["holds"]
    assert np.isfinite(content["F_star"])
    assert {p.suffix for p in folder.iterdir()} == {".json", ".png", ".pdf", ".svg"}


def test_code_of_somebody_elses_folder_is_not_imported(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "me"))
    words = [*CONVEX, "stop.rounds=1", "--out", str(tmp_path), "--name", "theirs", "--no-report"]
    assert CliRunner().invoke(app, ["run", *words, "-q"]).exit_code == 0
    file, info = tmp_path / "theirs/config.toml", tmp_path / "theirs/run.json"
    file.write_text(file.read_text().replace("softmax-unit", "their_code:make"))
    noted = json.loads(info.read_text()) | {"config_sha256": sha256(file.read_bytes()).hexdigest()}
    info.write_text(json.dumps(noted))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_code.py").write_text("open('imported', 'w')")
    refused = CliRunner().invoke(app, ["bound", "theirs"])
    assert refused.exit_code == 2, refused.output
    assert "their_code:make" in refused.output
    assert "--trust" in refused.output
    assert not (tmp_path / "imported").exists()
