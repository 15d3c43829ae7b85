"""Run folders that somebody else has made: no link leads out of them, and no file takes it all."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli import app

SMALL = [
    "model.name=softmax",
    "data.name=synthetic",
    "data.synthetic.train=60",
    "data.synthetic.test=30",
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
    import torch

    from dystop.errors import RunFolderError
    from dystop.simulator.checkpoint import load_newest, save

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
