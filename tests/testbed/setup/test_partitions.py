"""Partitions of experiments and runs: exported, used again, and checked when a run goes on."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.config import read_experiment
from dystop.data import shards_of
from dystop.data.npz import read_samples
from dystop.errors import ConfigError
from dystop.runs.building import build, load_data, split_data
from dystop.testbed.setup.partitions import partition_of
from dystop.testbed.setup.parts import worker_parts
from dystop.testbed.setup.preparation import prepare

SMALL = ["data.name=synthetic", "model.name=softmax", "fleet.workers=4", "stop.rounds=3"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def dystop(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def records(name):
    return Path("runs", name, "records.jsonl").read_bytes()


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_an_exported_partition_gives_the_same_run(kind):
    drawn = [*SMALL, "data.train_limit=300", "data.partition=dirichlet"]
    dystop("run", *drawn, "--name", "drawn", "--no-report", "-q")
    shown = dystop("data", "partition", "runs/drawn", "--out", f"split.{kind}")
    assert "300 samples over 4 workers" in shown
    dystop("run", *SMALL, f"data.partition=split.{kind}", "--name", "read", "--no-report", "-q")
    assert records("drawn") == records("read")
    words = [*SMALL, f"data.partition=split.{kind}"]
    trained, planned = (
        build(read_experiment(None, [*words, f"engine.train={train}"]))
        for train in ("true", "false")
    )
    assert trained.fleet["label_counts"] == planned.fleet["label_counts"]


def test_a_partition_by_a_column():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)).astype("float32"), np.arange(60) % 2
    writer = np.array([f"writer {k % 5}" for k in range(60)])
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, "column.writer": writer}
    np.savez("mine.npz", **arrays)
    words = ["data.name=mine.npz", "model.name=softmax", "fleet.workers=5"]
    experiment = read_experiment(None, [*words, "data.partition=column", "data.column=writer"])
    data = load_data(experiment)
    own = split_data(experiment, data)
    assert sorted(sorted({*writer[s].tolist()}) for s in own) == [[w] for w in sorted({*writer})]
    for bad, fact in (("data.column=user", "'user'"), ("data.column=writr", "'writer'")):
        message = dystop("run", *words, "data.partition=column", bad, code=2)
        assert fact in message
    assert not Path("runs").exists()


def test_keys_that_contradict_each_other_are_refused():
    for words, fact in (
        (["data.partition=split.csv", "data.train_limit=9"], "data.train_limit = 9"),
        (["data.partition=column"], "data.column"),
        (["data.column=writer"], "data.column"),
        (["data.partition=dirichlett"], "did you mean 'dirichlet'"),
    ):
        with pytest.raises(ConfigError, match=fact):
            read_experiment(None, words)


def test_a_bad_partition_file_leaves_nothing_behind():
    Path("split.csv").write_text("sample,worker\n0,0\n1,1\n2,2\n3,3\n0,3\n")
    for command in ("run", "testbed"):
        message = dystop(command, *SMALL, "data.partition=split.csv", code=2)
        assert "sample 0 was already given in row 2" in message
    assert [path.name for path in Path().iterdir()] == ["split.csv"]


def save(samples):
    rng = np.random.default_rng(0)
    y = np.arange(80) % 4
    x = (rng.normal(size=(80, 4, 4)) * 9 + 40 * y[:, None, None] + 60).clip(0, 255).astype("uint8")
    np.savez("mine.npz", x_train=x[:samples], y_train=y[:samples], x_test=x[60:], y_test=y[60:])


def interrupt(name):
    """Make a finished run look as if it had been interrupted after its first round."""
    folder = Path("runs", name)
    info = json.loads((folder / "run.json").read_text())
    info.update(status="interrupted", records_sha256=None, stop_reason=None)
    (folder / "run.json").write_text(json.dumps(info))


def test_data_that_shrink_are_noticed_when_a_run_goes_on():
    save(60)
    words = [*SMALL, "data.name=mine.npz", "--name", "one", "--no-report", "-q"]
    dystop("run", *words)
    interrupt("one")
    before = records("one")
    save(50)
    for command in ("resume", "verify"):
        message = dystop(command, "runs/one", code=2)
        assert "50 training samples, 60 when the run began" in message
    assert "changed since" in dystop("data", "partition", "runs/one", code=2)
    assert records("one") == before
    save(60)
    dystop("resume", "runs/one", "-q", "--no-report")
    assert records("one") == before


def test_a_partition_file_that_changes_is_noticed_when_a_run_goes_on():
    dystop("data", "partition", *SMALL, "--out", "split.csv")
    dystop("run", *SMALL, "data.partition=split.csv", "--name", "one", "--no-report", "-q")
    interrupt("one")
    dystop("data", "partition", *SMALL, "seed=1", "--out", "split.csv")
    assert "data.partition" in dystop("resume", "runs/one", code=2)


def test_the_testbed_takes_the_same_partition():
    dystop("data", "partition", *SMALL, "data.partition=shards", "--out", "split.json")
    experiment = read_experiment(None, [*SMALL, "data.partition=split.json"])
    split = partition_of(None, [*SMALL, "data.partition=shards"])
    own = shards_of(split.owner, 4)
    assert [w.data_size for w in prepare(experiment).enrolment.workers] == [len(s) for s in own]
    parts = worker_parts(experiment, 2)
    assert parts.label_counts == tuple(np.bincount(split.data.y_train[own[2]], minlength=10))


def test_a_testbed_does_not_go_on_with_other_data():
    save(60)
    words = [*SMALL, "data.name=mine.npz", "testbed.time_scale=0.01", "testbed.observer=false"]
    dystop("testbed", *words, "--transport", "memory", "--name", "lab", "--no-report", "-q")
    interrupt("lab")
    save(50)
    message = dystop("testbed", "--resume", "runs/lab", code=2)
    assert "50 training samples, 60 when the run began" in message
    assert "dystop testbed runs/lab/config.toml" in message


def test_each_worker_gets_a_file_of_its_own():
    dystop("data", "partition", *SMALL, "--parts", "parts")
    split = partition_of(None, SMALL)
    names = sorted(path.name for path in Path("parts").iterdir())
    assert names == ["w00.npz", "w01.npz", "w02.npz", "w03.npz"]
    for name, own in zip(names, shards_of(split.owner, 4), strict=True):
        x, y = read_samples(Path("parts", name))
        assert np.array_equal(x, split.data.x_train[own])
        assert np.array_equal(y, split.data.y_train[own])
