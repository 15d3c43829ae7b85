"""`dystop list`, and what a run says about a loss that is not finite."""

import json

from typer.testing import CliRunner

from dystop.cli import app
from dystop.training.tasks.catalogue import TASKS

OWN = """
import dystop

class Broken(dystop.Regression):
    def losses(self, outputs, targets):
        return super().losses(outputs, targets) / 0.0
"""


def test_tasks_are_listed_with_their_scores():
    listed = CliRunner().invoke(app, ["list", "tasks"]).output
    assert all(name in listed for name in TASKS)
    assert "r2" in listed
    assert "task.name=package.module:Task" in listed
    described = CliRunner().invoke(app, ["list", "tasks", "--describe", "regression"]).output
    assert "dystop run task.name=regression" in described
    wrong = CliRunner().invoke(app, ["list", "tasks", "--describe", "regresion"])
    assert wrong.exit_code == 2
    assert "regression" in wrong.output


def listed(*words):
    return CliRunner().invoke(app, ["list", *words])


def test_a_name_is_described_and_a_section_lists_its_keys():
    assert (
        listed("mechanisms", "dystop").output == listed("mechanisms", "--describe", "dystop").output
    )
    section = listed("keys", "world.channel").output
    assert section == listed("keys", "world.channel.").output
    assert "world.channel.noise_w" in section
    assert "world.compute.batch_s" not in section
    assert "default: 0.0" in listed("keys", "training.momentum").output
    near = listed("keys", "wrld")
    assert near.exit_code == 2
    assert "world" in near.output
    assert len(listed("keys", "zzzzzzzz").output) < 300


def test_lists_for_other_programs_are_json():
    rows = json.loads(listed("keys", "--json").output)
    assert {"key", "default", "allowed", "meaning"} == set(rows[0])
    assert len(rows) > 100
    names = [row["mechanism"] for row in json.loads(listed("mechanisms", "--json").stdout)]
    assert "dystop" in names
    assert listed("keys", "stop.rounds", "--json").exit_code == 2


def test_a_loss_that_is_not_finite_is_said_once_with_worker_and_round(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_task.py").write_text(OWN)
    words = [
        "data.name=generated-table", "data.options.train=60", "data.options.test=20",
        "model.name=mlp", "task.name=broken_task:Broken", "fleet.workers=3", "stop.rounds=4",
        "--no-report",
    ]  # fmt: skip
    result = CliRunner().invoke(app, ["run", *words, "--name", "one"])
    assert result.exit_code == 7, result.output  # diverged
    assert result.output.count("is not finite. The run goes on") == 1
    assert "round 1: the training loss of worker" in result.output
    assert "diverged" in result.output
