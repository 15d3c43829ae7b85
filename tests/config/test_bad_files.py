"""Files of a run folder with nasty content are refused by their names; nothing is called a bug."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.config import read_experiment
from dystop.errors import ConfigError, DystopError
from dystop.folders.run_folder import open_run
from dystop.report import summary_rows
from dystop.report.data.notices import notices

SMALL = [
    "model.name=softmax",
    "data.name=synthetic",
    "data.options.train=60",
    "data.options.test=30",
    "fleet.workers=3",
    "stop.rounds=2",
    "evaluate.every_rounds=1",
]
DEEP = "[" * 100_000 + "]" * 100_000
NASTY = ['"x"', "null", "1e400", "[]", "{}", "-1", "[[[[1]]]]", "9" * 400, "true", '[1, "a"]', DEEP]


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    assert call("run", *SMALL, "--out", out, "--name", "it", "--no-report").exit_code == 0
    return out / "it"


@pytest.fixture
def folder(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "it"))


@pytest.mark.parametrize("name", ["run.json", "fleet.json", "records.jsonl"])
def test_every_value_is_read_or_refused(folder, name):
    file = folder / name
    whole = file.read_text()
    first, *rest = whole.splitlines() if name.endswith("l") else [whole]
    tree = json.loads(first)
    for key in tree:
        for nasty in NASTY:
            line = json.dumps({**tree, key: "@"}).replace('"@"', nasty)
            file.write_text("\n".join([line, *rest]) + "\n")
            problem = ""
            try:
                data = open_run(folder)
                notices([data])
                summary_rows([data], None)
            except DystopError as error:
                problem = str(error)
            assert not problem or str(file) in problem, (key, nasty[:20])


@pytest.mark.parametrize("nasty", ["1e400", DEEP, "9" * 5000, "nan"], ids=lambda text: text[:5])
def test_a_configuration_is_refused_by_its_name(tmp_path, nasty):
    file = tmp_path / "mine.toml"
    file.write_text(f"[data]\nphi = {nasty}\n")
    with pytest.raises(ConfigError, match=r"mine\.toml: "):
        read_experiment(file)
    done = call("run", f"data.phi={nasty}")
    assert (done.exit_code, "data.phi" in done.stderr) == (2, True)


def test_an_enrolment_is_refused_by_its_name(tmp_path):
    config = read_experiment(None, ["data.private.classes=2", "fleet.workers=1"])
    file = tmp_path / "workers.json"
    from dystop.testbed.setup.enrolment import read_enrolled

    for nasty in NASTY:
        row = f'{{"name": "w00", "data_size": {nasty}, "label_counts": {nasty}}}'
        file.write_text(f'{{"workers": [{row}]}}')
        with pytest.raises(DystopError, match=r"workers\.json: "):
            read_enrolled(file, config)


def test_a_byte_order_mark_is_skipped(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("seed = 3\n", encoding="utf-8-sig")
    with pytest.raises(tomllib.TOMLDecodeError):
        tomllib.loads(file.read_text(encoding="utf-8"))
    assert read_experiment(file).seed == 3
