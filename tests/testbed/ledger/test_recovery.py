"""Recovery of a damaged ledger from its newest good backup."""

import os
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.config import read_experiment
from dystop.errors import ConfigError, RunFolderError
from dystop.folders.run_folder import open_run
from dystop.format import FORMAT
from dystop.testbed.audit.check import check_run
from dystop.testbed.ledger import sqlite
from dystop.testbed.ledger.recovery import EPOCH_GAP, recover
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import MetaLine, RoundLine, restore
from dystop.testbed.setup.launch import make_folder
from dystop.testbed.setup.operations import restore_ledger
from dystop.testbed.setup.threads import run_threads
from support.testbed.ignored_progress import IgnoredProgress

ROUNDS = 40
SMALL = (
    "fleet.workers=3", "data.name=synthetic", "data.train_limit=300", "data.test_limit=50",
    "model.name=softmax", "world.range_m=200", "testbed.transport=memory", "testbed.links=free",
    "testbed.time_scale=0.2", "testbed.observer=false", "testbed.timeouts.report_s=0.2",
    "testbed.timeouts.heartbeat_s=0.2", "testbed.timeouts.round_s=1", f"stop.rounds={ROUNDS}",
)  # fmt: skip


class InterruptAtRound(IgnoredProgress):
    """A progress reporter that interrupts the run at a round."""

    def __init__(self, until=None):
        self.until = until

    def on_record(self, record):
        if record.round == self.until:
            raise KeyboardInterrupt


def with_backups(folder, rounds):
    """Make a ledger with a backup after each of these rounds."""
    with closing(SqliteLedger(folder / "state.db")) as ledger:
        for k in rounds:
            ledger.write([MetaLine("epoch", "4"), RoundLine(k, 4, 0.0, b"plan", 1.0, k, b"books")])
            ledger.backup(k)
    return folder / "state.db"


def call(*words):
    return CliRunner().invoke(app, list(map(str, words)))


def test_a_run_resumes_after_its_ledger_was_damaged(tmp_path, monkeypatch):
    """The backup may be older than the last round of the workers."""
    monkeypatch.setattr(sqlite, "BACKUP_ROUNDS", 4)
    folder, _ = make_folder(read_experiment(None, list(SMALL)), tmp_path, "run")
    with pytest.raises(KeyboardInterrupt):
        run_threads(folder, InterruptAtRound(until=6))
    oldest, *others = sorted((folder / "backups").glob("*.db"))
    for backup in others:
        backup.write_bytes(b"rotten")
    ledger = folder / "state.db"
    ledger.write_bytes(ledger.read_bytes()[:10_000])
    with pytest.raises(RunFolderError, match=rf"{oldest.name}.*dystop restore {folder}"):
        run_threads(folder, InterruptAtRound())

    done = call("restore", folder)
    assert done.exit_code == 0, done.output
    assert f"after round {int(oldest.stem[-8:])}" in done.stdout
    assert f"dystop testbed --resume {folder}" in done.stdout
    assert (folder / "state.damaged").stat().st_size == 10_000
    run_threads(folder, InterruptAtRound())
    run = open_run(folder)
    assert run.info["status"] == "finished"
    assert [record.round for record in run.records] == list(range(1, ROUNDS + 1))
    assert {finding.rule for finding in check_run(folder)} == {
        "I3"
    }  # the rounds that the backup does not contain


def test_workers_obey_a_restored_ledger(tmp_path):
    """The workers may have obeyed higher epochs since the backup."""
    path = with_backups(tmp_path, [1])
    for _ in range(3):
        with closing(SqliteLedger(path)) as ledger:
            last = restore(ledger).epoch
    path.unlink()
    recover(path)
    with closing(SqliteLedger(path)) as ledger:
        assert restore(ledger).epoch == 4 + EPOCH_GAP + 1 > last


def test_a_second_restore_from_the_same_backup_outranks_the_first(tmp_path):
    path = with_backups(tmp_path, [1])
    seen = []
    for _ in range(3):
        path.unlink()
        recover(path)
        for _ in range(5):  # epochs that workers may have obeyed
            with closing(SqliteLedger(path)) as ledger:
                seen.append(restore(ledger).epoch)
                assert ledger.epoch() == seen[-1]
    assert seen == sorted(set(seen))


def test_a_whole_ledger_is_left_alone(tmp_path):
    path = with_backups(tmp_path, [1, 2])
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"not damaged.*dystop testbed --resume"):
        restore_ledger(tmp_path)
    assert path.read_bytes() == before


def test_the_ledger_of_a_running_coordinator_is_not_restored(tmp_path):
    path = with_backups(tmp_path, [1])
    with (
        closing(SqliteLedger(path)),
        pytest.raises(RunFolderError, match=rf"process {os.getpid()}"),
    ):
        restore_ledger(tmp_path)


def test_without_a_backup_nothing_is_touched(tmp_path):
    with pytest.raises(RunFolderError, match=r"state\.db.*no backup"):
        restore_ledger(tmp_path)
    path = with_backups(tmp_path, [1])
    for backup in (tmp_path / "backups").iterdir():
        backup.unlink()
    path.write_bytes(b"rubbish")
    with pytest.raises(RunFolderError, match="no good backup"):
        restore_ledger(tmp_path)
    assert path.read_bytes() == b"rubbish"
    assert not Path(f"{path.with_suffix('.damaged')}").exists()


def test_a_ledger_of_a_newer_format_is_not_restored(tmp_path):
    path = with_backups(tmp_path, [1])
    with closing(SqliteLedger(path)) as ledger:
        ledger._base.execute("PRAGMA user_version = 99")
    with pytest.raises(RunFolderError, match=rf"format is 99.*uses {FORMAT}"):
        restore_ledger(tmp_path)


def test_a_simulated_run_has_no_ledger(tmp_path):
    done = call("restore", tmp_path)
    assert done.exit_code == 2
    assert str(tmp_path) in done.stderr
