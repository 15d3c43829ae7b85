"""Readers of the official files of MNIST, CIFAR and SVHN."""

import gzip
import hashlib
import io
import struct
import tarfile

import numpy as np
import pytest
from scipy.io import savemat

from dystop.data.readers import CIFAR10, CIFAR100, check_digest, read_cifar, read_idx, read_svhn
from dystop.errors import DataError
from dystop.rng import stream


def pixels(*shape):
    return stream(0, "test", *shape).integers(0, 256, shape, dtype=np.uint8)


# ---- IDX


def idx_bytes(x, kind=0x08, dims=None):
    dims = dims or x.shape
    return bytes([0, 0, kind, len(dims)]) + struct.pack(f">{len(dims)}I", *dims) + x.tobytes()


def put(path, raw):
    path.write_bytes(raw)
    return path


def test_idx_round_trip(tmp_path):
    x = pixels(5, 4, 3)
    path = put(tmp_path / "a.gz", gzip.compress(idx_bytes(x)))
    digest = hashlib.sha256(idx_bytes(x)).hexdigest()
    assert np.array_equal(read_idx(path, (5, 4, 3), digest), x)
    put(path, gzip.compress(idx_bytes(x), 1))  # compressed again: only the content counts
    assert np.array_equal(read_idx(path, (5, 4, 3), digest), x)


