"""Data sets in .npz files."""

import io
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from dystop.data import load
from dystop.data.npz import from_arrays, read_npz, read_samples, to_arrays, write_npz
from dystop.data.private import describe
from dystop.errors import DataError


def write(path, **changed):
    arrays = {
        "x_train": np.arange(4 * 64, dtype=np.uint8).reshape(4, 8, 8),
        "y_train": np.array([0, 1, 2, 1]),
        "x_test": np.ones((2, 8, 8), np.uint8),
        "y_test": np.array([2, 0]),
    } | changed
    np.savez(path, **{k: v for k, v in arrays.items() if v is not None})
    return path


def test_round_trip(tmp_path):
    path = write(tmp_path / "digits.npz")
    found = load(str(path))
    assert (found.name, found.classes, found.class_names) == ("digits", 3, ("0", "1", "2"))
    assert found.source == str(path)
    assert found.x_train.shape == (4, 1, 8, 8)
    assert found.x_train.dtype == np.uint8
    assert found.x_train.reshape(-1).tolist() == list(range(256))
    assert found.y_train.dtype == np.int64
    assert found.mean == pytest.approx((0.5,))
    assert found.std == pytest.approx((np.arange(256).std() / 255,))


def test_class_names_and_column_labels(tmp_path):
    names = np.array(["a", "b", "c", "d"])
    column = np.uint8([[0], [1], [2], [1]])
    found = read_npz(write(tmp_path / "a.npz", class_names=names, y_train=column))
    assert (found.classes, found.class_names) == (4, ("a", "b", "c", "d"))
    assert found.y_train.tolist() == [0, 1, 2, 1]


