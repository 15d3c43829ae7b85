"""Checkpoints: never torn, never silently wrong, never lost to a full disk."""

import errno
import os
import signal
import time
from dataclasses import astuple, replace

import numpy as np
import pytest

from dystop import rng
from dystop.errors import RunFolderError, StorageError
from dystop.format import FORMAT
from dystop.testbed.launch import failpoints
from dystop.testbed.protocol.messages import Rejected, Report, Used
from dystop.testbed.worker import checkpoint
from dystop.testbed.worker.checkpoint import CheckpointStore
from dystop.testbed.worker.state import (
    MailboxEntry,
    RunningTraining,
    first_state,
)

RUN = "ab" * 16


def a_state(version=0, width=7):
    vector = np.linspace(-1, 1, width, dtype=np.float32) + np.float32(version)
    state = first_state(vector, np.arange(2), deltas=True)
    return replace(
        state,
        version=version,
        number=4,
        models=state.models.begun(vector * 2, np.arange(2) + 1),
        training=RunningTraining(5, 9, 3, 0.5, 2),
        last_round=9,
        epoch=2,
        incarnation=77,
        run=RUN,
        reports=(
            Report(9, "mixed", (Used(1, 0, 3, 2, "ff", 10, 0.5),), (Rejected(2, 0, "timeout"),)),
            Report(8, "trained", loss=0.25),
        ),
        mailbox={3: MailboxEntry(1, 8, vector * 3, delta=True)},
    )


def assert_same(one, two):
    for before, after in zip(astuple(one.models), astuple(two.models), strict=True):
        np.testing.assert_array_equal(before, after)
        assert before.dtype == after.dtype
    plain = ("version", "number", "round", "training", "last_round", "epoch", "reports")
    assert all(getattr(one, n) == getattr(two, n) for n in (*plain, "incarnation", "shift"))
    assert one.mail == two.mail
    np.testing.assert_array_equal(one.mailbox[3].vector, two.mailbox[3].vector)


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "w00" / "ckpt.safetensors")


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm("")


def test_what_is_saved_is_loaded(store):
    assert store.load().state is None
    store.save(a_state(1))
    found = store.load()
    assert_same(found.state, a_state(1))
    assert found.note == ""


def test_it_is_a_safetensors_file(store):
    from safetensors.numpy import load_file

    store.save(a_state(1))
    assert any(len(t) == 7 for t in load_file(store.path).values())
    assert store.path.stat().st_mode & 0o077 == 0


def test_the_previous_checkpoint_is_kept(store):
    store.save(a_state(1))
    store.save(a_state(2))
    assert store.load().state.version == 2
    store.path.unlink()
    assert store.load().state.version == 1


@pytest.mark.parametrize("where", [0, 3, 9, 60, 200, -1, -30])
def test_a_flipped_bit_is_detected_and_the_previous_file_used(store, where):
    store.save(a_state(1))
    store.save(a_state(2))
    blob = bytearray(store.path.read_bytes())
    blob[where] ^= 1
    store.path.write_bytes(blob)
    found = store.load()
    assert found.state.version == 1
    assert "ckpt.safetensors" in found.note
    assert "damaged" in found.note


def test_every_single_byte_counts(store):
    store.save(a_state(2))
    good = store.path.read_bytes()
    draw = rng.stream(0, "flips")
    for where in draw.choice(len(good), 300, replace=False):
        blob = bytearray(good)
        blob[where] ^= 1 << int(draw.integers(8))
        store.path.write_bytes(blob)
        assert store.load().state is None, where


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_a_truncated_file_is_detected(store, length):
    store.save(a_state(1))
    store.path.write_bytes(store.path.read_bytes()[:length])
    found = store.load()
    assert found.state is None
    assert found.note


def test_without_a_whole_checkpoint_the_worker_starts_anew(store):
    store.save(a_state(1))
    store.save(a_state(2))
    store.path.write_bytes(b"x")
    store.before.write_bytes(b"y")
    found = store.load()
    assert found.state is None
    assert found.note.count("damaged") == 2


def test_the_run_is_kept(store):
    store.save(a_state(1))
    assert store.load().state.run == RUN


def test_a_full_disk_leaves_the_old_file(store, monkeypatch):
    store.save(a_state(1))

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="No space left"):
        store.save(a_state(2))
    monkeypatch.undo()
    assert store.load().state.version == 1
    assert sorted(p.name for p in store.path.parent.iterdir()) == ["ckpt.safetensors"]
    store.save(a_state(2))
    assert store.load().state.version == 2


SITES = ("vault.before_fsync", "vault.after_fsync", "vault.before_rename", "vault.after_rename")


@pytest.mark.parametrize("site", SITES)
def test_an_error_at_each_place_leaves_something_whole(store, site):
    store.save(a_state(1))
    failpoints.arm(f"{site}:error")
    with pytest.raises(StorageError):
        store.save(a_state(2))
    failpoints.arm("")
    assert store.load().state.version == (2 if site.endswith("after_rename") else 1)


def test_a_link_in_the_way_is_not_followed(store, tmp_path):
    store.save(a_state(1))
    victim = tmp_path / "victim"
    victim.write_text("mine")
    store.path.with_name(f".{store.path.name}.tmp-{os.getpid()}").symlink_to(victim)
    store.save(a_state(2))
    assert victim.read_text() == "mine"


def keep_writing(store, writing):
    """Write checkpoints as fast as possible; print each version after it is written."""
    found = store.load()
    k = found.state.version if found.state else 0
    os.write(writing, b"%d\n" % k)
    while True:
        k += 1
        store.save(a_state(k, width=50_000))
        os.write(writing, b"%d\n" % k)


def killed_after(store, pause_s):
    """Let a child write, kill it, and return the last version that it printed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            keep_writing(store, writing)
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as lines:
        first = lines.readline() + lines.readline()  # at least one was written
        time.sleep(pause_s)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return int((first + lines.read()).split()[-1])


def test_forty_kills_never_tear_a_checkpoint(store):
    for pause_s in rng.stream(1, "kills").uniform(0.002, 0.04, 40):
        last = killed_after(store, pause_s)
        found = store.load()
        version = found.state.version if found.state else 0
        assert not found.note
        assert version in (last, last + 1)
        assert found.state is None or found.state.published[0] == np.float32(version - 1)
    assert version >= 40


def test_another_format_is_refused(store, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    store.save(a_state(1))
    monkeypatch.undo()
    with pytest.raises(RunFolderError, match=rf"format is 2, .* uses {FORMAT}; use the version"):
        store.load()