X = pixels(5, 4, 3)
GOOD = gzip.compress(idx_bytes(X))


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (GOOD[:-20], "corrupt or truncated"),
        (GOOD[: len(GOOD) // 2], "corrupt or truncated"),
        (GOOD[:-6] + b"\0\0" + GOOD[-4:], "corrupt or truncated"),
        (b"", "not an IDX file"),
        (idx_bytes(X), "Not a gzipped file"),
        (gzip.compress(b"PK\3\4" + idx_bytes(X)), r"0x504b0304\); expected 0x00000803"),
        (gzip.compress(idx_bytes(X, kind=0x0D)), "not an IDX file"),
        (gzip.compress(idx_bytes(X.reshape(-1))), "IDX file of 3 dimensions"),
        (gzip.compress(idx_bytes(pixels(6, 4, 3))), "6 x 4 x 3 .*expected 5 x 4 x 3"),
        (gzip.compress(idx_bytes(X)[:-1]), "too few bytes.*60"),
        (gzip.compress(idx_bytes(X) + b"\0"), "too many bytes"),
        (gzip.compress(idx_bytes(X)[:9]), "holds"),
        (gzip.compress(idx_bytes(X[::-1])), "MNIST.*sha256"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",  # gzip holds the time of day
)
def test_bad_idx_is_named_and_refused(tmp_path, raw, message):
    path = put(tmp_path / "train-images.gz", raw)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path, (5, 4, 3), hashlib.sha256(idx_bytes(X)).hexdigest())
    assert str(path) in str(caught.value)
    assert "download" in str(caught.value)


def test_missing_idx_is_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.gz"):
        read_idx(tmp_path / "nowhere.gz", (1,))


# ---- CIFAR


def records(labels, images):
    return b"".join(bytes(k) + x.tobytes() for k, x in zip(labels, images, strict=True))


def write_tar(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return path


def cifar10_members():
    x, y = pixels(12, 3, 32, 32), np.arange(12) % 10
    parts = {
        f"data_batch_{k + 1}.bin": records(
            [[c] for c in y[2 * k : 2 * k + 2]], x[2 * k : 2 * k + 2]
        )
        for k in range(5)
    }
    parts["test_batch.bin"] = records([[c] for c in y[10:]], x[10:])
    return x, y, parts


def in_folder(parts):
    return {f"{CIFAR10.folder}/{name}": raw for name, raw in parts.items()}


def test_cifar10_round_trip_from_archive_and_folder(tmp_path):
    x, y, parts = cifar10_members()
    archive = write_tar(tmp_path / "a.tar.gz", in_folder(parts))
    digest = "md5:" + hashlib.md5(archive.read_bytes()).hexdigest()
    folder = tmp_path / CIFAR10.folder
    folder.mkdir()
    for name, raw in parts.items():
        put(folder / name, raw)
    for path in (archive, folder):
        found = read_cifar(path, CIFAR10, (10, 2), digest)
        assert np.array_equal(found.x_train, x[:10])
        assert np.array_equal(found.x_test, x[10:])
        assert found.y_train.tolist() == y[:10].tolist()
        assert found.y_test.tolist() == y[10:].tolist()


def test_cifar100_uses_the_fine_label(tmp_path):
    x = pixels(4, 3, 32, 32)
    members = {
        "cifar-100-binary/train.bin": records([(1, 99), (2, 0), (3, 7)], x[:3]),
        "cifar-100-binary/test.bin": records([(19, 50)], x[3:]),
    }
    found = read_cifar(write_tar(tmp_path / "a.tar.gz", members), CIFAR100, (3, 1))
    assert found.y_train.tolist() == [99, 0, 7]
    assert found.y_test.tolist() == [50]
    assert np.array_equal(found.x_train, x[:3])


def test_bad_cifar_archives_are_named_and_refused(tmp_path):
    _, _, parts = cifar10_members()
    good = in_folder(parts)
    short = dict(good)
    short[f"{CIFAR10.folder}/data_batch_3.bin"] = short[f"{CIFAR10.folder}/data_batch_3.bin"][:-1]
    python = {"cifar-10-batches-py/data_batch_1": b"x"}
    whole = write_tar(tmp_path / "good.tar.gz", good).read_bytes()
    cases = {
        "short": (write_tar(tmp_path / "short.tar.gz", short), "data_batch_3.bin' has 6145 bytes"),
        "python": (write_tar(tmp_path / "python.tar.gz", python), "Python"),
        "cut": (put(tmp_path / "cut.tar.gz", whole[: len(whole) // 2]), "corrupt or truncated"),
        "plain": (put(tmp_path / "plain.tar.gz", b"hello" * 300), "corrupt or truncated"),
        "empty": (put(tmp_path / "empty.tar.gz", b""), "corrupt or truncated"),
    }
    for name, (path, message) in cases.items():
        with pytest.raises(DataError, match=message) as caught:
            read_cifar(path, CIFAR10, (10, 2))
        assert name in str(caught.value)


def test_bad_cifar_folder_and_digest_are_refused(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    with pytest.raises(DataError, match=r"data_batch_1.bin: missing"):
        read_cifar(folder, CIFAR10, (10, 2))
    put(folder / "data_batch_1.bin", b"123")
    with pytest.raises(DataError, match=r"data_batch_1.bin: has 3 bytes; expected 6146"):
        read_cifar(folder, CIFAR10, (10, 2))
    with pytest.raises(DataError, match=r"b\.tar\.gz: .*sha256"):
        read_cifar(put(tmp_path / "b.tar.gz", b"1"), CIFAR10, (10, 2), "sha256:00")


# ---- SVHN


def test_svhn_round_trip(tmp_path):
    x, path = pixels(4, 3, 32, 32), tmp_path / "train_32x32.mat"
    savemat(path, {"X": x.transpose(2, 3, 1, 0), "y": np.uint8([[1], [10], [9], [5]])})
    images, labels = read_svhn(path, 4, "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest())
    assert np.array_equal(images, x)
    assert images.flags.c_contiguous
    assert labels.tolist() == [1, 0, 9, 5]


SVHN_X = np.zeros((32, 32, 3, 2), np.uint8)
SVHN_Y = np.uint8([[1], [2]])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": SVHN_X}, "has no array 'y'"),
        ({"y": SVHN_Y}, "has no array 'X'"),
        ({"X": SVHN_X[..., :1], "y": SVHN_Y[:1]}, "X has shape"),
        ({"X": SVHN_X, "y": SVHN_Y[:1]}, "y has shape"),
        ({"X": SVHN_X.astype(float), "y": SVHN_Y}, "X is float64; expected uint8"),
        ({"X": SVHN_X, "y": SVHN_Y + 9}, "10 to 11.*expected 1 to 10"),
    ],
)
def test_bad_svhn_is_named_and_refused(tmp_path, content, message):
    path = tmp_path / "test_32x32.mat"
    savemat(path, content)
    with pytest.raises(DataError, match=message) as caught:
        read_svhn(path, 2)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("keep", [0, 60, 200, 1000])
def test_truncated_svhn_is_refused(tmp_path, keep):
    path = tmp_path / "test_32x32.mat"
    savemat(path, {"X": pixels(32, 32, 3, 2), "y": SVHN_Y}, do_compression=True)
    put(path, path.read_bytes()[:keep])
    with pytest.raises(DataError, match=r"test_32x32\.mat"):
        read_svhn(path, 2)


def test_unreadable_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"gone: .*No such file"):
        check_digest(tmp_path / "gone", "sha256:00")
