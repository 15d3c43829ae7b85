"""The coordinator's shell over the memory transport: sessions, bad messages, disk, crashes."""

import json
import time
from collections import Counter
from dataclasses import replace

import pytest
from coordinator_rig import QUICK, setup_for
from echo_fleet import fleet_of, in_thread

from dystop.errors import PlanError, StorageError
from dystop.runtime.coordinator.machine import CoordinatorMachine
from dystop.runtime.host import failpoints
from dystop.runtime.ledger.sqlite import SqliteLedger
from dystop.runtime.ledger.tables import MemoryLedger, restore
from dystop.runtime.params import Timeouts
from dystop.runtime.shell.seat import CoordinatorSeat
from dystop.runtime.transport.memory import MemoryHub, MemoryTransport
from stage import Script

FAST = replace(QUICK, timeouts=Timeouts(heartbeat_s=5.0, suspect_s=60.0, dead_s=90.0))


class Stand:
    """A seat, its hub and its echoes."""

    def __init__(self, setup, ledger=None, **more):
        self.hub = MemoryHub()
        self.setup, self.ledger = setup, ledger or MemoryLedger()
        self.records, self.traces, self.alarms = [], [], []
        self.more = more
        self.echoes = fleet_of(self.hub, setup)
        self.seat = self.sit()

    def sit(self):
        machine = CoordinatorMachine(self.setup, restore(self.ledger))
        return CoordinatorSeat(
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
