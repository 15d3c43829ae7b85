"""Commits that were confirmed and are missing: the ledger refuses, and names the loss.

SQLite forgets the end of a damaged write-ahead log without an error, and all of a deleted one.
"""

import logging
import shutil
import sqlite3
from contextlib import closing, suppress

import pytest

from dystop.errors import RunFolderError, StorageError
from dystop.rng import stream
from dystop.testbed.launch import failpoints
from dystop.testbed.ledger.recovery import EPOCH_GAP
from dystop.testbed.ledger.sqlite import DamagedLedger, SqliteLedger
from dystop.testbed.ledger.tables import (
    KEYS,
    KeptLine,
    MetaLine,
    OrderLine,
    ReportLine,
    RoundLine,
)
from dystop.testbed.setup.operations import restore_ledger

ROUNDS = 20


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm("")


def commit(ledger, k):
    """Plan round k in one transaction and close it in another."""
    ledger.write([RoundLine(k, 1, k - 0.5, b"plan"), MetaLine("at_s", str(k))])
    ledger.write(
        [
            ReportLine(k, k, 1, "mixed", 0.5 * k, 0, "{}" * 20),
            RoundLine(k, 1, k - 0.5, b"plan", float(k), k, b"books" * 40),
            KeptLine("state", b"%d" % k * 500),
            KeptLine(f"seen:{k - 1}", None),
            KeptLine(f"seen:{k}", b"seen"),
        ]
    )


def copy_of(folder, other):
    """Copy the files as a killed process leaves them: the write-ahead log is not emptied."""
    other.mkdir()
    for file in folder.glob("state.*"):
        shutil.copy(file, other / file.name)
    return other


def killed(tmp_path, rounds=ROUNDS, backup=0, emptied=0):
    """Return the folder of a coordinator that was killed after so many rounds."""
    live = tmp_path / f"live-{rounds}"
    live.mkdir()
    with closing(SqliteLedger(live / "state.db")) as ledger:
        ledger.write([MetaLine("epoch", "1")])
        for k in range(1, rounds + 1):
            commit(ledger, k)
            if k == backup:
                ledger.backup(k)
            if k == emptied:
                ledger._base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        folder = copy_of(live, tmp_path / f"killed-{rounds}")
    if backup:
        shutil.copytree(live / "backups", folder / "backups")
    return folder


def content(folder):
    with closing(SqliteLedger(folder / "state.db")) as ledger:
        return {table: list(ledger.rows(table)) for table in KEYS}


def assert_nothing_is_lost_silently(folder, want):
    """Return whether the ledger was refused; otherwise it must hold everything."""
    try:
        found = content(folder)
    except DamagedLedger:
        return True
    assert found == want
    return False


def test_a_killed_coordinator_loses_nothing(tmp_path):
    folder = killed(tmp_path)
    assert len(content(folder)["rounds"]) == ROUNDS
    assert len(content(folder)["rounds"]) == ROUNDS


def test_a_deleted_log_is_noticed_and_the_loss_is_named(tmp_path):
    folder = killed(tmp_path, emptied=8)
    (folder / "state.db-wal").rename(tmp_path / "wal")
    with pytest.raises(
        RunFolderError, match=r"24 commits, rounds 9 to 20, are missing.*dystop restore"
    ) as refused:
        SqliteLedger(folder / "state.db")
    assert refused.value.exit_code == 2
    (tmp_path / "wal").rename(folder / "state.db-wal")  # it was only mislaid
    assert len(content(folder)["rounds"]) == ROUNDS


def test_flipped_bits_in_the_log_never_lose_a_commit_silently(tmp_path):
    folder = killed(tmp_path)
    log, draw, refused = (folder / "state.db-wal").read_bytes(), stream(1, "flip"), 0
    want = content(copy_of(folder, tmp_path / "whole"))
    for k, at in enumerate(draw.integers(0, len(log), 60).tolist()):
        spoilt = bytearray(log)
        spoilt[at] ^= 1 << int(draw.integers(8))
        other = copy_of(folder, tmp_path / f"flip-{k}")
        (other / "state.db-wal").write_bytes(spoilt)
        refused += assert_nothing_is_lost_silently(other, want)
    assert refused > 40


def test_a_truncated_log_never_loses_a_commit_silently(tmp_path):
    folder = killed(tmp_path)
    log, draw = (folder / "state.db-wal").read_bytes(), stream(2, "cut")
    want = content(copy_of(folder, tmp_path / "whole"))
    for k, length in enumerate(draw.integers(0, len(log), 15).tolist()):
        other = copy_of(folder, tmp_path / f"cut-{k}")
        (other / "state.db-wal").write_bytes(log[:length])
        assert assert_nothing_is_lost_silently(other, want)


@pytest.mark.parametrize("emptied", [0, 6])
@pytest.mark.parametrize("swapped", ["state.db", "state.db-wal", "both"])
def test_files_of_an_older_copy_are_noticed(tmp_path, swapped, emptied):
    folder = killed(tmp_path, emptied=12 if emptied else 0)
    older = killed(tmp_path, rounds=10, emptied=emptied)
    want = content(copy_of(folder, tmp_path / "whole"))
    for name in ("state.db", "state.db-wal") if swapped == "both" else (swapped,):
        shutil.copy(older / name, folder / name)
    refused = assert_nothing_is_lost_silently(folder, want)
    assert refused or swapped == "state.db"  # the newer log may contain every page


