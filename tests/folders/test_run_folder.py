import errno
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dystop import storage
from dystop.config import read_experiment, to_toml, to_tree
from dystop.errors import RunFolderError, StorageError
from dystop.folders import run_folder
from dystop.folders.run_folder import (
    RecordLog,
    RunLock,
    create_run,
    open_run,
    update_info,
)
from support.fake_runs import record_of_round as record

EXPERIMENT = read_experiment()
INFO = run_folder.first_info(EXPERIMENT)


def make(out, name="one", **more):
    return create_run(out, name, to_toml(EXPERIMENT), INFO, {"workers": 3}, **more)


def test_a_new_run_reads_back(tmp_path):
    folder = make(tmp_path / "deep" / "runs")
    assert sorted(p.name for p in folder.iterdir()) == [
        "checkpoints",
        "config.toml",
        "fleet.json",
        "records.jsonl",
        "run.json",
    ]
    run = open_run(folder)
    assert (run.path, run.name, run.fleet, run.records) == (folder, "one", {"workers": 3}, [])
    written = (folder / "config.toml").read_bytes()
    assert run.info == {**INFO, "config_sha256": hashlib.sha256(written).hexdigest()}
    assert read_experiment(folder / "config.toml") == EXPERIMENT
    assert run.config["mechanism"]["name"] == to_tree(EXPERIMENT)["mechanism"]["name"]
    assert os.listdir(folder.parent) == ["one"]


def test_run_json_says_what_was_run():
    assert INFO["status"] == "running"
    assert INFO["mechanism"]["provenance"] == "paper"
    assert {"dystop", "python", "torch", "numpy"} <= set(INFO["versions"])
    assert (INFO["timing"], INFO["publish"], INFO["seed"]) == ("paper", "eager", 0)


def test_a_taken_name_gets_a_number_unless_it_was_asked_for(tmp_path):
    assert [make(tmp_path).name for _ in range(3)] == ["one", "one-2", "one-3"]
    taken = rf"{tmp_path / 'one'}: .*exists.*--name.*dystop resume {tmp_path / 'one'}$"
    with pytest.raises(RunFolderError, match=taken):
        make(tmp_path, explicit=True)
    with pytest.raises(RunFolderError, match=taken):
        run_folder.check_free(tmp_path, "one")
    assert sorted(os.listdir(tmp_path)) == ["one", "one-2", "one-3"]


def test_a_name_lost_in_a_race_goes_to_the_next(tmp_path, monkeypatch):
    make(tmp_path)
    seen = []
    monkeypatch.setattr(run_folder.os.path, "lexists", lambda p: bool(seen.append(p)))
    assert make(tmp_path).name == "one-2"


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "..", "a b", "x" * 101])
def test_names_that_are_no_folder_are_refused(tmp_path, name):
    with pytest.raises(RunFolderError, match=rf"--name {re.escape(repr(name))}.*\._\+=@-"):
        make(tmp_path, name)
    assert os.listdir(tmp_path) == []


def test_an_output_folder_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "runs"
    with pytest.raises(RunFolderError, match=rf"^{out}/one: .*Not a directory.*--out DIR$"):
        make(out)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch, number):
    def refuse(path, data):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(run_folder, "write_atomic", refuse)
    with pytest.raises(StorageError, match="--out DIR"):
        make(tmp_path)
    assert os.listdir(tmp_path) == []


def test_run_json_changes_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = make(tmp_path)
    assert update_info(folder, status="finished", wall_s=3.5)["status"] == "finished"
    before = (folder / "run.json").read_bytes()

    def full(fd):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(StorageError, match=rf"No space left.*dystop resume {folder}$"):
        update_info(folder, status="failed")
    assert (folder / "run.json").read_bytes() == before
    assert not [p for p in os.listdir(folder) if "tmp" in p]


def test_records_are_appended_and_a_cut_line_is_left_out(tmp_path):
    folder = make(tmp_path)
    with RecordLog(folder) as log:
        for t in (1, 2, 3):
            log.append(record(t))
            assert open_run(folder).records[-1] == record(t)
    whole = (folder / "records.jsonl").read_bytes()
    for cut in range(1, 40):
        (folder / "records.jsonl").write_bytes(whole[:-cut])
        assert [r.round for r in open_run(folder).records] == [1, 2]
    with RecordLog(folder) as log:
        log.append(record(3))
    assert (folder / "records.jsonl").read_bytes() == whole


@pytest.mark.parametrize("keep", [0, 1, 3])
def test_reopening_cuts_what_came_after_the_checkpoint(tmp_path, keep):
    folder = make(tmp_path)
    with RecordLog(folder) as log:
        for t in range(1, 6):
            log.append(record(t))
    digest = run_folder.records_sha256(folder)
    with RecordLog(folder, keep=keep) as log:
        assert log.offset == (folder / "records.jsonl").stat().st_size
        for t in range(keep + 1, 6):
            log.append(record(t))
        log.sync()
    assert run_folder.records_sha256(folder) == digest


