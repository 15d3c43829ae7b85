"""Models that diverge end a run early, and everything else goes on."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment
from dystop.control.stopping import Stop, ends_early, ends_run, has_diverged, stop_reason
from dystop.folders.run_folder import open_run
from dystop.report.data.notices import notices
from dystop.studies.study import finished
from dystop.testbed.setup.enrolment import coordinator_setup
from dystop.testbed.setup.launch import make_folder
from support.fake_runs import changed, record_of_round

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

SMALL = [
    "data.name=synthetic", "data.options.train=200", "data.options.test=60",
    "model.name=softmax", "fleet.workers=6", "stop.rounds=9", "evaluate.every_rounds=2",
]  # fmt: skip
STEEP = "training.learning_rate=1e6"


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("loss", "lost", "limit", "ends"),
    [
        (2.3, 0, 1000.0, False),
        (1000.0, 0, 1000.0, False),
        (1e6, 0, 1000.0, True),
        (1e6, 0, 0.0, False),
        (2.3, 1, 1000.0, True),
        (None, 6, 1000.0, True),
        (None, 6, 0.0, False),
        (None, None, 1000.0, False),
    ],
)
def test_an_evaluation_tells_whether_models_have_diverged(loss, lost, limit, ends):
    record = changed(record_of_round(4, accuracy=0.1), test_loss=loss, diverged=lost)
    stop = Stop(rounds=9, diverged=limit)
    assert has_diverged(limit, record) == bool(ends_early(stop, record)) == ends
    assert ends_run(stop, record) == ends
    if ends:
        assert stop_reason(stop, record).startswith("diverged in round 4: the ")


@pytest.fixture(scope="module")
def steep(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    return out / "steep", call("run", *SMALL, STEEP, "--out", out, "--name", "steep")


def test_a_run_ends_at_the_evaluation_that_shows_it(steep):
    folder, result = steep
    assert result.exit_code == 7
    said = result.stderr.splitlines()[-1]
    for text in ("Error: ", str(folder), "diverged in round 2", "training.learning_rate",
                 "stop.diverged=0"):  # fmt: skip
        assert text in said
    assert [line["round"] for line in lines(folder)] == [1, 2]
    info = open_run(folder).info
    assert info["status"] == "finished"
    assert info["stop_reason"].startswith("diverged in round 2")
    assert "diverged in round 2" in (folder / "report" / "report.html").read_text()
    assert call("verify", folder).exit_code == 0
    assert call("resume", folder, "--no-report").exit_code == 7


def test_rounds_decided_ahead_leave_no_trace(steep, tmp_path):
    result = call("run", *SMALL, STEEP, "engine.ahead=false", "--out", tmp_path, "--name", "plain")
    assert result.exit_code == 7
    assert lines(tmp_path / "plain") == lines(steep[0])


def test_it_may_go_on(tmp_path):
    words = [*SMALL, STEEP, "stop.diverged=0", "--out", tmp_path, "--name", "on"]
    assert call("run", *words, "--no-report").exit_code == 0
    assert len(lines(tmp_path / "on")) == 9
    assert any("diverged" in text for text in notices([open_run(tmp_path / "on")]))


def test_a_comparison_goes_on_and_names_the_runs(tmp_path):
    words = [*SMALL, STEEP, "--mechanisms", "d-psgd,sa-adfl", "--seeds", "2"]
    done = call("compare", *words, "--out", tmp_path, "--name", "steep")
    assert done.exit_code == 0, done.output
    runs = list((tmp_path / "steep").glob("*-s*"))
    assert len(runs) == 4
    assert all(map(finished, runs))
    assert done.output.count("diverged in round 2: ") == 4
    assert "epochs in" in done.output  # "all" may stand in the next line of a narrow column
    page = (tmp_path / "steep" / "report" / "report.html").read_text()
    assert "diverged in round 2, 2 (2 of 2 seeds)" in page
    assert "epochs in all" in page


def test_a_comparison_in_processes_goes_on_too(tmp_path):
    words = [*SMALL, STEEP, "--mechanisms", "d-psgd", "--seeds", "2", "--jobs", "2"]
    done = call("compare", *words, "--out", tmp_path, "--name", "steep")
    assert done.exit_code == 0, done.output
    assert [finished(tmp_path / "steep" / f"d-psgd-s{seed}") for seed in (0, 1)] == [True, True]
    assert done.output.count("diverged in round 2: ") == 2


def test_signed_weights_are_named_as_a_reason(tmp_path):
    words = [*SMALL, STEEP, "mechanism.name=d-psgd", "mechanism.weights=optimal"]
    said = call("run", *words, "--no-report", "--out", tmp_path, "--name", "signed").stderr
    assert "negative" in said
    assert "mechanism.weights=metropolis" in said


def test_a_testbed_goes_on(tmp_path):
    """One hostile member could otherwise end it with a model of its own."""
    experiment = read_experiment(None, [*SMALL, "testbed.transport=memory"])
    _, prepared = make_folder(experiment, tmp_path, "testbed")
    assert experiment.stop.diverged > 0
    assert coordinator_setup(prepared.experiment, prepared.enrolment, "run").stop.diverged == 0
