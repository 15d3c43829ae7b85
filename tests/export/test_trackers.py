"""Weights & Biases in offline mode and MLflow in a folder; skipped where they are missing.

pip install 'dystop[wandb,mlflow]'
"""

import json
import struct

import pytest

from dystop.errors import ConfigError
from dystop.export import Format
from dystop.export.export import export
from support.export_fixtures import GrowingRun, rich_record, without_score

pytestmark = pytest.mark.filterwarnings("default")  # of packages of others


@pytest.fixture
def run(tmp_path):
    growing = GrowingRun(tmp_path)
    growing.write(*map(rich_record, (1, 2, 3, 4)))
    growing.end()
    return growing


def wandb_history(folder):
    """Return the rows that an offline run has logged."""
    from wandb.proto.wandb_internal_pb2 import Record

    (file,) = folder.glob("*.wandb")
    rows = []
    for data in leveldb_records(file.read_bytes()[7:]):
        record = Record.FromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items})
    return rows


def leveldb_records(log, begun=7):
    """Yield the records of a log in LevelDB's format: blocks of 32 KiB, records in pieces."""
    at, whole = 0, b""
    while at + 7 <= len(log):
        if 32768 - (at + begun) % 32768 < 7:  # the rest of a block is padding
            at += 32768 - (at + begun) % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", log, at)
        whole += log[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""


def test_wandb_offline(run, tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    first = export(run.folder, Format.wandb, tmp_path / "out").paths
    (folder,) = export(run.folder, Format.wandb, tmp_path / "out").paths
    rows = wandb_history(folder)
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert [row["tests/accuracy"] for row in rows if "tests/accuracy" in row] == [0.2, 0.4]
    kept = sorted((tmp_path / "out" / "wandb").glob("offline-run-*"))
    assert kept == [folder]
    # The same run there; a folder of the same second has one more number in its name.
    assert first[0].name.split("-")[3] == folder.name.split("-")[3]


def test_wandb_without_a_login_says_what_to_do(run, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")

    def refuse(**_):
        raise wandb.errors.UsageError("No API key configured.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(ConfigError, match=r"WANDB_MODE=offline"):
        export(run.folder, Format.wandb, tmp_path / "out")


def test_mlflow_in_a_folder(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    growing = GrowingRun(tmp_path)
    growing.write(rich_record(1), without_score(rich_record(2)), rich_record(3), rich_record(4))
    growing.end()
    for _ in range(2):
        (folder,) = export(growing.folder, Format.mlflow, tmp_path / "out").paths
    client = mlflow.MlflowClient(tracking_uri=folder.resolve().as_uri())
    experiment = client.get_experiment_by_name("dystop")
    (found,) = client.search_runs([experiment.experiment_id])
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "trial"
    assert found.data.params["mechanism.name"] == "dystop"
    history = client.get_metric_history(found.info.run_id, "rounds/energy_j")
    assert [(m.step, m.timestamp, m.value) for m in history] == [
        (t, 1500 * t, 30.0) for t in (1, 2, 3, 4)
    ]
    tests = client.get_metric_history(found.info.run_id, "tests/accuracy")
    assert [(m.step, m.value) for m in tests] == [(4, pytest.approx(0.4))]


def test_mlflow_names_a_store_that_it_cannot_use(run, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://x")
    with pytest.raises(ConfigError, match=r"nowhere://x.*MLFLOW_TRACKING_URI"):
        export(run.folder, Format.mlflow, tmp_path / "out")


def test_mlflow_replaces_only_what_this_user_exported(run, tmp_path, monkeypatch):
    """On a server of several users, `localhost` and `/runs/demo` exist many times."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for user in ("me", "somebody", "me"):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / user))
        (folder,) = export(run.folder, Format.mlflow, tmp_path / "out").paths
    client = mlflow.MlflowClient(tracking_uri=folder.resolve().as_uri())
    experiment = client.get_experiment_by_name("dystop")
    assert len(client.search_runs([experiment.experiment_id])) == 2
