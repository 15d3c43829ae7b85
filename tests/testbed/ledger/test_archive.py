"""The archive: closed rounds leave the ledger, the audit still sees them, and no kill loses one."""

import os
import shutil
import zlib
from contextlib import closing

import numpy as np
import pytest

from dystop.errors import RunFolderError
from dystop.testbed.audit.check import check_facts
from dystop.testbed.audit.facts import facts_of
from dystop.testbed.launch import failpoints
from dystop.testbed.ledger import commits, sqlite
from dystop.testbed.ledger.archive import decode, encode
from dystop.testbed.ledger.recovery import recover
from dystop.testbed.ledger.sqlite import DamagedLedger, SqliteLedger
from dystop.testbed.ledger.steps import Closed, LateReport, Planned, RoundFacts, StateFacts
from dystop.testbed.ledger.tables import KEYS, restore
from support.testbed.coordinator_fixtures import CoordinatorHarness, setup_for
from virtual.build import cluster_of, findings_of, play, random_case

SITES = ("during_archive", "after_archive", "during_backup", "before_head", "after_close")


class Died(BaseException):
    """Stands for the end of the process."""


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.arm("")


@pytest.fixture(scope="module")
def cluster():
    """A run with crashes, cuts and late reports."""
    return play(random_case(15, workers=4, rounds=30))


def copied(cluster, path):
    """Return a ledger in a file with all rows of a run, and nothing archived."""
    ledger = SqliteLedger(path)
    for table in KEYS:
        ledger.write(list(cluster.coordinator.disk.rows(table)))
    return ledger


def seen(ledger):
    """Return what the audit sees of a ledger."""
    facts = facts_of(ledger.rows, {}, {}, ledger.archived())
    return facts.planned, sorted(facts.outcomes), facts.steps, facts.unfinished, facts.workers


def count(ledger, table):
    return len(list(ledger.rows(table)))


@pytest.mark.parametrize("through", [1, 7, 29])
def test_archiving_changes_nothing_that_the_audit_or_a_restart_sees(cluster, tmp_path, through):
    with closing(copied(cluster, tmp_path / "state.db")) as ledger:
        want, resumed = seen(ledger), restore(ledger)
        assert any(isinstance(step, LateReport) for step in want[2])
        ledger.archive(through)
        assert seen(ledger) == want
        assert [line.round for line in ledger.rows("rounds")] == list(range(through + 1, 31))
    with closing(SqliteLedger(tmp_path / "state.db")) as ledger:
        assert seen(ledger) == want
        again = restore(ledger)
        assert {**vars(again), "epoch": 0} == {**vars(resumed), "epoch": 0}


@pytest.mark.parametrize("seed", range(4))
def test_a_run_with_faults_archives_as_it_goes(tmp_path, monkeypatch, seed):
    """Late reports for archived rounds count, and crashed coordinators resume."""
    monkeypatch.setattr(sqlite, "BACKUP_ROUNDS", 3)
    case = random_case(seed, workers=4, rounds=30)
    whole, pruned = play(case), cluster_of(case)
    pruned.coordinator.disk = ledger = SqliteLedger(tmp_path / "state.db")
    ledger.on_backup_failed = pytest.fail
    pruned.run()
    assert findings_of(whole) == []
    facts = facts_of(whole.coordinator.disk.rows, {}, {})
    want = facts.planned, sorted(facts.outcomes), facts.steps, facts.unfinished, facts.workers
    assert seen(ledger) == want
    assert count(ledger, "rounds") <= 4
    assert count(ledger, "records") <= 4
    ledger.close()


def test_a_kill_at_any_moment_of_archiving_loses_nothing(cluster, tmp_path, monkeypatch):
    """Copies of the folder, taken around every system call and statement, hold the same facts."""
    live, copies = tmp_path / "live", []

    def snapshot(*_):
        copies.append(tmp_path / f"copy-{len(copies)}")
        shutil.copytree(live, copies[-1])

    def around(call):
        def wrapped(*words, **named):
            snapshot()
            result = call(*words, **named)
            snapshot()
            return result

        return wrapped

    live.mkdir()
    with closing(copied(cluster, live / "state.db")) as ledger:
        want = seen(ledger)
        ledger.archive(9)
        with monkeypatch.context() as patched:
            for name in ("pwrite", "ftruncate", "fsync"):
                patched.setattr(os, name, around(getattr(os, name)))
            patched.setattr(sqlite, "reach", snapshot)
            ledger._base.set_trace_callback(snapshot)
            ledger.archive(19)
            ledger._base.set_trace_callback(None)
        assert seen(ledger) == want
    assert len(copies) > 20
    left = set()
    for copy in copies:
        with closing(SqliteLedger(copy / "state.db")) as ledger:
            assert seen(ledger) == want
            left.add(count(ledger, "rounds"))
            ledger.archive(24)  # the next one continues
            assert seen(ledger) == want
    assert left == {21, 11}


