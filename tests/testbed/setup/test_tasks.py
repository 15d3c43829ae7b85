"""Other tasks and adapters on a testbed: the same trainer, the same names of scores."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment
from dystop.folders.run_folder import CONFIG, open_run
from dystop.runs.run import run_experiment
from dystop.testbed.audit.check import check_run
from dystop.testbed.setup.enrolment import coordinator_setup, read_enrolment

SHORT = [
    "fleet.workers=3",
    "stop.rounds=3",
    "evaluate.every_rounds=1",
    "testbed.time_scale=0.01",
    "--transport",
    "memory",
    "--quiet",
    "--no-report",
]
TEXT = [
    "data.name=generated-text",
    "data.options.train=48",
    "data.options.test=12",
    "data.options.length=6",
    "data.options.sources=3",
    "model.name=transformer",
]
TABLE = [
    "data.name=generated-table",
    "data.options.train=60",
    "data.options.test=20",
    "model.name=mlp",
]


def on_testbed(*words):
    result = CliRunner().invoke(app, ["testbed", *words, *SHORT, "--name", "trial"])
    assert result.exit_code == 0, result.output
    assert check_run(Path("runs/trial")) == []
    return open_run(Path("runs/trial"))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_adapters_of_a_text_model_travel_between_workers():
    base = read_experiment(None, [*TEXT, "fleet.workers=1", "stop.rounds=1"])
    run_experiment(base, Path("runs"), "base", lambda _: None, lambda _: None)
    run = on_testbed(*TEXT, "model.base=runs/base", "model.adapter=lora", "model.lora.rank=2")
    assert run.records[-1].accuracy is not None
    assert run.fleet["base_parameters"] > 10 * run.fleet["model_parameters"]
    assert run.fleet["task"] == "next-token"
    assert Path(run.config["model"]["base"]).is_absolute()


def test_records_of_a_regression_name_its_score():
    run = on_testbed(*TABLE, "task.name=regression")
    lines = [json.loads(x) for x in Path("runs/trial/records.jsonl").read_text().splitlines()]
    assert all("accuracy" not in line for line in lines)
    scored = [record for record in run.records if record.accuracy is not None]
    assert scored
    assert {record.get("score_name") for record in scored} == {"r2"}
    enrolment = read_enrolment(Path("runs/trial"), read_experiment(Path("runs/trial") / CONFIG))
    assert enrolment.least_loss == 0.0
    setup = coordinator_setup(read_experiment(Path("runs/trial") / CONFIG), enrolment, "ab" * 16)
    assert setup.least_loss == 0.0