@pytest.mark.parametrize(
    ("stored", "read", "axes"),
    [
        ((7,), (7,), None),
        ((9, 6), (1, 9, 6), None),
        ((3, 9, 6), (3, 9, 6), None),
        ((9, 6, 3), (3, 9, 6), (0, 3, 1, 2)),
        ((9, 6, 1), (1, 9, 6), (0, 3, 1, 2)),
        ((13, 6, 6), (13, 6, 6), None),
        ((6, 6, 13), (13, 6, 6), (0, 3, 1, 2)),
        ((64, 1, 1), (64, 1, 1), None),
    ],
)
def test_layouts(tmp_path, stored, read, axes):
    x = np.arange(4 * np.prod(stored)).astype(np.uint8).reshape(4, *stored)
    found = read_npz(write(tmp_path / "a.npz", x_train=x, x_test=x[:2]))
    assert found.shape == read
    want = x.transpose(axes) if axes else x.reshape(4, *read)
    assert np.array_equal(found.x_train, want)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_floats_are_kept_as_they_are(tmp_path, kind):
    x = np.linspace(-3, 3, 4 * 5).astype(kind).reshape(4, 5)
    found = read_npz(write(tmp_path / "a.npz", x_train=x, x_test=x[:2]))
    assert found.x_train.dtype == np.float32
    assert np.array_equal(found.x_train.reshape(4, 5), x.astype(np.float32))
    assert (found.mean, found.std) == ((0.0,) * 5, (1.0,) * 5)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y_test": None}, "has no y_test"),
        ({"x_train": None, "y_train": None}, "has no x_train, y_train"),
        ({"x_train": np.array([{}, 1, 2, 3], object)}, "Python objects"),
        ({"y_train": np.array([0, 1, 2])}, "4 train samples.*3 train labels"),
        ({"y_train": np.array([0, 1, -2, 1])}, r"train label -2 .*from 0 to \d"),
        ({"y_train": np.array([0.0, 1, 2, 1])}, "y_train is float64"),
        ({"y_train": np.eye(4, dtype=int)}, r"y_train is int64 of shape \(4, 4\)"),
        ({"class_names": np.array(["a", "b"])}, "train label 2 .*from 0 to 1"),
        (
            {"x_test": np.zeros((0, 8, 8), np.uint8), "y_test": np.zeros(0, int)},
            "test split .*empty",
        ),
        ({"x_test": np.ones((2, 7, 8), np.uint8)}, r"\(1, 8, 8\).*\(1, 7, 8\)"),
        ({"x_test": np.ones((2, 8, 8), np.float32)}, "uint8.*float32"),
        ({"x_train": np.ones((4, 8, 8), np.int64)}, "x_train is int64; expected uint8"),
        ({"x_train": np.full((4, 8, 8), np.nan)}, "x_train .*NaN"),
        ({"x_train": np.ones(4, np.uint8)}, r"x_train has shape \(4,\)"),
        ({"x_train": np.ones((4, 5, 6, 7), np.uint8)}, r"x_train has shape \(4, 5, 6, 7\)"),
    ],
)
def test_unusable_content_is_named_and_refused(tmp_path, changed, message):
    path = write(tmp_path / "mine.npz", **changed)
    with pytest.raises(DataError, match=message) as caught:
        read_npz(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("raw", [b"", b"hello", b"PK\3\4 and then nothing", b"\x80\x04N."])
def test_garbage_is_refused(tmp_path, raw):
    path = tmp_path / "mine.npz"
    path.write_bytes(raw)
    with pytest.raises(DataError, match=r"mine\.npz: corrupt"):
        read_npz(path)


def test_truncated_and_flipped_files_are_refused(tmp_path):
    path = write(tmp_path / "mine.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(DataError, match=r"mine\.npz: corrupt"):
        read_npz(path)
    at = whole.index(bytes(range(100, 200)))
    path.write_bytes(whole[:at] + b"\0" + whole[at + 1 :])
    with pytest.raises(DataError, match=r"mine\.npz: corrupt"):
        read_npz(path)


def test_a_bare_array_is_refused(tmp_path):
    path = tmp_path / "mine.npz"
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(DataError, match=r"mine\.npz: corrupt"):
        read_npz(path)


def header(shape, kind="|u1"):
    """The first bytes of an .npy file: what it claims to hold."""
    file = io.BytesIO()
    about = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, about)
    return file.getvalue()


@pytest.mark.parametrize("stored", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_an_array_that_claims_ten_terabytes_is_refused_unread(tmp_path, monkeypatch, stored):
    path = write(tmp_path / "good.npz")
    with zipfile.ZipFile(path) as good, zipfile.ZipFile(tmp_path / "bad.npz", "w", stored) as bad:
        for name in good.namelist():
            claim = header((10**10, 32, 32)) if name == "x_train.npy" else good.read(name)
            bad.writestr(name, claim)
    monkeypatch.setattr(np, "load", lambda *given, **options: pytest.fail("it was read"))
    for read in (read_npz, read_samples):
        with pytest.raises(DataError, match=r"bad\.npz: corrupt"):
            read(tmp_path / "bad.npz")


def test_arrays_beyond_the_memory_of_the_machine_are_refused_unread(tmp_path, monkeypatch):
    path = write(tmp_path / "mine.npz")
    monkeypatch.setattr(np, "load", lambda *given, **options: pytest.fail("it was read"))
    monkeypatch.setattr("dystop.data.npz.os.sysconf", lambda name: 16)
    with pytest.raises(DataError, match=r"mine\.npz: its arrays have .* GB"):
        read_npz(path)


@pytest.mark.parametrize("label", [2**40, 2**63 - 1])
def test_a_label_of_a_million_million_is_refused(tmp_path, label):
    path = write(tmp_path / "mine.npz", y_train=np.array([0, 1, label, 1]))
    for read in (read_npz, read_samples, describe):
        with pytest.raises(DataError, match=rf"mine\.npz: y_train .*{label}.*100,000 classes"):
            read(path)
    with pytest.raises(DataError, match=str(label)):
        from_arrays(dict(np.load(path)), "example")


def test_missing_file_is_named():
    with pytest.raises(DataError, match=r"nowhere/mine\.npz: .*x_train"):
        load("nowhere/mine.npz")


def text_arrays():
    tokens = np.random.default_rng(0).integers(0, 7, (30, 9))
    x, y = tokens[:, :-1], np.arange(30) % 3
    arrays = {"x_train": x[:20], "y_train": y[:20], "x_test": x[20:], "y_test": y[20:]}
    return arrays | {"target_train": tokens[:20, 1:], "target_test": tokens[20:, 1:]}


def test_token_ids_and_their_targets(tmp_path):
    np.savez(tmp_path / "text.npz", **text_arrays(), tokens=11)
    data = read_npz(tmp_path / "text.npz")
    assert (data.task, data.tokens, data.shape) == ("next-token", 11, (8,))
    assert data.x_train.dtype == np.int16
    assert np.array_equal(data.targets[0][:, :-1], data.x_train[:, 1:])


@pytest.mark.parametrize("name", ["synthetic", "generated-text", "generated-table"])
def test_every_data_set_is_written_and_read_back(tmp_path, name):
    data = replace(load(name), columns={"writer": np.array(["w"] * len(load(name).y_train))})
    write_npz(tmp_path / f"{name}.npz", to_arrays(data))
    again = read_npz(tmp_path / f"{name}.npz", name)
    for key, value in vars(data).items():
        if key == "targets":
            pairs = zip(value or (), again.targets or (), strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs)
        elif key == "columns":
            assert again.columns["writer"].tolist() == value["writer"].tolist()
        elif key != "source":
            assert np.array_equal(getattr(again, key), value), key


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"target_test": None}, ["target_train alone", "target_test"]),
        ({"target_train": np.zeros((3, 8), int)}, ["target_train", "(3, 8)", "20 rows"]),
        ({"target_train": np.full((20, 8), np.nan)}, ["target_train", "NaN"]),
        ({"x_train": np.full((20, 8), 40_000)}, ["x_train", "40000", "32767"]),
        ({"column.writer": np.zeros(20)}, ["column.writer", "float64"]),
        ({"column.writer": np.zeros(19, int)}, ["'writer'", "(19,)", "20"]),
    ],
)
def test_bad_targets_and_columns_are_refused(tmp_path, change, facts):
    arrays = {key: value for key, value in (text_arrays() | change).items() if value is not None}
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(DataError) as caught:
        read_npz(tmp_path / "bad.npz")
    assert all(fact in str(caught.value) for fact in facts), str(caught.value)


def test_bad_statistics_are_refused(tmp_path):
    x, y = np.zeros((4, 2, 2), np.uint8), np.array([0, 1, 0, 1])
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y}
    np.savez(tmp_path / "bad.npz", **arrays, mean=[0.5], std=[0.0])
    with pytest.raises(DataError, match="mean and std"):
        read_npz(tmp_path / "bad.npz")