@pytest.mark.parametrize("site", SITES)
def test_a_coordinator_that_dies_while_it_archives_resumes(tmp_path, monkeypatch, site):
    monkeypatch.setattr(sqlite, "BACKUP_ROUNDS", 4)

    def die(name, point):
        raise Died

    monkeypatch.setattr(failpoints, "_act", die)
    path, died = tmp_path / "state.db", 0
    harness = CoordinatorHarness(setup_for("dystop", 4, 20), SqliteLedger(path))
    harness.ledger.on_backup_failed = pytest.fail
    harness.join_all()
    monkeypatch.setattr(sqlite, "reach", lambda name: failpoints.reach(name))
    for n in (1, 2, 3):
        failpoints.arm(f"coordinator.{site}:crash@{n}")
        try:
            harness.run(30.0)
        except Died:
            died += 1
        failpoints.arm("")
        harness.ledger.close()
        harness.ledger = SqliteLedger(path)
        harness.ledger.on_backup_failed = pytest.fail
        harness.restart()
    harness.run(300.0)
    assert died == (0 if site == "after_close" else 3)  # that one is the process's
    assert harness.finished
    facts = facts_of(harness.ledger.rows, {}, {}, harness.ledger.archived())
    assert [plan.round for plan in facts.planned] == list(range(1, 21))
    assert check_facts(facts) == []
    assert sorted({record.round for record in harness.records}) == list(range(1, 21))
    harness.ledger.close()


def test_a_damaged_piece_is_read_from_its_copy_and_a_lost_one_is_named(cluster, tmp_path):
    path = tmp_path / "state.db"
    with closing(copied(cluster, path)) as ledger:
        want = seen(ledger)
        ledger.archive(9)
        ledger.archive(19)
    (main, copy) = tmp_path / "state.archive", tmp_path / "backups" / "state.archive"
    assert main.read_bytes() == copy.read_bytes()
    whole = main.read_bytes()
    for damaged in (whole[:-1] + b"x", whole[:5], b""):
        main.write_bytes(damaged)
        with closing(SqliteLedger(path)) as ledger:
            assert seen(ledger) == want
    main.unlink()
    copy.write_bytes(whole[:-9])
    with closing(SqliteLedger(path)) as ledger:
        with pytest.raises(RunFolderError, match=r"state\.archive.*rounds 10 to 19"):
            ledger.archived()
        assert restore(ledger).at_s > 0  # the run can go on
        main.write_bytes(whole)
        ledger.archive(24)
        assert seen(ledger) == want


def test_a_ledger_from_a_backup_knows_its_archive(cluster, tmp_path):
    path = tmp_path / "state.db"
    with closing(copied(cluster, path)) as ledger:
        want = seen(ledger)
        ledger.archive(9)
        ledger.backup(29)
        ledger.archive(19)
    path.write_bytes(b"damaged")
    recover(path)
    with closing(SqliteLedger(path)) as ledger:
        assert seen(ledger) == want
        ledger.archive(14)
        assert seen(ledger) == want


def test_commits_that_are_dropped_are_not_missed_but_new_ones_are(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(commits, "COMMITS_KEPT", 3)
    live, killed = tmp_path / "live", tmp_path / "killed"
    live.mkdir()
    with closing(copied(cluster, live / "state.db")) as ledger:
        ledger.archive(9)
        restore(ledger)
        ledger.archive(19)
        assert ledger._base.execute("SELECT count(*) FROM commits").fetchone()[0] == 5
        ledger._base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        restore(ledger)
        shutil.copytree(live, killed)
    with closing(SqliteLedger(live / "state.db")) as ledger:
        assert restore(ledger).epoch > 1
    (killed / "state.db-wal").unlink()
    with pytest.raises(DamagedLedger, match="1 commit"):
        SqliteLedger(killed / "state.db")


def test_a_failed_attempt_is_reported_and_made_good_later(cluster, tmp_path):
    with closing(copied(cluster, tmp_path / "state.db")) as ledger:
        want, said = seen(ledger), []
        ledger.on_backup_failed = said.append
        (tmp_path / "state.archive").mkdir()
        ledger._try_backup(30)
        assert [("archived" in text, "round 30" in text) for text in said] == [(True, True)]
        assert seen(ledger) == want
        (tmp_path / "state.archive").rmdir()
        ledger._try_backup(30)
        assert len(said) == 1
        assert seen(ledger) == want
        assert count(ledger, "rounds") == 1


def test_pieces_hold_any_facts():
    nothing: frozenset[int] = frozenset()
    plans = [Planned(k, 7, frozenset({0, 2}), frozenset({0, 1, 2})) for k in (1, 2)]
    first = StateFacts((0, 3), (0.1, float(np.nextafter(1, 2))), {(0, 1): 2, (1, 0): 1})
    second = StateFacts((1, 0), (0.0, 1e-9), {(1, 0): 1})
    steps = [
        Closed(1, frozenset({0, 2}), ((0, 1), (2, 1)), frozenset({0, 1}), first),
        LateReport(1, 1, ((1, 0),), None),
        Closed(2, nothing, (), nothing, second),
    ]
    facts = RoundFacts(plans, steps)
    assert decode(zlib.compress(encode(facts))) == facts


def size_of(folder):
    return sum(
        p.stat().st_size
        for p in folder.rglob("*")
        if p.is_file() and not p.name.endswith(("-wal", "-shm"))
    )


def test_the_ledger_and_its_backups_grow_by_little(tmp_path, monkeypatch):
    """14 members: at most 4 kB for each closed round, backups included; 18 kB without archive."""
    monkeypatch.setattr(sqlite, "BACKUP_ROUNDS", 20)
    monkeypatch.setattr(commits, "COMMITS_KEPT", 50)  # else their number still grows
    harness = CoordinatorHarness(setup_for("dystop", 13, 200), SqliteLedger(tmp_path / "state.db"))
    harness.ledger.on_backup_failed = pytest.fail
    harness.join_all()
    sizes = []
    for rounds in (60, 140):
        harness.run(1e6, until=lambda n=rounds: harness.machine.round > n)
        sizes.append(size_of(tmp_path))
    grown = (sizes[1] - sizes[0]) / 80
    print(f"{grown:.0f} bytes per round")
    assert grown < 4000
    harness.ledger.close()
