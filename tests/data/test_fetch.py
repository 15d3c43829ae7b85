"""Downloads of data sets, their cache and their error messages."""

import gzip
import hashlib
import http.server
import shutil
import socket
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from dystop.data import ENTRIES, RemoteFile, load, load_entry
from dystop.data import fetch as fetch_module
from dystop.data.fetch import search_folders
from dystop.errors import DataError, StorageError

TRAIN, TEST = 6, 4


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.delenv("DYSTOP_DATA", raising=False)


@pytest.fixture
def published(tmp_path):
    """A folder with four tiny official files."""
    folder = tmp_path / "published"
    folder.mkdir()
    for file, raw in zip(ENTRIES["fashion-mnist"].files, contents(), strict=True):
        (folder / file.name).write_bytes(gzip.compress(raw, mtime=0))
    return folder


@pytest.fixture
def server(published):
    handler = partial(Quiet, directory=str(published))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}/"
        httpd.shutdown()
        thread.join()


def contents():
    for n in (TRAIN, TEST):
        pixels = np.arange(n * 784).astype(np.uint8).tobytes()
        yield bytes([0, 0, 8, 3, 0, 0, 0, n, 0, 0, 0, 28, 0, 0, 0, 28]) + pixels
        yield bytes([0, 0, 8, 1, 0, 0, 0, n]) + bytes(k % 10 for k in range(n))


def tiny(published, url):
    """The catalogue's entry, with a tiny set published at this address."""
    whole = ENTRIES["fashion-mnist"]
    files = tuple(
        RemoteFile(
            file.name,
            url + file.name,
            "sha256:" + hashlib.sha256((published / file.name).read_bytes()).hexdigest(),
            hashlib.sha256(raw).hexdigest(),
        )
        for file, raw in zip(whole.files, contents(), strict=True)
    )
    return replace(whole, files=files, train=TRAIN, test=TEST)


def test_download_is_checked_and_cached(tmp_path, published, server):
    entry, cache = tiny(published, server), tmp_path / "cache"
    found = load_entry(entry, [], cache=cache, download=True)
    assert found.x_train.shape == (TRAIN, 1, 28, 28)
    assert found.y_test.tolist() == [0, 1, 2, 3]
    assert found.class_names[9] == "Ankle boot"
    assert sorted(p.name for p in (cache / entry.name).iterdir()) == sorted(
        f.name for f in entry.files
    )
    shutil.rmtree(published)  # from here on only the cache can answer
    again = load_entry(entry, [cache], cache=cache, download=True)
    assert np.array_equal(again.x_train, found.x_train)
    assert again.source == str(cache / entry.name)


@pytest.mark.parametrize("damage", ["changed", "truncated", "absent"])
def test_bad_download_is_refused_and_not_kept(tmp_path, published, server, damage):
    entry, cache = tiny(published, server), tmp_path / "cache"
    victim = published / "t10k-images-idx3-ubyte.gz"
    raw = victim.read_bytes()
    if damage == "absent":
        victim.unlink()
    else:
        victim.write_bytes(raw[:-7] if damage == "truncated" else raw[:-1] + b"!")
    with pytest.raises(DataError, match=r"http\S+t10k-images-idx3-ubyte\.gz "):
        load_entry(entry, [cache], cache=cache, download=True)
    kept = {p.name for p in (cache / entry.name).iterdir()}
    assert kept == {f.name for f in entry.files[:2]}
    victim.write_bytes(raw)  # the source recovers: only what is missing is fetched
    assert len(load_entry(entry, [cache], cache=cache, download=True).x_test) == TEST


def test_no_server_says_what_to_put_where(tmp_path, published):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    entry, cache = tiny(published, f"http://127.0.0.1:{port}/"), tmp_path / "cache"
    with pytest.raises(DataError, match=r"http\S+ ") as caught:
        load_entry(entry, [], cache=cache, download=True)
    text = str(caught.value)
    assert str(cache / "fashion-mnist") in text
    assert all(f.name in text and f.url in text for f in entry.files)
    assert "DYSTOP_DATA" in text
    assert "fmnist-mini" in text


