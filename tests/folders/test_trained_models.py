"""Trained models: a run leaves them behind, and what is read back is what was tested."""

import json
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from typer.testing import CliRunner

import dystop
from dystop.cli import app
from dystop.config import read_experiment
from dystop.data import load
from dystop.errors import RunFolderError, StorageError
from dystop.folders import trained_models
from dystop.folders.run_folder import open_run
from dystop.runs import run
from dystop.training.flat import layout_of
from dystop.training.saved import ModelCard, read_model, to_bytes

SMALL = ["data.name=synthetic", "model.name=softmax", "fleet.workers=4", "stop.rounds=3"]
CARD = ModelCard("softmax", (1, 8, 8), 3, ("a", "b", "c"), (0.5,), (0.25,))


def make(channels, size, classes):
    """A model of one's own with all that is special: batch norm, a tied and a frozen weight."""
    width = channels * size[0] * size[1]
    first, second = nn.Linear(width, width), nn.Linear(width, width)
    second.weight = first.weight
    second.bias.requires_grad_(False)
    return nn.Sequential(
        nn.Flatten(), first, nn.BatchNorm1d(width), second, nn.Linear(width, classes)
    )


def quiet(_):
    return None


def leave(out: Path, *words: str) -> Path:
    return run.run_experiment(read_experiment(None, [*SMALL, *words]), out, "it", quiet, quiet)


def accuracy(model, data) -> float:
    return float((model(data.x_test).argmax(1).numpy() == data.y_test).mean())


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("engine.publish=on_completion", "engine.timing=overlap"),
        ("mechanism.name=fedavg",),
        ("mechanism.name=matcha", "data.phi=0.4"),
    ],
    ids=str,
)
def test_what_is_left_behind_is_what_was_tested(tmp_path, words):
    folder = leave(tmp_path, "output.models=all", *words)
    data, last = load("synthetic"), open_run(folder).records[-1]
    assert accuracy(dystop.load_model(folder), data) == pytest.approx(last.get("accuracy_global"))
    each = [accuracy(dystop.load_model(folder, worker=k), data) for k in range(4)]
    assert np.mean(each) == pytest.approx(last.accuracy)
    assert len(set(each)) > 1 or last.get("accuracy_std") == 0


def test_by_default_the_average_and_none_on_request(tmp_path):
    folder = leave(tmp_path)
    assert [p.name for p in (folder / "models").iterdir()] == ["global.safetensors"]
    missing = r"worker-000\.safetensors: .*: global\.safetensors\..*output\.models"
    with pytest.raises(RunFolderError, match=missing):
        dystop.load_model(folder, worker=0)
    with pytest.raises(RunFolderError, match=r"global\.safetensors: .*worker = 0"):
        dystop.load_model(folder / "models" / "global.safetensors", worker=0)
    bare = leave(tmp_path / "bare", "output.models=none")
    assert not (bare / "models").exists()
    with pytest.raises(RunFolderError, match=r"global\.safetensors: .*no models.*output\.models"):
        dystop.load_model(bare)


def test_a_run_says_where_its_model_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", *SMALL, "--name", "it", "--no-report"]
    assert "model: runs/it/models/global.safetensors" in CliRunner().invoke(app, words).output
    bare = CliRunner().invoke(app, [*words[:-2], "other", "--no-report", "output.models=none"])
    assert bare.exit_code == 0
    assert "model: " not in bare.output


