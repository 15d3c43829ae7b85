"""Loading of data sets by name."""

import hashlib
import io
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from dystop.data import (
    DATASETS,
    ENTRIES,
    SyntheticImages,
    fmnist_mini,
    labels_of,
    load,
    load_entry,
    synthetic_labels,
    take,
    take_labels,
)
from dystop.data.dataset import Splits, assemble, channel_stats
from dystop.errors import DataError
from dystop.params import params_of

SYSTEM = Path("/usr/share/datasets/fashion-mnist")


def digest(path):
    return "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def test_mini_is_whole_and_balanced():
    began = time.perf_counter()
    found = load("fmnist-mini")
    assert time.perf_counter() - began < 5  # a third of a second on an idle core
    assert found.x_train.shape == (10_000, 1, 28, 28)
    assert found.x_test.shape == (2_000, 1, 28, 28)
    assert np.bincount(found.y_train).tolist() == [1000] * 10
    assert np.bincount(found.y_test).tolist() == [200] * 10
    assert found.y_train[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert found.mean == pytest.approx((0.286,), abs=2e-3)  # of the whole set: 0.2860, 0.3530
    assert found.std == pytest.approx((0.353,), abs=2e-3)
    assert found.class_names[0] == "T-shirt/top"


def test_mini_comes_with_its_licence_and_is_small():
    folder = Path(fmnist_mini.__file__).parent
    assert (folder / fmnist_mini.FILE).stat().st_size <= 5_000_000
    assert "Zalando SE" in (folder / "fmnist_mini.LICENSE.txt").read_text()


def test_damaged_mini_is_refused(monkeypatch, tmp_path):
    whole = (Path(fmnist_mini.__file__).parent / fmnist_mini.FILE).read_bytes()
    monkeypatch.setattr(fmnist_mini, "files", lambda package: tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for raw in (None, whole[:1000], whole[:5000] + b"\0" + whole[5001:]):
        if raw is not None:
            (tmp_path / fmnist_mini.FILE).write_bytes(raw)
        with pytest.raises(DataError, match=r"fmnist_mini\.xz: .*damaged .*reinstall"):
            load("fmnist-mini")
    monkeypatch.undo()
    monkeypatch.setattr(fmnist_mini, "CONTENT_SHA256", "00")
    with pytest.raises(DataError, match=r"fmnist_mini\.xz: .*sha256"):
        load("fmnist-mini")


def test_mini_is_decompressed_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = load("fmnist-mini")
    (cached,) = (tmp_path / "dystop" / "fmnist-mini").iterdir()
    monkeypatch.setattr(fmnist_mini, "_decompress", lambda: pytest.fail("decompressed again"))
    assert np.array_equal(load("fmnist-mini").x_test, first.x_test)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached.write_bytes(b"damaged")
    assert np.array_equal(load("fmnist-mini").x_test, first.x_test)
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")  # cannot be written
    assert np.array_equal(load("fmnist-mini").x_test, first.x_test)


@pytest.mark.skipif(not SYSTEM.is_dir(), reason="Fashion-MNIST is not installed on this system")
def test_whole_fashion_mnist_and_its_subset():
    full = load_entry(ENTRIES["fashion-mnist"], [SYSTEM], cache=SYSTEM, download=False)
    assert full.x_train.shape == (60_000, 1, 28, 28)
    assert full.x_test.shape == (10_000, 1, 28, 28)
    assert np.bincount(full.y_train).tolist() == [6000] * 10
    assert full.mean == pytest.approx((0.2860,), abs=5e-5)
    assert full.std == pytest.approx((0.3530,), abs=5e-5)
    small = load("fmnist-mini")
    for k in range(10):
        assert np.array_equal(small.x_test[small.y_test == k], full.x_test[full.y_test == k][:200])
        assert np.array_equal(
            small.x_train[small.y_train == k], full.x_train[full.y_train == k][:1000]
        )


def test_cifar_and_svhn_by_their_catalogue_entries(tmp_path):
    pixels = np.arange(3072).astype(np.uint8)
    archive = tmp_path / "cifar-100-binary.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        for name, fine in (("train.bin", 99), ("test.bin", 3)):
            info = tarfile.TarInfo(f"cifar-100-binary/{name}")
            raw = bytes([0, fine]) + pixels.tobytes()
            info.size = len(raw)
            tar.addfile(info, io.BytesIO(raw))
    whole = ENTRIES["cifar100"]
    files = (replace(whole.files[0], digest=digest(archive)),)
    entry = replace(whole, train=1, test=1, files=files)
    found = load_entry(entry, [tmp_path], cache=tmp_path, download=False)
    assert [found.class_names[k] for k in found.y_train] == ["worm"]
    assert np.array_equal(found.x_test.reshape(-1), pixels)

    whole = ENTRIES["svhn"]
    for file in whole.files:
        x = np.zeros((32, 32, 3, 2), np.uint8)
        savemat(tmp_path / file.name, {"X": x, "y": np.uint8([[10], [3]])})
    files = tuple(replace(f, digest=digest(tmp_path / f.name)) for f in whole.files)
    entry = replace(whole, train=2, test=2, files=files)
    found = load_entry(entry, [tmp_path], cache=tmp_path, download=False)
    assert found.y_train.tolist() == [0, 3]
    assert found.class_names == tuple("0123456789")


def test_catalogue_is_complete():
    assert list(DATASETS) == [
        "fmnist-mini", "fashion-mnist", "cifar10", "cifar100", "svhn", "synthetic",
        "generated-table", "generated-text",
    ]  # fmt: skip
    for name, kind in DATASETS.items():
        assert kind.name == name
        assert kind.licence
        assert kind.summary
        assert len(kind().row()) == 7
    for entry in ENTRIES.values():
        assert len(entry.class_names) in (0, entry.classes)
        for file in entry.files:
            assert file.url.endswith("/" + file.name)
            assert len(file.digest) == len("sha256:") + 64
    fine = ENTRIES["cifar100"].class_names
    assert list(fine) == sorted(set(fine))
    assert DATASETS["cifar10"]().row()[:4] == ("cifar10", "3 x 32 x 32", "10", "50000 / 10000")
    assert DATASETS["synthetic"]().row()[1:4] == ("1 x 8 x 8", "10", "2000 / 500")


def test_unknown_name_offers_the_nearest():
    with pytest.raises(DataError, match=r"'cifar-10'; allowed: fmnist-mini.*mean 'cifar10'"):
        load("cifar-10")


# ---- synthetic


def softmax_accuracy(data, steps=30):
    def rows(x):
        return np.c_[(x.reshape(len(x), -1) / 255 - data.mean[0]) / data.std[0], np.ones(len(x))]

    train, test, truth = rows(data.x_train), rows(data.x_test), np.eye(data.classes)[data.y_train]
    weights = np.zeros((train.shape[1], data.classes))
    for _ in range(steps):
        score = np.exp(train @ weights)
        score /= score.sum(axis=1, keepdims=True)
        weights -= 0.5 * train.T @ (score - truth) / len(train)
    return float(((test @ weights).argmax(axis=1) == data.y_test).mean())


def test_synthetic_is_learnable_but_not_trivial():
    sizes = SyntheticImages(train=800)
    easy, plain, hard = (
        softmax_accuracy(load("synthetic", options=replace(sizes, noise=noise)))
        for noise in (0.1, sizes.noise, 0.6)
    )
    assert easy > 0.99
    assert 0.85 < plain < 0.97
    assert 0.3 < hard < 0.6


@pytest.mark.parametrize("limit", [None, 70])
def test_labels_are_those_of_the_data_set(limit):
    params = SyntheticImages(train=100, test=10, classes=3)
    whole = take(load("synthetic", seed=5, options=params), limit, seed=5)
    alone = take_labels(synthetic_labels(params, 5), limit, seed=5)
    expected = labels_of(whole)
    assert np.array_equal(alone.y_train, expected.y_train)
    assert replace(alone, y_train=None) == replace(expected, y_train=None)


def test_labels_of_a_large_synthetic_set_need_no_images():
    params = SyntheticImages(train=200_000, shape=(3, 4096, 4096))
    assert len(synthetic_labels(params, 0).y_train) == 200_000


def test_synthetic_is_deterministic_by_seed():
    a, b, c = (load("synthetic", seed=s) for s in (1, 1, 2))
    assert np.array_equal(a.x_train, b.x_train)
    assert np.array_equal(a.y_test, b.y_test)
    assert not np.array_equal(a.x_train, c.x_train)
    assert a.source == "generated from seed 1"


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 20), (5, 1, 1)])
def test_synthetic_takes_any_size(shape):
    params = SyntheticImages(train=31, test=7, classes=3, shape=shape)
    found = load("synthetic", options=params)
    assert found.x_train.shape == (31, *shape)
    assert found.x_test.dtype == np.uint8
    assert sorted(np.bincount(found.y_train)) == [10, 10, 11]
    assert len(found.mean) == len(found.std) == shape[0]


