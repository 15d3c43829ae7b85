"""One driver at a time: on this host by a file lock, on others by a lease that must change."""

import json
import os
import time

import pytest

from dystop.errors import RunFolderError
from dystop.studies.executors import driver_lock
from dystop.studies.executors.driver_lock import LEASE, DriverLock


def lease(folder):
    return json.loads((folder / LEASE).read_text())


def test_a_driver_of_this_host_is_refused_at_once(tmp_path):
    with DriverLock(tmp_path), pytest.raises(RunFolderError, match=f"process {os.getpid()}"):
        DriverLock(tmp_path).__enter__()
    assert not (tmp_path / LEASE).exists()


def other_host(folder, **changes):
    """What a driver on another host has written."""
    content = {"host": "n1", "pid": 7, "machine": "other", "token": "t", "beats": 1, **changes}
    (folder / LEASE).write_text(json.dumps(content))


def test_a_driver_of_another_host_that_lives_is_named(tmp_path):
    other_host(tmp_path)
    waited = []

    def wait(seconds):
        waited.append(seconds)
        other_host(tmp_path, beats=len(waited) + 1)

    with pytest.raises(RunFolderError, match="process 7 on n1 drives this study"):
        DriverLock(tmp_path, wait=wait).__enter__()
    assert len(waited) == 1
    assert lease(tmp_path)["token"] == "t"
    with DriverLock(tmp_path, machine="other"):  # the refused one has let go of the file lock
        pass


def test_a_driver_of_another_host_that_is_dead_is_replaced(tmp_path):
    other_host(tmp_path)
    waited = []
    with DriverLock(tmp_path, wait=waited.append) as lock:
        lock.check()
        assert lease(tmp_path)["pid"] == os.getpid()
    assert sum(waited) >= driver_lock.STALE_S - driver_lock.BEAT_S


def test_a_dead_driver_of_this_host_is_replaced_without_waiting(tmp_path):
    with DriverLock(tmp_path, machine="here"):
        left = (tmp_path / LEASE).read_text()
    (tmp_path / LEASE).write_text(left)
    with DriverLock(tmp_path, machine="here", wait=pytest.fail) as lock:
        lock.check()


def test_a_driver_keeps_its_lease(tmp_path, monkeypatch):
    monkeypatch.setattr(driver_lock, "BEAT_S", 0.01)
    end = time.monotonic() + 1200
    with DriverLock(tmp_path):
        while lease(tmp_path)["beats"] < 3:
            assert time.monotonic() < end
            time.sleep(0.01)


def test_a_driver_that_was_taken_for_dead_learns_it(tmp_path, monkeypatch):
    monkeypatch.setattr(driver_lock, "BEAT_S", 0.01)
    with DriverLock(tmp_path) as lock:
        lock._over.set()
        lock._thread.join()  # asleep, as on a laptop that was closed
        other_host(tmp_path)
        with pytest.raises(RunFolderError, match="process 7 on n1 drives this study now"):
            lock.check()
    assert lease(tmp_path)["token"] == "t"  # the lease of the other one stays


def test_a_damaged_lease_keeps_nobody_out(tmp_path):
    (tmp_path / LEASE).write_text("{")
    with DriverLock(tmp_path, wait=pytest.fail):
        pass