def test_records_that_end_before_the_checkpoint_are_refused(tmp_path):
    folder = make(tmp_path)
    with RecordLog(folder) as log:
        log.append(record(1))
    with pytest.raises(RunFolderError, match=r"ends at round 1\b.* round 4\b"):
        RecordLog(folder, keep=4)
    assert len(open_run(folder).records) == 1


def test_a_damaged_line_is_named(tmp_path):
    folder = make(tmp_path)
    lines = [record(1).to_json(), '{"round": 2}', record(3).to_json()]
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(RunFolderError, match=r"records\.jsonl.*line 2\b.*damaged"):
        open_run(folder)


def test_a_full_disk_takes_back_the_line(tmp_path, monkeypatch):
    folder = make(tmp_path)
    log = RecordLog(folder)
    log.append(record(1))
    real = os.pwrite

    def half(fd, data, offset):
        if offset > log.offset:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[:20], offset)

    monkeypatch.setattr(storage.os, "pwrite", half)
    with pytest.raises(StorageError, match=rf"No space left on device.*dystop resume {folder}$"):
        log.append(record(2))
    monkeypatch.undo()
    assert (folder / "records.jsonl").stat().st_size == log.offset
    log.append(record(2))
    log.close()
    assert [r.round for r in open_run(folder).records] == [1, 2]


def test_a_file_size_limit_is_a_storage_error(tmp_path):
    folder = make(tmp_path)
    code = """
import resource, sys
from pathlib import Path
from dystop.errors import StorageError
from dystop.folders.record_log import RecordLog
from dystop.record import from_json
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
log = RecordLog(Path(sys.argv[1]))
try:
    while True:
        log.append(from_json(sys.argv[2]))
except StorageError as error:
    print(error)
"""
    words = [sys.executable, "-c", code, str(folder), record(1).to_json()]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert len(open_run(folder).records) >= 1
    assert (folder / "records.jsonl").read_bytes().endswith(b"\n")


def test_a_failed_checkpoint_is_a_storage_error(tmp_path):
    class SafetensorError(Exception):
        pass

    with pytest.raises(StorageError, match="No space left"), run_folder.writing(tmp_path):
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    with pytest.raises(SafetensorError), run_folder.writing(tmp_path):
        raise SafetensorError("invalid header")


def test_one_writer_at_a_time(tmp_path):
    folder = make(tmp_path)
    second = pytest.raises(RunFolderError, match=f"process {os.getpid()} is writing")
    with RunLock(folder), second:
        RunLock(folder).__enter__()
    with RunLock(folder):
        pass


def test_the_lock_of_a_dead_process_is_free(tmp_path):
    folder = make(tmp_path)
    code = (
        "import os, sys; from pathlib import Path\n"
        "from dystop.folders.record_log import RunLock\n"
        "RunLock(Path(sys.argv[1])).__enter__(); print(os.getpid(), flush=True); sys.stdin.read()"
    )
    words = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        holder = other.stdout.readline().strip()
        with pytest.raises(RunFolderError, match=f"process {holder} is writing"):
            RunLock(folder).__enter__()
        other.kill()
    with RunLock(folder):
        pass


def refused(path):
    with pytest.raises(RunFolderError) as caught:
        open_run(path)
    return str(caught.value)


def test_what_is_no_run_folder_is_called_so(tmp_path, monkeypatch):
    make(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    misspelt = tmp_path / "runs" / "onee"
    assert refused(misspelt).startswith(f"{misspelt}: no such folder")
    assert "'one'?" in refused(misspelt)
    assert "'runs/one'?" in refused(Path("one"))
    for path in (tmp_path, Path("runs"), tmp_path / "runs" / "one" / "config.toml"):
        message = refused(path)
        assert message.startswith(f"{path}: not a run folder")
        for name in ("config.toml", "run.json", "fleet.json", "records.jsonl"):
            assert name in message
    assert refused(Path("runs")).endswith("such as runs/one")


def test_a_comparison_is_no_run(tmp_path):
    make(tmp_path)
    (tmp_path / "study.json").touch()
    message = refused(tmp_path)
    assert "comparison" in message
    assert f"dystop compare {tmp_path};" in message
    assert f"such as {tmp_path / 'one'}" in message


@pytest.mark.parametrize("name", ["config.toml", "run.json", "fleet.json"])
def test_a_half_written_folder_can_be_deleted(tmp_path, name):
    folder = make(tmp_path)
    (folder / name).unlink()
    message = refused(folder)
    assert message.startswith(f"{folder}: ")
    assert f"{name} missing" in message
    assert "Delete the folder" in message


@pytest.mark.parametrize("name", ["config.toml", "run.json", "fleet.json"])
def test_damaged_files_are_named(tmp_path, name):
    folder = make(tmp_path)
    (folder / name).write_text('{"status": ')
    message = refused(folder)
    assert name in message
    assert "damaged" in message


def test_missing_records_are_no_records(tmp_path):
    folder = make(tmp_path)
    (folder / "records.jsonl").unlink()
    assert open_run(folder).records == []
    (folder / "run.json").write_text(json.dumps([1]))
    assert f"{folder / 'run.json'}: " in refused(folder)
    assert "JSON object" in refused(folder)