def test_one_row_from_an_older_page_is_noticed(tmp_path):
    """A page that the disk did not write holds older rows, each with a correct checksum."""
    folder = killed(tmp_path)
    content(folder)  # empties the log
    with closing(sqlite3.connect(folder / "state.db")) as base:
        old = base.execute("SELECT * FROM kept WHERE key = 'state'").fetchone()
    with closing(SqliteLedger(folder / "state.db")) as ledger:
        commit(ledger, ROUNDS + 1)
    with closing(sqlite3.connect(folder / "state.db")) as base:
        base.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", old)
        base.commit()
    with pytest.raises(RunFolderError, match="rows"):
        SqliteLedger(folder / "state.db")


def test_the_chain_fits_any_sequence_of_writes(tmp_path):
    """Rows are new, replaced or deleted, in any order, and some transactions fail."""
    draw = stream(3, "writes")
    for _ in range(4):
        with closing(SqliteLedger(tmp_path / "state.db")) as ledger:
            for k in range(25):
                lines = [_any_line(draw) for _ in range(int(draw.integers(1, 9)))]
                if k % 5 == 4:
                    lines.append(MetaLine("x", object()))  # which SQLite cannot store
                with suppress(StorageError):
                    ledger.write(lines)
    assert content(tmp_path)["orders"]


def _any_line(draw):
    k, value = int(draw.integers(6)), int(draw.integers(1000))
    return [
        OrderLine(k, value % 3, value, None, "[]", None),
        ReportLine(k, k, 1, "mixed", float(value), 0, ""),
        RoundLine(k, value, 0.0, b"plan", 1.0, k, bytes(value % 2 << 17)),
        KeptLine(f"k{k}", b"%d" % value if value % 3 else None),
        MetaLine(f"m{k}", str(value)),
    ][int(draw.integers(5))]


def test_a_crash_between_commit_and_head_is_normal(tmp_path):
    with closing(SqliteLedger(tmp_path / "state.db")) as ledger:
        commit(ledger, 1)
        failpoints.arm("coordinator.before_head:error")
        with pytest.raises(failpoints.FailpointError):
            commit(ledger, 2)
        folder = copy_of(tmp_path, tmp_path / "killed")
    assert content(folder)["rounds"][-1].closed_s is None  # round 2 was planned
    (folder / "state.db-wal").unlink(missing_ok=True)
    content(folder)


def test_a_head_that_a_power_cut_left_behind_is_normal(tmp_path):
    older, folder = killed(tmp_path, rounds=3), killed(tmp_path)
    shutil.copy(older / "state.head", folder / "state.head")
    assert len(content(folder)["rounds"]) == ROUNDS
    (folder / "state.head").write_bytes(b"")
    assert len(content(folder)["rounds"]) == ROUNDS


@pytest.mark.parametrize("spoilt", [0, 40, 512, 552])
def test_a_damaged_head_still_guards(tmp_path, spoilt):
    folder = killed(tmp_path)
    head = bytearray((folder / "state.head").read_bytes())
    head[spoilt] ^= 1
    (folder / "state.head").write_bytes(head)
    assert len(content(copy_of(folder, tmp_path / "whole"))["rounds"]) == ROUNDS
    (folder / "state.db-wal").unlink()
    with pytest.raises(RunFolderError, match="are missing"):
        SqliteLedger(folder / "state.db")


def test_a_missing_head_is_written_again_with_a_warning(tmp_path, caplog):
    folder = killed(tmp_path)
    (folder / "state.head").unlink()
    with caplog.at_level(logging.WARNING):
        content(folder)
    assert "state.head" in caplog.text
    assert (folder / "state.head").is_file()


def test_the_head_of_another_run_is_refused(tmp_path):
    folder, other = killed(tmp_path), killed(tmp_path, rounds=2)
    with closing(SqliteLedger(other / "state.db")) as ledger:
        commit(ledger, 7)
    shutil.copy(other / "state.head", folder / "state.head")
    with pytest.raises(RunFolderError, match=r"state\.head"):
        SqliteLedger(folder / "state.db")


def test_restore_keeps_what_is_newer_than_the_backup(tmp_path):
    folder = killed(tmp_path, backup=4, emptied=9)
    (folder / "state.db-wal").unlink()
    assert restore_ledger(folder) == 9
    with closing(SqliteLedger(folder / "state.db")) as ledger:
        assert ledger.epoch() == 1 + EPOCH_GAP
        commit(ledger, 10)
    assert [r.round for r in content(folder)["rounds"]] == list(range(1, 11))


def test_restore_takes_the_backup_if_it_is_newer(tmp_path):
    folder = killed(tmp_path, backup=15, emptied=9)
    log = folder / "state.db-wal"
    log.unlink()
    assert restore_ledger(folder) == 15
    assert len(content(folder)["rounds"]) == 15


def test_restore_without_a_backup_accepts_what_is_left(tmp_path):
    folder = killed(tmp_path, emptied=9)
    (folder / "state.db-wal").unlink()
    assert restore_ledger(folder) == 9


def test_a_copy_by_the_backup_of_sqlite_is_whole(tmp_path):
    with closing(SqliteLedger(tmp_path / "state.db")) as ledger:
        commit(ledger, 1)
        (tmp_path / "copy").mkdir()
        with (
            closing(sqlite3.connect(tmp_path / "state.db")) as base,
            closing(sqlite3.connect(tmp_path / "copy" / "state.db")) as copy,
        ):
            base.backup(copy)
        commit(ledger, 2)
    assert [r.round for r in content(tmp_path / "copy")["rounds"]] == [1]