def test_a_disk_that_refuses_leaves_a_run_that_can_be_resumed(tmp_path, monkeypatch):
    def full(path, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(trained_models, "write_atomic", full)
        with pytest.raises(StorageError, match="dystop resume"):
            leave(tmp_path)
    folder = tmp_path / "it"
    assert open_run(folder).info["status"] == "failed"
    run.resume_run(folder, quiet, quiet)
    assert open_run(folder).info["status"] == "finished"
    whole = leave(tmp_path / "whole")
    name = "models/global.safetensors"
    assert (folder / name).read_bytes() == (whole / name).read_bytes()


def test_a_simulation_hands_out_its_models():
    simulation = dystop.simulate(workers=4, dataset="synthetic", rounds=2, overrides=SMALL[1:2])
    with pytest.raises(ValueError, match="iterate"):
        simulation.model()
    last = list(simulation)[-1]
    data = load("synthetic")
    assert accuracy(simulation.model(), data) == pytest.approx(last.get("accuracy_global"))
    each = [accuracy(simulation.model(k), data) for k in range(4)]
    assert np.mean(each) == pytest.approx(last.accuracy)
    with pytest.raises(IndexError, match="expected 0 to 3"):
        simulation.model(4)


def test_a_model_of_ones_own_is_not_imported_because_a_file_says_so(tmp_path):
    folder = leave(tmp_path, "model.name=folders.test_trained_models:make")
    data, last = load("synthetic"), open_run(folder).records[-1]
    with pytest.raises(RunFolderError, match=r"test_trained_models:make.*load_model\(.*module="):
        dystop.load_model(folder)
    model = dystop.load_model(folder, module=make(1, (8, 8), 10))
    assert accuracy(model, data) == pytest.approx(last.get("accuracy_global"))
    first, second = model.module[1], model.module[3]
    assert first.weight is second.weight
    with pytest.raises(RunFolderError, match=r"another kind of model.*weight"):
        dystop.load_model(folder, module=nn.Linear(3, 3))


def test_any_library_can_read_the_file(tmp_path):
    module = make(1, (8, 8), 3)
    layout = layout_of(module)
    path = tmp_path / "m.safetensors"
    path.write_bytes(to_bytes(layout, *layout.flatten(module), CARD))
    named = load_file(path)
    state = {k: v for k, v in module.state_dict().items() if k in named}
    assert set(state) == set(named)
    for name, tensor in named.items():
        assert torch.equal(tensor, state[name]), name
        assert tensor.dtype == state[name].dtype


def test_images_are_taken_as_the_data_set_has_them(tmp_path):
    module = dystop.training.models.build.build_model("softmax", 1, (8, 8), 3, 0)
    layout = layout_of(module)
    path = tmp_path / "m.safetensors"
    path.write_bytes(to_bytes(layout, *layout.flatten(module), CARD))
    model = read_model(path)
    assert model.card == CARD
    raw = np.arange(5 * 64, dtype=np.uint8).reshape(5, 1, 8, 8)
    wanted = module((torch.tensor(raw) / 255 - 0.5) / 0.25)
    assert torch.allclose(model(raw), wanted, atol=1e-5)
    assert torch.allclose(model(torch.tensor(raw)), wanted, atol=1e-5)
    assert torch.allclose(model(raw.astype(np.float32) / 255), wanted, atol=1e-5)
    assert model.names(raw) == [CARD.class_names[k] for k in wanted.argmax(1)]


def test_files_that_are_none_of_ours_are_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    with pytest.raises(RunFolderError, match="no such"):
        dystop.load_model(path)
    module = nn.Linear(2, 2)
    layout = layout_of(module)
    good = to_bytes(layout, *layout.flatten(module), replace(CARD, model="mymodel:make"))
    save_file(dict(module.state_dict()), tmp_path / "foreign.safetensors")
    (length,) = struct.unpack("<Q", good[:8])
    header = json.loads(good[8 : 8 + length])
    assert list(header["__metadata__"]) == ["dystop-model-1"]
    foreign = (tmp_path / "foreign.safetensors").read_bytes()
    bad = [b"", b"12345678", good[:40], good[:-3], foreign, good.replace(b"model-1", b"model-9"),
           good.replace(b"mean", b"mead")]  # fmt: skip
    for blob in bad:
        path.write_bytes(blob)
        with pytest.raises(RunFolderError, match=r"\.safetensors: not a model file"):
            dystop.load_model(path, module=module)
    path.write_bytes(good)
    assert dystop.load_model(path, module=nn.Linear(2, 2)).card.model == "mymodel:make"


@pytest.mark.parametrize(
    ("claim", "value"),
    [("shape", (1, 10**6, 10**6)), ("classes", 10**12), ("shape", ("a", 1, 1)), ("classes", -1)],
)
def test_a_card_that_claims_terabytes_takes_no_memory(tmp_path, claim, value):
    module = dystop.training.models.build.build_model("softmax", 1, (8, 8), 3, 0)
    layout, path = layout_of(module), tmp_path / "m.safetensors"
    path.write_bytes(to_bytes(layout, *layout.flatten(module), replace(CARD, **{claim: value})))
    with pytest.raises(RunFolderError, match=r"m\.safetensors: "):
        read_model(path)
