"""Short trials: their length in turns, the stages of successive halving, and `dystop advise`."""

import csv
import io
import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment
from dystop.mechanisms import MECHANISMS
from dystop.runs.building import build
from dystop.studies.trials import EVALUATIONS, horizon_s, pace_of, shortened, stages

SMALL = [
    "data.name=synthetic", "data.options.train=200", "data.options.test=60",
    "model.name=softmax", "fleet.workers=5", "world.range_m=90",
]  # fmt: skip
FEW = "dystop,matcha,fedavg,d-psgd"


def call(*words):
    return CliRunner().invoke(app, ["advise", *map(str, words)])


@given(st.integers(1, 40), st.floats(0.1, 1e5), st.integers(1, 9))
@settings(derandomize=True, deadline=None)
def test_every_stage_has_fewer_mechanisms_more_time_and_not_fewer_seeds(count, limit_s, seeds):
    plan = stages(count, limit_s, seeds)
    assert plan[0].size == count
    assert (plan[-1].seconds, plan[-1].seeds) == (limit_s, seeds)
    for before, after in pairwise(plan):
        assert before.size > after.size
        assert before.seconds < after.seconds
        assert before.seeds <= after.seeds


def test_all_mechanisms_cost_less_than_half_of_their_full_length():
    plan = stages(len(MECHANISMS), 1.0)
    others = 2  # winners by other goals go on, too
    spent = sum((s.size + others * (k > 0)) * s.seconds * s.seeds for k, s in enumerate(plan))
    assert spent < 0.6 * len(MECHANISMS) * plan[-1].seeds


