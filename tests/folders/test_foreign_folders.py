"""Run folders that somebody else has made: no link leads out of them, and no file takes it all."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dystop.cli import app
from dystop.errors import RunFolderError
from dystop.folders.trained_models import load_model
from dystop.simulator.checkpoint import load_newest, save
from dystop.training.saved import ModelCard

SMALL = [
    "model.name=softmax",
    "data.name=synthetic",
    "data.options.train=60",
    "data.options.test=30",
    "fleet.workers=3",
    "stop.rounds=4",
    "evaluate.every_rounds=1",
    "output.checkpoint_every=1",
]


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


def interrupted(folder):
    info = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**info, "status": "interrupted"}))
    return folder


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["checkpoints", "models"])
def test_a_run_is_not_resumed_through_a_linked_folder(folder, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    (interrupted(folder) / name).rename(elsewhere)
    (folder / name).symlink_to(elsewhere)
    for stray in (".tmp-mine", ".mine.tmp-1", "round-00000001.safetensors"):
        (elsewhere / stray).write_bytes(b"mine")
    before = content(elsewhere)
    done = call("resume", folder)
    assert (done.exit_code, content(elsewhere)) == (2, before)
    assert str(folder / name) in done.stderr
    assert "link" in done.stderr


def test_a_checkpoint_that_is_replaced_by_a_link_later_leads_nowhere(folder, tmp_path):
    """The lock has looked for links; whoever makes one after that gains nothing."""
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(folder / "checkpoints", elsewhere)
    (elsewhere / ".tmp-mine").write_bytes(b"mine")
    found = load_newest(folder / "checkpoints", torch.device("cpu"))
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").symlink_to(elsewhere)
    before = content(elsewhere)
    with pytest.raises(RunFolderError, match="checkpoints: a link"):
        save(folder / "checkpoints", found.state)
    with pytest.raises(RunFolderError, match="checkpoints: a link"):
        load_newest(folder / "checkpoints", torch.device("cpu"))
    assert content(elsewhere) == before


READERS = [
    ("report",),
    ("verify",),
    ("resume",),
    ("export", "--to", "csv"),
    ("animate",),
    ("plot",),
]


@pytest.mark.parametrize("words", READERS, ids=lambda words: words[0])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_records_that_are_no_file_are_refused_at_once(folder, words, make):
    (folder / "records.jsonl").unlink()
    make(folder / "records.jsonl")
    done = call(words[0], folder, *words[1:])
    assert done.exit_code == 2
    assert str(folder / "records.jsonl") in done.stderr


NAMES = ["records.jsonl", "late_scores.jsonl", "config.toml", "fleet.json", "run.json"]


@pytest.mark.parametrize("name", NAMES)
def test_a_sparse_file_is_refused_by_its_size(folder, name):
    (folder / name).touch()
    os.truncate(folder / name, 8 << 30)
    done = call("report", folder)
    assert done.exit_code == 2
    assert f"{folder / name}: cannot be read" in done.stderr
    assert "8,589,934,592 bytes" in done.stderr


@pytest.mark.parametrize("file", ["/dev/zero", "/dev/tty"])
def test_a_device_is_no_configuration(file):
    done = call("run", file)
    assert (done.exit_code, file in done.stderr) == (2, True)


def test_a_configuration_that_the_user_names_may_be_a_link(made, tmp_path):
    (tmp_path / "mine.toml").symlink_to(made / "config.toml")
    done = call("run", tmp_path / "mine.toml", "--out", tmp_path, "--no-report", "--quiet")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("to", ["csv", "tensorboard"])
def test_an_export_follows_no_linked_folder(folder, tmp_path, to):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("rounds.csv", "workers.csv", ".rounds.csv.tmp-1"):
        (elsewhere / name).write_text("mine")
    (folder / "export").symlink_to(elsewhere)
    before = content(elsewhere)
    done = call("export", folder, "--to", to)
    assert (done.exit_code, content(elsewhere)) == (2, before)
    assert str(folder / "export") in done.stderr


def test_an_export_follows_no_linked_folder_of_a_run(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (folder / "export" / "tensorboard").mkdir(parents=True)
    (folder / "export" / "tensorboard" / folder.name).symlink_to(elsewhere)
    done = call("export", folder, "--to", "tensorboard")
    assert (done.exit_code, content(elsewhere)) == (2, {})
    assert str(folder / "export" / "tensorboard" / folder.name) in done.stderr


def test_an_export_of_one_huge_id_has_one_row_for_it(folder):
    lines = (folder / "records.jsonl").read_text().splitlines()
    first = {**json.loads(lines[0]), "active_ids": [10**15]}
    (folder / "records.jsonl").write_text(json.dumps(first) + "\n")
    done = call("export", folder, "--to", "csv")
    assert done.exit_code == 0, done.output
    assert str(10**15) in (folder / "export" / "workers.csv").read_text()


@pytest.mark.parametrize("base", ["/dev/zero", "a pipe", "sparse"])
def test_a_card_that_names_a_base_reads_nothing_but_a_model(folder, tmp_path, base):
    path = Path(base) if base.startswith("/") else tmp_path / "base"
    if base == "a pipe":
        os.mkfifo(path)
    elif base == "sparse":
        path.touch()
        os.truncate(path, 8 << 30)
    model = folder / "models" / "global.safetensors"
    write_card(model, base=str(path), base_sha256="0" * 64, adapter={"rank": 2, "alpha": 2.0})
    with pytest.raises(RunFolderError, match=str(path)):
        load_model(folder)


def write_card(model, adapter, **changes):
    from safetensors.torch import load_file, save_file

    blob = model.read_bytes()
    head = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])["__metadata__"]
    card = json.loads(head["dystop-model-1"]) | changes | {"adapter": {**adapter, "layers": []}}
    assert set(card) <= set(ModelCard.__dataclass_fields__)
    save_file(load_file(model), model, {"dystop-model-1": json.dumps(card)})


@pytest.mark.parametrize("place", ["models", "models/global.safetensors"])
def test_a_model_is_not_loaded_through_a_link(folder, tmp_path, place):
    (folder / place).rename(tmp_path / "elsewhere")
    (folder / place).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunFolderError, match=f"{place}: a link"):
        load_model(folder)
