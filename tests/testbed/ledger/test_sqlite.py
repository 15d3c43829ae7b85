"""The ledger: commits survive any crash, and damage is always detected."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dystop.errors import RunFolderError, StorageError
from dystop.format import FORMAT
from dystop.mechanisms import MECHANISMS
from dystop.rng import stream
from dystop.testbed.ledger import sqlite as sqlite_ledger
from dystop.testbed.ledger.recovery import recover
from dystop.testbed.ledger.sqlite import SqliteLedger, newest_backup
from dystop.testbed.ledger.tables import (
    KEYS,
    KeptLine,
    MetaLine,
    OrderLine,
    ReportLine,
    RoundLine,
    read_blob,
    restore,
    write_blob,
)
from support.strategies import random_view, same
from support.testbed.coordinator_fixtures import CoordinatorHarness, rows, setup_for
from support.testbed.memory_ledger import MemoryLedger


def lines(k):
    return [
        ReportLine(k, k, 1, "mixed", 0.5 * k, 0, "{}"),
        KeptLine("state", write_blob({"seq": k, "x": np.arange(k)})),
        OrderLine(k, 1, 1, None, "[]", "text"),
    ]


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_both_ledgers_keep_the_same(kind, tmp_path):
    ledger = MemoryLedger() if kind == "memory" else SqliteLedger(tmp_path / "state.db")
    for k in (1, 2, 3):
        ledger.write(lines(k))
    ledger.write([OrderLine(2, 1, 1, "DONE", "[]", None), KeptLine("seen:1", b"abc")])
    ledger.write([KeptLine("seen:1", None)])
    assert [r.seq for r in ledger.rows("reports")] == [1, 2, 3]
    assert [o.outcome for o in ledger.rows("orders")] == [None, "DONE", None]
    (state,) = ledger.rows("kept")
    assert read_blob(state.value)["x"].tolist() == [0, 1, 2]
    ledger.close()


def test_blobs_round_trip():
    for name, kind in MECHANISMS.items():
        view = random_view(5, 6, server=kind().capabilities().server)
        mechanism = kind()
        plan, memory = mechanism.plan(mechanism.init(view.fleet), view)
        kept = {"plan": plan, "view": view, "memory": memory}
        assert same(read_blob(write_blob(kept)), kept), name


def test_epochs_rise_with_every_start(tmp_path):
    for epoch in (1, 2, 3):
        ledger = SqliteLedger(tmp_path / "state.db")
        assert restore(ledger).epoch == epoch
        ledger.close()


def test_a_run_resumes_from_the_file(tmp_path):
    harness = CoordinatorHarness(setup_for("dystop", rounds=8), SqliteLedger(tmp_path / "state.db"))
    harness.join_all()
    for _ in range(4):
        harness.run(0.7)
        harness.ledger.close()
        harness.ledger = SqliteLedger(tmp_path / "state.db")
        harness.restart()
    harness.run(100)
    assert harness.finished
    assert [r.round for r in rows(harness, "rounds")] == list(range(1, 9))
    assert {o.outcome for o in rows(harness, "orders")} == {"DONE"}
    harness.ledger.close()


def test_a_second_coordinator_is_refused(tmp_path):
    ledger = SqliteLedger(tmp_path / "state.db")
    with pytest.raises(RunFolderError, match="another coordinator"):
        SqliteLedger(tmp_path / "state.db")
    ledger.close()
    SqliteLedger(tmp_path / "state.db").close()


def test_killed_while_it_commits(tmp_path):
    """Every confirmed commit is in the file, and each commit is whole or absent."""
    path = tmp_path / "state.db"
    confirmed = 0
    for k in range(3):
        child = subprocess.Popen(
            [
                sys.executable,
                str(Path(__file__).parents[2] / "support" / "testbed" / "ledger_child.py"),
                str(path),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        for _ in range(20 + 13 * k):
            confirmed = int(child.stdout.readline())
        child.kill()
        rest = child.stdout.read().split()
        child.stdout.close()
        child.wait()
        confirmed = int(rest[-1]) if rest else confirmed
        ledger = SqliteLedger(path)
        kept = [r.seq for r in ledger.rows("reports")]
        assert kept == list(range(1, len(kept) + 1))
        assert len(kept) >= confirmed
        assert next(iter(ledger.rows("kept"))).value == b"%d" % len(kept)
        ledger.close()


def test_disk_full_keeps_what_was_there(tmp_path):
    ledger = SqliteLedger(tmp_path / "state.db")
    ledger.write(lines(1))
    pages = ledger._base.execute("PRAGMA page_count").fetchone()[0]
    ledger._base.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StorageError, match="full"):
        ledger.write([KeptLine("large", bytes(1 << 20)), MetaLine("a", "b")])
    assert [m.key for m in ledger.rows("meta")] == []
    ledger._base.execute("PRAGMA max_page_count = 1000000")
    ledger.write([KeptLine("large", bytes(1 << 20)), MetaLine("a", "b")])
    assert [m.key for m in ledger.rows("meta")] == ["a"]
    ledger.close()


def filled(path, rounds=3):
    ledger = SqliteLedger(path)
    for k in range(1, rounds + 1):
        ledger.write([*lines(k), RoundLine(k, 1, 0.0, b"Plan", 1.0, k, b"Books")])
    ledger.backup(rounds)
    ledger.close()
    return path


def content(path):
    ledger = SqliteLedger(path)
    found = {table: list(ledger.rows(table)) for table in KEYS}
    ledger.close()
    return found


def test_a_flipped_byte_is_found_or_harmless_d2(tmp_path):
    path = filled(tmp_path / "state.db")
    whole, want = path.read_bytes(), content(path)
    rng, refused = stream(1, "flip"), 0
    for at in rng.integers(0, len(whole), 120).tolist():
        spoilt = bytearray(whole)
        spoilt[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(spoilt))
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        try:
            found = content(path)
        except RunFolderError as error:
            refused += "state-00000003.db" in str(error)
        else:
            assert found == want  # nothing is written there
    assert refused > 0


def test_every_flip_in_a_value_is_found(tmp_path):
    path = filled(tmp_path / "state.db")
    whole = path.read_bytes()
    for value in (b"Books", b"Plan", b"mixed", b"text"):
        at = whole.rindex(value)
        path.write_bytes(whole[:at] + bytes([value[0] ^ 1]) + whole[at + 1 :])
        with pytest.raises(RunFolderError, match="changed since it was written"):
            SqliteLedger(path)


@pytest.mark.parametrize("left", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_refused_and_can_be_restored_d2(tmp_path, left):
    path = filled(tmp_path / "state.db")
    whole, want = path.read_bytes(), content(path)
    path.write_bytes(whole[: int(left * len(whole))])
    with pytest.raises(RunFolderError, match=r"state-00000003\.db"):
        SqliteLedger(path)
    assert recover(path) == 3
    assert content(path) == want


def test_a_damaged_backup_is_skipped(tmp_path):
    path = filled(tmp_path / "state.db")
    newest = newest_backup(path)
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    assert newest_backup(path) is None
    path.write_bytes(b"damaged")
    with pytest.raises(RunFolderError, match="no good backup"):
        recover(path)


def test_backups_are_automatic_and_few(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_ledger, "BACKUP_ROUNDS", 2)
    ledger = SqliteLedger(tmp_path / "state.db")
    for k in range(1, 13):
        ledger.write([RoundLine(k, 1, 0.0, b"p", 1.0, k, b"b")])
    names = sorted(p.name for p in (tmp_path / "backups").glob("*.db"))
    assert names == [f"state-{k:08d}.db" for k in (8, 10, 12)]
    ledger.close()


def test_control_states_of_large_fleets_are_thinned_out(tmp_path):
    ledger = SqliteLedger(tmp_path / "state.db")
    for k in range(99, 103):
        ledger.write([RoundLine(k, 1, 0.0, b"p", 1.0, k, bytes(1 << 17))])
    assert [r.books is None for r in ledger.rows("rounds")] == [True, False, True, False]
    ledger.close()
    SqliteLedger(tmp_path / "state.db").close()


@pytest.mark.parametrize("number", [2, 99])
def test_another_format_is_refused(tmp_path, number):
    ledger = SqliteLedger(tmp_path / "state.db")
    ledger._base.execute(f"PRAGMA user_version = {number}")
    ledger.close()
    with pytest.raises(RunFolderError, match=f"format is {number}, .* uses {FORMAT}; use the"):
        SqliteLedger(tmp_path / "state.db")


def test_only_the_owner_can_read_the_ledger(tmp_path):
    before = os.umask(0o022)
    try:
        path = filled(tmp_path / "state.db")
        path.chmod(0o644)
        ledger = SqliteLedger(path)
        ledger.write(lines(9))
        files = [p for p in tmp_path.rglob("state*") if p.is_file() and p.suffix != ".lock"]
        assert {p.name for p in files} >= {"state.db", "state.db-wal", "state.head"}
        assert {p.name: oct(p.stat().st_mode & 0o077) for p in files} == {
            p.name: oct(0) for p in files
        }
        ledger.close()
    finally:
        os.umask(before)


@pytest.mark.parametrize("name", ["state.db", "state.db-wal", "state.db-shm", "state.head"])
def test_no_link_beside_the_ledger_is_followed(tmp_path, name):
    """Neither the content nor the mode of what it leads to changes."""
    path, mine = filled(tmp_path / "run" / "state.db"), tmp_path / "mine"
    (path.parent / name).unlink(missing_ok=True)
    mine.write_bytes(b"mine")
    mine.chmod(0o644)
    (path.parent / name).symlink_to(mine)
    with pytest.raises(RunFolderError, match=f"{name}: a link"):
        SqliteLedger(path)
    assert (mine.read_bytes(), mine.stat().st_mode & 0o777) == (b"mine", 0o644)


def test_no_pipe_beside_the_ledger_or_a_backup_makes_anybody_wait(tmp_path):
    path = filled(tmp_path / "state.db")
    for name in ("backups/state-00000003.db.sha256", "state.head", "state.lock"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
    assert newest_backup(path) is None
    with pytest.raises(OSError, match=r"state\.lock"):
        SqliteLedger(path)
    (tmp_path / "state.lock").unlink()
    with pytest.raises(RunFolderError, match=r"state\.head: a link or a pipe"):
        SqliteLedger(path)


def test_a_failed_backup_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite_ledger, "BACKUP_ROUNDS", 2)
    ledger = SqliteLedger(tmp_path / "state.db")
    said = []
    ledger.on_backup_failed = said.append
    (tmp_path / "backups").write_text("in the way")
    for k in range(1, 5):
        ledger.write([RoundLine(k, 1, 0.0, b"p", 1.0, k, b"b")])
    ledger.close()
    backups = [text for text in said if "no backup" in text]
    assert [("round 2" in text, "round 4" in text) for text in backups] == [
        (True, False),
        (False, True),
    ]


def test_backup_and_recovery_flush_the_folders_that_they_change(tmp_path, monkeypatch):
    """After a power cut, a name that was never flushed may be gone."""
    path, changed = filled(tmp_path / "state.db"), set()
    replace, fsync, mkdir = os.replace, os.fsync, Path.mkdir

    def noting_replace(source, target):
        replace(source, target)
        changed.add(Path(target).parent)

    def noting_mkdir(folder, *words, **named):
        if not folder.exists():
            changed.add(folder.parent)
        mkdir(folder, *words, **named)

    def noting_fsync(handle):
        fsync(handle)
        changed.discard(Path(os.readlink(f"/proc/self/fd/{handle}")))

    shutil.rmtree(tmp_path / "backups")
    monkeypatch.setattr(os, "replace", noting_replace)
    monkeypatch.setattr(os, "fsync", noting_fsync)
    monkeypatch.setattr(Path, "mkdir", noting_mkdir)
    ledger = SqliteLedger(path)
    ledger.backup(3)
    ledger.close()
    assert changed == set()
    path.write_bytes(b"damaged")
    assert recover(path) == 3
    assert changed == set()