def test_a_turn_is_one_training_and_one_transfer():
    experiment = read_experiment(None, SMALL)
    pace = pace_of(experiment)
    components = build(experiment).components
    seen = components.world.observe(1, 0.0)
    trainings = [int(n) * float(s) for n, s in zip(components.steps, seen.step_s, strict=True)]
    links = sorted(seen.link_s.tolist())
    middle = (links[(len(links) - 1) // 2] + links[len(links) // 2]) / 2
    assert pace.training_s == pytest.approx(sum(trainings) / len(trainings))
    assert pace.link_s == pytest.approx(middle)
    assert pace.ratio == pytest.approx(pace.link_s / pace.training_s)
    assert horizon_s(experiment, 40) == pytest.approx(40 * pace.turn_s, rel=0.01)


def test_trials_are_not_longer_than_the_users_own_run():
    assert horizon_s(read_experiment(None, [*SMALL, "stop.seconds=0.5"]), 40) == 0.5


def test_nobody_in_reach_has_no_link_time():
    assert pace_of(read_experiment(None, [*SMALL, "world.range_m=0.001"])).link_s == 0.0


def test_evaluations_of_the_user_are_kept():
    plain = shortened(read_experiment(None, SMALL), 12.0)
    own = shortened(
        read_experiment(None, [*SMALL, "evaluate.every_s=3", "evaluate.samples=20"]), 12
    )
    assert (plain.stop.seconds, plain.evaluate.every_s) == (12.0, 12.0 / EVALUATIONS)
    assert (own.evaluate.every_s, own.evaluate.samples) == (3.0, 20)


def test_advice_names_a_winner_a_runner_up_and_the_other_goals(tmp_path):
    result = call(*SMALL, "--mechanisms", FEW, "--seconds", 1.2, "--seeds", 2, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    for fact in ("Take ", "Runner-up", "By the other goals", "stage 1 of 2", "report: "):
        assert fact in result.stdout
    folder = tmp_path / "advise-synthetic"
    page = (folder / "report.html").read_text()
    rows = list(csv.DictReader(io.StringIO((folder / "advice.csv").read_text())))
    last = [row for row in rows if row["stage"] == "2"]
    assert {row["mechanism"] for row in rows} == set(FEW.split(","))
    assert all(name in page for name in FEW.split(","))
    assert f"Take {last[0]['mechanism']}" in result.stdout
    best = [float(row["time_s"]) for row in last if row["reached"] == row["seeds"]]
    assert float(last[0]["time_s"]) == min(best)
    assert all(math.isfinite(cost) for cost in best)

    records = {p: p.stat().st_mtime_ns for p in folder.glob("trials-*/*/records.jsonl")}
    again = call(*SMALL, "--mechanisms", FEW, "--seconds", 1.2, "--seeds", 2, "--out", tmp_path)
    assert again.exit_code == 0
    assert records == {p: p.stat().st_mtime_ns for p in records}
    assert result.stdout[result.stdout.index("Take ") :] in again.stdout


def test_a_mechanism_that_the_papers_law_serialises_is_named_though_it_was_dropped(tmp_path):
    words = [*SMALL, "fleet.workers=15", "--seconds", 2, "--seeds", 1, "--out", tmp_path]
    result = call(*words, "--mechanisms", "dystop,matcha,sa-adfl,d-psgd", "--name", "law")
    assert result.exit_code == 0, result.output
    assert "sa-adfl" not in {p.name for p in (tmp_path / "law" / "trials-2").iterdir()}
    assert "note: sa-adfl waits for rounds" in result.stderr
    assert "note: dystop waits for rounds" not in result.stderr
    page = (tmp_path / "law" / "report.html").read_text()
    for fact in ("sa-adfl waits for rounds", "timing law paper", "budgets bind mechanism"):
        assert fact in page


def test_all_leaves_out_what_cannot_run_here_and_servers_if_asked(tmp_path):
    words = [*SMALL, "staleness.rule=polynomial", "--seconds", 0.2, "--seeds", 1, "--out", tmp_path]
    result = call(*words, "--no-server")
    assert result.exit_code == 0, result.output
    assert "matcha is left out" in result.stderr
    rows = list(
        csv.DictReader((tmp_path / "advise-synthetic" / "advice.csv").read_text().splitlines())
    )
    tried = {row["mechanism"] for row in rows}
    assert "dystop" in tried
    assert not tried & {"fedasync", "fedsa", "fedavg", "matcha"}


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["--mechanisms", "dystp"], ["dystp", "dystop"]),
        (["--mechanisms", ""], ["--mechanisms names none"]),
        (["--seconds", "0"], ["--seconds 0", "above 0"]),
        (["--target", "80"], ["--target 80"]),
        (["engine.train=false"], ["engine.train", "planning only"]),
        (["no-such.toml"], ["no-such.toml", "no such file"]),
        (["world.rang_m=3"], ["world.rang_m", "range_m"]),
        (["--mechanisms", "fedavg", "--no-server"], ["fedavg", "base station", "--no-server"]),
        (["--mechanisms", "d-psgd", "staleness.rule=constant"], ["staleness.rule", "d-psgd"]),
        (["--set", "nobody.V=3", "--mechanisms", "dystop"], ["nobody.V=3", "dystop"]),
    ],
)
def test_mistakes_are_refused_before_anything_is_written(tmp_path, words, facts):
    own = words if words[0].endswith(".toml") else [*SMALL, *words]
    result = call(*own, "--out", tmp_path / "runs")
    assert result.exit_code == 2, result.output
    assert all(fact in result.stderr for fact in facts), result.stderr
    assert not (tmp_path / "runs").exists()


def test_the_command_that_resumes_is_complete(tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("dystop.studies.executors.driver.run_study", stop)
    words = [*SMALL, "--goal", "traffic", "--seconds", "1.5", "--seeds", "2", "--no-server"]
    words += ["--set", "dystop.V=20", "--mechanisms", FEW, "--target", "0.6"]
    result = call(*words, "--out", tmp_path, "--name", "two words")
    assert result.exit_code == 130
    command = result.stderr.partition("resume with: dystop advise ")[2]
    for part in [*words, f"--out {tmp_path}", "--name 'two words'"]:
        assert part in command
