"""Partitions as files: what is written is read back, and a bad file is refused with one message."""

import json
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.data import read_assignment, write_assignment
from dystop.data.assignment import fingerprint
from dystop.data.dataset import Labels, labels_of
from dystop.data.loading import load
from dystop.errors import ConfigError, DataError

KINDS = ["csv", "json", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
@settings(derandomize=True, deadline=None, max_examples=20)
@given(owner=st.lists(st.integers(-1, 3), min_size=0, max_size=30))
def test_what_is_written_is_read_back(tmp_path_factory, kind, owner):
    owner = np.array([0, 1, 2, 3, *owner])
    path = tmp_path_factory.mktemp("split") / f"split.{kind}"
    write_assignment(path, owner)
    assert read_assignment(path, len(owner), 4).tolist() == owner.tolist()


def test_other_frameworks_read_the_files(tmp_path):
    from pyarrow import parquet

    owner, index = np.array([1, -1, 0, 1]), np.array([3, 4, 7, 9])
    for kind in KINDS:
        write_assignment(tmp_path / f"split.{kind}", owner, index)
    assert (tmp_path / "split.csv").read_text() == "sample,worker\n3,1\n7,0\n9,1\n"
    assert json.loads((tmp_path / "split.json").read_text()) == {"0": [7], "1": [3, 9]}
    table = parquet.read_table(tmp_path / "split.parquet")
    assert table.to_pydict() == {"sample": [3, 7, 9], "worker": [1, 0, 1]}


def write(path, rows, kind):
    if kind == "json":
        lists = {}
        for sample, worker in rows:
            lists.setdefault(str(worker), []).append(sample)
        path.write_text(json.dumps(lists))
    else:
        path.write_text("sample,worker\n" + "".join(f"{s},{w}\n" for s, w in rows))


@pytest.mark.parametrize("kind", ["csv", "json"])
@pytest.mark.parametrize(
    ("rows", "facts"),
    [
        ([(0, 0), (1, 1), (0, 1)], {"csv": ["row 4", "sample 0", "row 2"], "json": ["sample 0"]}),
        ([(0, 0), (9, 1)], {"csv": ["row 3", "sample 9", "0 to 3"], "json": ["sample 9"]}),
        ([(0, 0), (-1, 1)], {"csv": ["row 3", "sample -1"], "json": ["sample -1"]}),
        ([(0, 0), (1, 2)], {"csv": ["row 3", "worker 2", "0 to 1"], "json": ["worker 2"]}),
        ([(0, 0), (1, 0)], {"csv": ["no sample", "1 of 2 workers: 1"], "json": ["no sample"]}),
        ([(0, 0), ("x", 1)], {"csv": ["row 3", "sample is x"], "json": ["sample is x"]}),
        ([(0, 0), (1, "w1")], {"csv": ["row 3", "worker is w1"], "json": ["worker is w1"]}),
        ([(0, 0), (1.5, 1)], {"csv": ["row 3", "1.5"], "json": ["sample is 1.5"]}),
    ],
)
def test_a_bad_row_is_named(tmp_path, kind, rows, facts):
    path = tmp_path / f"split.{kind}"
    write(path, rows, kind)
    with pytest.raises(DataError) as caught:
        read_assignment(path, 4, 2)
    message = str(caught.value)
    assert all(fact in message for fact in [str(path), *facts[kind]]), message
    assert "dystop data partition" in message


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("a.csv", "sample,wroker\n0,0\n", ["'worker'", "did you mean 'wroker'", "sample, wroker"]),
        ("a.csv", "sample,worker\n", ["no row"]),
        ("a.csv", "", ["no row"]),
        ("a.csv", "sample,worker\n0,0,0\n", ["line 2", "3 cells"]),
        ("a.csv", "sample,sample\n0,0\n", ["twice"]),
        ("a.csv", "sample,worker\n0,\n", ["row 2", "worker is nan"]),
        ("a.json", "[[0, 1]]", ['{"0": [4, 7]']),
        ("a.json", '{"0": 3}', ['{"0": [4, 7]']),
        ("a.json", '{"0": [[1]]}', ["sample is [1]"]),
        ("a.json", '{"0": [1' + "0" * 30 + "]}", ["sample 1000", "0 to 3"]),
        ("a.json", '{"0": [true]}', ["sample is True"]),
        ("a.json", "{", ["not JSON"]),
        ("a.json", "{}", ["no sample", "2 of 2"]),
        ("a.parquet", "nonsense", ["Parquet"]),
    ],
)
def test_a_bad_file_is_named(tmp_path, name, content, facts):
    (tmp_path / name).write_text(content)
    with pytest.raises(DataError) as caught:
        read_assignment(tmp_path / name, 4, 2)
    assert all(fact in str(caught.value) for fact in [name, *facts]), str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_named(tmp_path, kind):
    with pytest.raises(DataError, match=f"split.{kind}"):
        read_assignment(tmp_path / f"split.{kind}", 4, 2)


def test_parquet_without_pyarrow_names_the_package(tmp_path, monkeypatch):
    (tmp_path / "split.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"pip install 'dystop\[parquet\]'"):
        read_assignment(tmp_path / "split.parquet", 4, 2)


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\.csv, \.json, \.parquet"):
        write_assignment(tmp_path / "split.txt", np.zeros(2, np.int64))
    assert not list(tmp_path.iterdir())


def test_fingerprints_notice_every_change():
    data = load("synthetic")
    owner = np.arange(len(data.y_train)) % 3
    noted = fingerprint(data, owner)
    assert noted == fingerprint(load("synthetic"), owner.copy())
    other = owner.copy()
    other[5] = (other[5] + 1) % 3
    assert fingerprint(data, other)["partition_sha256"] != noted["partition_sha256"]
    x = data.x_test.copy()
    x[0, 0, 0, 0] ^= 1
    changed = type(data)(**{**vars(data), "x_test": x})
    assert fingerprint(changed, owner)["data_sha256"] != noted["data_sha256"]
    assert isinstance(labels_of(data), Labels)
    assert fingerprint(labels_of(data), owner)["train_samples"] == noted["train_samples"]
