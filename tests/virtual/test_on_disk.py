"""The checker on a run folder that holds a virtual run in the format of real processes."""

import json
import shutil

import pytest

from dystop.errors import RunFolderError
from dystop.testbed.audit.check import audit_run, check_run
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import KEYS, MetaLine
from dystop.testbed.worker.checkpoint import CheckpointStore
from dystop.testbed.worker.history import HISTORY_FILE, EventLog
from virtual.build import play, random_case


@pytest.fixture(scope="module")
def cluster():
    return play(random_case(1, workers=4, rounds=12))


@pytest.fixture
def folder(cluster, tmp_path):
    ledger = SqliteLedger(tmp_path / "state.db")
    for table in KEYS:
        ledger.write(list(cluster.coordinator.disk.rows(table)))
    ledger.close()
    for process in cluster.nodes:
        home = tmp_path / "workers" / process.name
        log = EventLog(home / HISTORY_FILE)
        for line in process.log_lines:
            log.write(**line)
        log.close()
        CheckpointStore(home / "worker.safetensors").save(process.disk)
    return tmp_path


def test_a_correct_run_has_no_findings(folder):
    assert check_run(folder) == []


def test_a_forged_line_is_found(folder):
    with (folder / "workers" / "w01" / HISTORY_FILE).open("a") as file:
        used = {"kind": "used", "round": 3, "stage": 7, "node": 0, "version": 1, "digest": "no"}
        file.write(json.dumps(used) + "\n")
    assert {finding.rule for finding in check_run(folder)} == {"I4"}


def test_a_lost_event_log_is_found(folder):
    (folder / "workers" / "w02" / HISTORY_FILE).unlink()
    (missing,) = check_run(folder)
    assert (missing.rule, "w02" in missing.text) == ("event log", True)


def test_a_run_without_any_event_log_breaks_no_guarantee(folder):
    shutil.rmtree(folder / "workers")
    audit = audit_run(folder)
    assert audit.findings == []
    assert [name in str(audit.missing) for name in ("w00", "w01", "w02")] == [True] * 3


def test_a_queue_bound_that_was_changed_is_found(folder):
    ledger = SqliteLedger(folder / "state.db")
    ledger.write([MetaLine("queue_bound", "0.5")])
    ledger.close()
    assert {finding.rule for finding in check_run(folder)} == {"I5"}


def test_secrets_in_logs_are_found(folder):
    (folder / "logs").mkdir()
    (folder / "logs" / "w00.log").write_text("token abc-canary")
    found = check_run(folder, ["abc-canary"])
    assert [finding.rule for finding in found] == ["I9"]
    assert "abc-canary" not in str(found[0])


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(RunFolderError, match=r"state\.db"):
        check_run(tmp_path)
