"""Atomic writes, the append log, the file lock and the JSON readers."""

import os
import stat
import subprocess
import sys

import pytest

from dystop.errors import RunFolderError, StorageError
from dystop.storage import (
    PRIVATE,
    AppendLog,
    FileLock,
    LockHeldError,
    is_unlocked,
    open_private,
    read_json,
    remove_temporary_files,
    try_read_json,
    write_atomic,
    write_failure,
)


def names(folder):
    return sorted(os.listdir(folder))


def test_a_write_replaces_the_whole_file(tmp_path):
    file = tmp_path / "a"
    write_atomic(file, b"a longer first content")
    write_atomic(file, b"short")
    assert file.read_bytes() == b"short"
    assert names(tmp_path) == ["a"]


def test_a_function_may_write_the_content(tmp_path):
    write_atomic(tmp_path / "a", lambda path: path.write_text("by hand"))
    assert (tmp_path / "a").read_text() == "by hand"


@pytest.mark.parametrize("step", ["before_fsync", "after_fsync", "before_rename"])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, step):
    file = tmp_path / "a"
    write_atomic(file, b"old")

    def fail(reached):
        if reached == step:
            raise OSError(step)

    with pytest.raises(OSError, match=step):
        write_atomic(file, b"new", on_step=fail)
    assert file.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_the_file_before_may_be_kept(tmp_path):
    file, before = tmp_path / "a", tmp_path / "a.1"
    write_atomic(file, b"1", previous=before)
    assert names(tmp_path) == ["a"]
    write_atomic(file, b"2", previous=before)
    write_atomic(file, b"3", previous=before)
    assert (file.read_bytes(), before.read_bytes()) == (b"3", b"2")


def test_a_private_file_is_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        write_atomic(tmp_path / "key", b"", mode=PRIVATE)
        os.umask(0o777)
        write_atomic(tmp_path / "crt", b"", mode=0o644)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "crt").stat().st_mode) == 0o644


def test_no_link_is_written_through(tmp_path):
    """Neither one in the place of the file, nor one in the place of its temporary file."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"mine")
    (tmp_path / "a").symlink_to(victim)
    (tmp_path / f".a.tmp-{os.getpid()}").symlink_to(victim)
    write_atomic(tmp_path / "a", b"new")
    assert victim.read_bytes() == b"mine"
    assert not (tmp_path / "a").is_symlink()
    assert (tmp_path / "a").read_bytes() == b"new"


def test_only_the_temporary_files_of_a_name_are_removed(tmp_path):
    for name in (".a.tmp-1", ".a.tmp", ".b.tmp-1", "a"):
        (tmp_path / name).touch()
    remove_temporary_files(tmp_path, "a")
    assert names(tmp_path) == [".b.tmp-1", "a"]
    remove_temporary_files(tmp_path)
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (OSError(28, "No space left on device", "runs/x"), "free space"),
        (OSError(13, "Permission denied", "runs/x"), "make the folder writable"),
        (OSError(5, "Input/output error", "runs/x"), "check the disk"),
    ],
)
def test_a_failure_names_the_file_and_the_remedy(tmp_path, error, advice):
    told = write_failure(error, tmp_path)
    assert "runs/x" in told
    assert os.strerror(error.errno) in told
    assert told.endswith(advice)
    assert write_failure(ValueError("os error 28"), tmp_path) is None


def test_a_log_keeps_the_bytes_up_to_its_offset(tmp_path):
    (tmp_path / "log").write_bytes(b"one\ntw")
    log = AppendLog(tmp_path / "log", 4)
    log.append(b"two\n")
    log.sync()
    log.close()
    log.close()
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"


def test_a_lock_is_held_by_one(tmp_path):
    lock = FileLock(tmp_path / "lock")
    assert not is_unlocked(lock.path)
    assert lock.acquire() == ""
    lock.write("holder 7")
    with pytest.raises(LockHeldError) as caught:
        FileLock(lock.path).acquire()
    assert caught.value.holder == "holder 7"
    assert not is_unlocked(lock.path)
    lock.release()
    assert is_unlocked(lock.path)
    assert FileLock(lock.path).acquire() == "holder 7"


def test_a_lock_may_be_waited_for(tmp_path):
    code = (
        "import sys; from pathlib import Path; from dystop.storage import FileLock\n"
        "with FileLock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read(1)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"held\n"
        other.stdin.write(b"x")
        other.stdin.close()
        with FileLock(tmp_path / "lock", wait=True):
            assert not is_unlocked(tmp_path / "lock")


@pytest.mark.parametrize("content", ["{", "[1]", "\xff"])
def test_json_that_is_no_object_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(RunFolderError, match=r"a\.json.*damaged"):
        read_json(tmp_path / "a.json")
    with pytest.raises(StorageError, match=r"a\.json.*damaged"):
        read_json(tmp_path / "a.json", StorageError)
    assert try_read_json(tmp_path / "a.json") == {}


def test_json_that_is_missing_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=r"a\.json.*No such file"):
        read_json(tmp_path / "a.json")
    assert try_read_json(tmp_path / "a.json") == {}
    (tmp_path / "a.json").write_text('{"a": 1}')
    assert read_json(tmp_path / "a.json") == try_read_json(tmp_path / "a.json") == {"a": 1}


def test_a_private_file_that_others_could_read_is_closed_to_them(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_text("old\n")
    path.chmod(0o644)
    with open(path, "a", opener=open_private) as file:
        file.write("new\n")
    assert stat.S_IMODE(path.stat().st_mode) == PRIVATE
    assert path.read_text() == "old\nnew\n"
