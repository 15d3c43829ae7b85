"""A run that another study has finished with the same settings is copied, not computed again."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment
from dystop.errors import StorageError
from dystop.folders.run_folder import check_config, log_was_changed, open_run
from dystop.studies.study import create_study
from dystop_paper.reproduce import run_reuse
from dystop_paper.reproduce.run_reuse import reuse_finished

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

SMALL = [
    "data.name=synthetic", "data.options.train=200", "data.options.test=60",
    "model.name=softmax", "fleet.workers=6", "stop.rounds=4",
]  # fmt: skip


def call(*words):
    result = CliRunner().invoke(app, [*map(str, words)])
    assert result.exit_code == 0, result.output
    return result.output


def one(name, *words):
    return read_experiment(None, [*SMALL, f"name={name}", *words])


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A finished study of one run."""
    out = tmp_path_factory.mktemp("studies")
    study = create_study(out, "first", [one("default-s0")])
    call("compare", study.path, "-q")
    return study


def second(first, name, *experiments):
    return create_study(first.path.parent, name, experiments)


def test_the_copy_is_a_run_of_its_own_with_the_same_records(first):
    study = second(first, "a", one("V10-s0", "mechanism.V=10"), one("V20-s0", "mechanism.V=20"))
    found = reuse_finished(study, study.experiments)
    assert [(e.name, p.name) for e, p in found] == [("V10-s0", "default-s0")]
    assert [e.name for e in study.todo()] == ["V20-s0"]
    copy, source = open_run(study.path / "V10-s0"), open_run(first.path / "default-s0")
    assert copy.records == source.records
    assert copy.info["name"] == copy.config["name"] == "V10-s0"
    assert copy.info["same_as"] == "first/default-s0"
    check_config(copy, "dystop run")
    assert not log_was_changed(copy)
    assert not list(study.path.glob(".*.tmp-*"))
    assert reuse_finished(study, study.experiments) == []
    assert "identical: 4 rounds" in call("verify", copy.path)


@pytest.mark.parametrize("word", ["seed=1", "data.phi=0.3", "mechanism.name=d-psgd"])
def test_other_settings_are_not_the_same_run(first, word):
    study = second(first, word.replace("=", "-"), one("x-s0", word))
    assert reuse_finished(study, study.experiments) == []


def test_what_is_not_finished_is_not_taken(first, tmp_path):
    study = create_study(tmp_path, "begun", [one("default-s0")])
    other = create_study(tmp_path, "other", [one("x-s0")])
    assert reuse_finished(other, other.experiments) == []
    (study.path / "default-s0").mkdir()
    (study.path / "default-s0" / "run.json").write_text(json.dumps({"status": "running"}))
    assert reuse_finished(other, other.experiments) == []


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("study.json", "{"),
        ("study.json", '{"runs": [3]}'),
        ("study.json", '{"runs": [{"folder": "default-s0"}]}'),
        ("plan/default-s0.toml", "unknown = 1"),
        ("default-s0/run.json", "{"),
    ],
)
def test_what_cannot_be_read_is_not_reused_and_no_error(first, tmp_path, file, content):
    shutil.copytree(first.path, tmp_path / "first")
    (tmp_path / "first" / file).write_text(content)
    study = create_study(tmp_path, "second", [one("x-s0")])
    assert reuse_finished(study, study.experiments) == []


def test_a_disk_that_refuses_leaves_nothing(first, monkeypatch):
    study = second(first, "full", one("x-s0"))

    def refuse(*_args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_reuse.os, "rename", refuse)
    with pytest.raises(StorageError, match=r"x-s0: cannot be created: No space left"):
        reuse_finished(study, study.experiments)
    assert sorted(p.name for p in study.path.iterdir()) == ["plan", "study.json"]


def test_recipes_that_share_a_setting_run_it_once(tmp_path):
    words = ["--scale", "smoke", "--out", tmp_path]
    call("reproduce", "fig-phases", *words, "-q")
    output = call("reproduce", "fig-accuracy-V", *words)
    (line,) = [x for x in output.splitlines() if x.startswith("control-fmnist/V10-s0: copied ")]
    assert line.endswith(" phases-fmnist/combined-s0")