def test_cache_that_cannot_be_written_is_a_storage_error(tmp_path, published, server):
    (tmp_path / "cache").write_text("a file where a folder should be")
    with pytest.raises(StorageError, match=r"cache\S*: .*train-images"):
        load_entry(tiny(published, server), [], cache=tmp_path / "cache", download=True)


def test_downloads_can_be_forbidden(tmp_path, published):
    entry = tiny(published, "http://127.0.0.1:9/")
    with pytest.raises(DataError, match=r"empty.*downloads are off.*train-images"):
        load_entry(entry, [tmp_path / "empty"], cache=tmp_path / "cache", download=False)


@pytest.mark.parametrize("sub", ["", "fashion-mnist", "FashionMNIST/raw"])
def test_local_folders_are_found_without_a_download(tmp_path, published, sub):
    entry = tiny(published, "http://127.0.0.1:9/")
    shutil.copytree(published, tmp_path / "mine" / sub, dirs_exist_ok=True)
    found = load_entry(entry, [tmp_path / "mine"], cache=tmp_path / "cache", download=True)
    assert found.source == str(tmp_path / "mine" / sub)


def test_first_folder_wins_and_a_bad_file_in_it_is_refused(tmp_path, published):
    entry = tiny(published, "http://127.0.0.1:9/")
    for name in ("first", "second"):
        shutil.copytree(published, tmp_path / name)
    folders = [tmp_path / "first", tmp_path / "second"]
    found = load_entry(entry, folders, cache=tmp_path / "cache", download=False)
    assert found.source == str(tmp_path / "first")
    (tmp_path / "first" / "train-labels-idx1-ubyte.gz").write_bytes(b"oops")
    with pytest.raises(DataError, match=r"first/train-labels-idx1-ubyte\.gz: corrupt"):
        load_entry(entry, folders, cache=tmp_path / "cache", download=False)


def test_label_out_of_range_is_refused(tmp_path, published):
    entry = replace(tiny(published, "http://127.0.0.1:9/"), classes=5, class_names=())
    with pytest.raises(DataError, match=r"published: train label 5 is out of range; .* 0 to 4"):
        load_entry(entry, [published], cache=tmp_path, download=False)


def test_converted_set_is_found_by_name(tmp_path):
    x = np.zeros((3, 32, 32, 3), np.uint8)
    y = np.array([0, 9, 4])
    np.savez(tmp_path / "cifar10.npz", x_train=x, y_train=y, x_test=x[:1], y_test=y[:1])
    found = load("cifar10", root=tmp_path, download=False)
    assert (found.name, found.classes, found.shape) == ("cifar10", 10, (3, 32, 32))
    assert found.class_names[9] == "truck"
    np.savez(tmp_path / "cifar10.npz", x_train=x[:, :8], y_train=y, x_test=x[:1, :8], y_test=y[:1])
    with pytest.raises(DataError, match=r"cifar10\.npz: images have shape \(3, 8, 32\)"):
        load("cifar10", root=tmp_path, download=False)


def test_search_order(tmp_path, monkeypatch):
    named, variable = tmp_path / "named", tmp_path / "variable"
    named.mkdir()
    variable.mkdir()
    monkeypatch.setenv("DYSTOP_DATA", str(variable))
    folders = search_folders(named)
    assert folders[:2] == [named, variable]
    assert folders[-2:] == [fetch_module.user_cache(), fetch_module.Path("data")]


def test_named_folders_must_exist(tmp_path, monkeypatch):
    with pytest.raises(DataError, match=r"nowhere \(from root\)"):
        load("cifar10", root=tmp_path / "nowhere")
    monkeypatch.setenv("DYSTOP_DATA", str(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"gone \(from DYSTOP_DATA\)"):
        load("cifar10")