def test_a_longer_train_split_leaves_the_test_split_alone():
    short, long = (load("synthetic", options=SyntheticImages(train=n)) for n in (10, 20))
    assert np.array_equal(short.x_test, long.x_test)


def test_synthetic_knobs_are_described():
    assert all(k.meaning for k in params_of(SyntheticImages))


# ---- subsets and checks


def test_take_keeps_class_shares():
    data = load("synthetic", options=SyntheticImages(train=100, test=50))
    some = take(data, 50, 10, seed=4)
    assert np.bincount(some.y_train).tolist() == [5] * 10
    assert np.bincount(some.y_test).tolist() == [1] * 10
    assert (some.mean, some.std) == (data.mean, data.std)
    again, other = take(data, 50, seed=4), take(data, 50, seed=5)
    assert np.array_equal(again.x_train, some.x_train)
    assert not np.array_equal(other.x_train, some.x_train)
    assert len(again.x_test) == 50


@pytest.mark.parametrize("wanted", [1, 2, 7, 9, 10])
def test_take_gives_exactly_what_was_asked(wanted):
    labels = np.array([0] * 7 + [1] * 2 + [3])
    x = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1)
    data = assemble("t", Splits(x, labels, x, labels), classes=4, source="test")
    some = take(data, train=wanted)
    assert len(some.x_train) == wanted
    assert np.array_equal(labels[some.x_train.reshape(-1)], some.y_train)
    assert len(set(some.x_train.reshape(-1).tolist())) == wanted


@pytest.mark.parametrize("wanted", [0, -1, 501])
def test_take_refuses_what_is_not_there(wanted):
    with pytest.raises(DataError, match=f"{wanted} test samples .*'synthetic'.*1 to 500"):
        take(load("synthetic"), test=wanted)


def test_statistics_match_the_textbook():
    x = np.random.default_rng(0).integers(0, 256, (5000, 3, 4, 4), dtype=np.uint8)
    x[:, 2] = 7
    mean, std = channel_stats(x)
    np.testing.assert_allclose(mean, x.mean(axis=(0, 2, 3)) / 255, rtol=1e-12)
    np.testing.assert_allclose(std[:2], x.std(axis=(0, 2, 3))[:2] / 255, rtol=1e-9)
    assert std[2] == 1.0


def test_class_names_must_fit():
    data = load("synthetic")
    splits = Splits(data.x_train, data.y_train, data.x_test, data.y_test)
    with pytest.raises(DataError, match=r"2 class names .*10 classes"):
        assemble("t", splits, classes=10, class_names=("a", "b"), source="test")
