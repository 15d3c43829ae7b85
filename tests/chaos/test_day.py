"""A day in short: many rounds, and how large ledger, backups and logs are in the end.

`DYSTOP_DAY_ROUNDS` is the number of rounds over real processes; in virtual time there are five
times as many. `DYSTOP_DAY_ROUNDS=20000 pytest -m chaos tests/chaos/test_day.py` is the whole day.
"""

import os
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from dystop.folders.record_log import RecordLog
from dystop.testbed.audit.check import check_facts
from dystop.testbed.audit.facts import facts_of
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import restore
from dystop.testbed.names import COORDINATOR
from dystop.testbed.setup.coordinator_run import TraceLog
from dystop.testbed.setup.enrolment import read_status
from support.testbed.coordinator_fixtures import CoordinatorHarness, setup_for

from .rig import QUICK, Rig, Setting

pytestmark = pytest.mark.chaos

ROUNDS = int(os.environ.get("DYSTOP_DAY_ROUNDS", "600"))
WORKERS = 3
MOST_BYTES = 4000  # of the ledger and its backups, for each closed round
FREE = (
    *QUICK, f"fleet.workers={WORKERS}", "testbed.devices=free", "testbed.observer=false",
    "data.train_limit=300", "data.test_limit=50", "stop.rounds=100000000",
)  # fmt: skip


def test_many_rounds_in_virtual_time(tmp_path, show):
    """The real coordinator, ledger, archive and logs; scripted workers, no sockets, no models."""
    rounds = 5 * ROUNDS
    path, began = tmp_path / "state.db", time.monotonic()
    setup = setup_for("dystop", WORKERS, rounds)
    harness = CoordinatorHarness(setup, SqliteLedger(path))
    harness.ledger.on_backup_failed = pytest.fail
    harness.join_all()
    sizes, restarts = {}, {}
    with RecordLog(tmp_path) as records, TraceLog(tmp_path, 0) as traces:
        harness.ledger.before_archiving = records.sync
        for quarter in (1, 2, 3, 4):
            until = rounds * quarter // 4
            while harness.machine.round <= until and not harness.finished:
                last = min(harness.machine.round + 100, until)
                harness.run(1e9, until=lambda last=last: harness.machine.round > last)
                for record, trace in zip(harness.records, harness.traces, strict=True):
                    records.append(record)
                    traces.append(trace)
                for kept in (harness.records, harness.traces, harness.sent):
                    kept.clear()
                for worker in harness.workers.values():
                    worker.orders.clear()
            harness.ledger.close()
            before = time.monotonic()
            harness.ledger = SqliteLedger(path)
            CoordinatorMachine(setup, restore(harness.ledger))
            restarts[until] = time.monotonic() - before
            harness.ledger.on_backup_failed = pytest.fail
            sizes[until] = _sizes(tmp_path)
            show(f"{until} rounds, {time.monotonic() - began:.0f} s: {_text(sizes[until])}; "
                 f"restart {restarts[until]:.2f} s")  # fmt: skip
            if not harness.finished:
                harness.restart()
    before = time.monotonic()
    facts = facts_of(harness.ledger.rows, {}, {}, harness.ledger.archived())
    assert check_facts(facts) == []
    show(f"check of {len(facts.planned)} rounds: {time.monotonic() - before:.1f} s")
    harness.ledger.close()
    assert [plan.round for plan in facts.planned] == list(range(1, rounds + 1))
    _assert_little_growth(sizes)
    assert restarts[rounds] < 2 * restarts[rounds // 4] + 1.0


def test_many_rounds_over_real_processes(tmp_path, show):
    """Coordinator and workers as processes; a kill of the coordinator after each quarter."""
    sizes, began = {}, time.monotonic()
    with Rig(tmp_path, Setting(FREE, restart_s=0.0)) as rig:
        rig.start()
        for quarter in (1, 2, 3, 4):
            until = ROUNDS * quarter // 4
            rig.until(lambda until=until: rig.rounds >= until, 60.0 + ROUNDS)
            sizes[until] = _sizes(rig.folder)
            listening = _restarted(rig)
            show(f"{until} rounds, {time.monotonic() - began:.0f} s: {_text(sizes[until])}; "
                 f"listening {listening:.1f} s after a kill")  # fmt: skip
        rig.stop()
        assert rig.findings() == []
        with closing(SqliteLedger(rig.folder / "state.db")) as ledger:
            assert len(list(ledger.rows("rounds"))) <= 201
    _assert_little_growth(sizes)


def _restarted(rig: Rig) -> float:
    """Kill the coordinator; return the seconds from the start of the next one until it listens."""
    child, before = rig.supervisor.children[COORDINATOR], rig.rounds
    starts = child.starts
    assert rig.kill(COORDINATOR)
    rig.until(lambda: child.starts > starts, 30)
    rig.until(lambda: read_status(rig.folder).get("pid") == rig.supervisor.pid(COORDINATOR), 120)
    listening = time.monotonic() - child.began_s
    rig.until(lambda: rig.rounds > before, 120)
    return listening


_KINDS: dict[str, Callable[[Path], bool]] = {
    "ledger": lambda p: p.parent.name != "backups" and p.name in ("state.db", "state.archive"),
    "backups": lambda p: p.parent.name == "backups",
    "records and trace": lambda p: p.name in ("records.jsonl", "trace.jsonl"),
    "event logs": lambda p: p.name == "history.jsonl",
    "logs": lambda p: p.parent.name == "logs",
}


def _sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of each kind of file; the write-ahead log has a bound of its own."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    return {kind: sum(p.stat().st_size for p in files if is_(p)) for kind, is_ in _KINDS.items()}


def _text(sizes: dict[str, int]) -> str:
    return ", ".join(f"{kind} {size / 1e6:.2f} MB" for kind, size in sizes.items())


def _assert_little_growth(sizes: dict[int, dict[str, int]]) -> None:
    """Compare the end with the middle: by then the ledger has its full size."""
    (_, middle, _, end) = sizes
    grown = sum(sizes[end][kind] - sizes[middle][kind] for kind in ("ledger", "backups"))
    assert grown / (end - middle) <= MOST_BYTES
