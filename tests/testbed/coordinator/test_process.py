"""The coordinator's shell over the memory transport: sessions, bad messages, disk, crashes."""

import json
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace

import pytest

from dystop.bench.testbed import echo_workers
from dystop.errors import PlanError, StorageError
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.coordinator.process import CoordinatorProcess
from dystop.testbed.launch import failpoints
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import MemoryLedger, MetaLine, restore
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.messages import Heartbeat, JoinOk
from dystop.testbed.transport.memory import MemoryHub, MemoryTransport
from support.coordinator_fixtures import QUICK, setup_for
from support.engine_fixtures import Script
from support.threads import in_thread

FAST = replace(QUICK, timeouts=Timeouts(heartbeat_s=5.0, suspect_s=60.0, dead_s=90.0))


class Stand:
    """A seat, its hub and its echoes."""

    def __init__(self, setup, ledger=None, **more):
        self.hub = MemoryHub()
        self.setup, self.ledger = setup, ledger or MemoryLedger()
        self.records, self.traces, self.alarms = [], [], []
        self.more = more
        self.echoes = echo_workers(self.hub, setup)
        self.seat = self.sit()

    def sit(self):
        machine = CoordinatorMachine(self.setup, restore(self.ledger))
        return CoordinatorProcess(
            MemoryTransport(self.hub, "coordinator"),
            machine,
            self.ledger,
            "here",
            self.records.append,
            self.traces.append,
            self.alarms.append,
        )

    def start(self):
        for echo in self.echoes:
            echo.start(self.seat.address)

    def close(self):
        for echo in self.echoes:
            echo.transport.close()
        self.hub.close()


@pytest.fixture
def stand():
    made = []

    def make(setup, ledger=None):
        made.append(Stand(setup, ledger))
        return made[-1]

    yield make
    failpoints.arm("")
    for each in made:
        each.close()


def test_a_run_from_start_to_end(stand, tmp_path):
    ledger = SqliteLedger(tmp_path / "state.db")
    place = stand(setup_for("dystop", 6, 12, params=FAST), ledger)
    place.start()
    assert place.seat.run() == "12 rounds are over"
    assert [r.round for r in place.records] == list(range(1, 13))
    assert [json.loads(json.dumps(t))["round"] for t in place.traces] == list(range(1, 13))
    done = {(o.round, o.node) for o in ledger.rows("orders") if o.outcome == "DONE"}
    did = Counter((r, k) for k, e in enumerate(place.echoes) for r in e.orders)
    assert set(did) == done
    assert set(did.values()) == {1}
    ledger.close()


SITES = (
    "before_plan_commit", "after_plan_commit", "after_execute", "before_report_commit",
    "after_report_commit", "before_ack", "before_close", "after_close",
)  # fmt: skip


class Died(BaseException):
    """Stands in for a process that is gone."""


@pytest.mark.parametrize("site", SITES)
def test_a_crash_at_any_place_loses_no_round(stand, site, monkeypatch):
    place = stand(setup_for("dystop", 5, 10, params=FAST))

    def die(name, point):
        raise Died

    monkeypatch.setattr(failpoints, "_act", die)
    failpoints.arm(f"coordinator.{site}:crash@3")
    place.start()
    with pytest.raises(Died):
        place.seat.run()
    failpoints.arm("")
    seen = {r.round for r in place.records}
    place.seat = place.sit()
    place.seat.published = max(seen, default=0)
    assert place.seat.run() == "10 rounds are over"
    assert [r.round for r in place.records] == list(range(1, 11))
    assert {o.outcome for o in place.ledger.rows("orders")} == {"DONE"}
    assert all(max(Counter(e.orders).values(), default=1) == 1 for e in place.echoes)


def test_garbage_is_answered_and_then_cut_off(stand):
    place = stand(setup_for("dystop", 3, 5, params=FAST))
    (bad, *good) = place.echoes
    heard, ends = [], []
    bad.opened = lambda link: [link.send(b"garbage") for _ in range(10)]
    bad.said = heard.append
    bad.closed = ends.append
    bad.start(place.seat.address)
    thread = in_thread(place.seat.run)
    deadline = time.monotonic() + 5.0
    while not ends and time.monotonic() < deadline:
        time.sleep(0.01)
    place.seat.interrupt()
    thread.join(10.0)
    assert ends
    assert all(b"complaint" in m for m in heard)
    assert good


def test_interrupt_ends_a_run_that_waits(stand):
    place = stand(setup_for("dystop", 3, 5, params=FAST))
    thread = in_thread(place.seat.run)
    place.seat.interrupt("enough")
    thread.join(10.0)
    assert (place.seat.finish.reason, place.seat.finish.code) == ("enough", 130)


def test_a_broken_plan_ends_the_run_with_its_error(stand):
    setup = setup_for("dystop", 3, 5, params=FAST)
    place = stand(replace(setup, mechanism=Script()))
    place.start()
    with pytest.raises((PlanError, IndexError)):
        place.seat.run()


def test_a_full_disk_is_an_alarm_and_goes_away(stand):
    place = stand(setup_for("dystop", 4, 8, params=FAST))
    write, refused = place.ledger.write, []

    def full(lines):
        if place.records and len(refused) < 2:
            refused.append(lines)
            raise StorageError("disk full")
        write(lines)

    place.ledger.write = full
    place.start()
    assert place.seat.run() == "8 rounds are over"
    assert place.alarms == ["disk full", "the disk takes writes again"]
    assert {o.outcome for o in place.ledger.rows("orders")} == {"DONE"}


def claiming(echo, epoch):
    """An echo that says, once it has joined, that it obeys another epoch."""
    welcome = echo._answers[JoinOk]

    def lie(told):
        welcome(told)
        echo.say(Heartbeat(1, epoch))

    echo._answers[JoinOk] = lie


@pytest.mark.parametrize("kind", [MemoryLedger, SqliteLedger])
def test_a_claim_that_the_ledger_does_not_bear_out_stops_nothing(stand, tmp_path, kind):
    ledger = kind() if kind is MemoryLedger else kind(tmp_path / "state.db")
    place = stand(setup_for("dystop", 4, 8, params=FAST), ledger)
    claiming(place.echoes[1], 7)
    place.start()
    assert place.seat.run() == "8 rounds are over"
    assert ledger.epoch() == 8  # above the claim, so that one who has told the truth would obey
    ledger.close()


def test_a_claim_that_the_ledger_bears_out_ends_the_coordinator(stand):
    place = stand(setup_for("dystop", 4, 8, params=FAST))
    place.ledger.write([MetaLine("epoch", "7")])
    claiming(place.echoes[1], 7)
    place.start()
    assert place.seat.run() == "a newer coordinator is in charge"
    assert place.seat.finish.code == 3


def test_a_claim_that_cannot_be_looked_up_is_not_heard(stand, tmp_path, monkeypatch):
    place = stand(setup_for("dystop", 4, 8, params=FAST))

    def gone():
        raise StorageError("it is gone")

    monkeypatch.setattr(place.ledger, "epoch", gone)
    claiming(place.echoes[1], 7)
    place.start()
    assert place.seat.run() == "8 rounds are over"
    assert place.alarms == ["it is gone"]
    with closing(SqliteLedger(tmp_path / "state.db")) as ledger:
        ledger.path = tmp_path / "no such"
        with pytest.raises(StorageError, match="cannot be read"):
            ledger.epoch()
