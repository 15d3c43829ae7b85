"""The coordinator's process over the memory transport: sessions, bad messages, disk, crashes."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest

from dystop.conformance.echo_workers import echo_workers
from dystop.errors import PlanError, StorageError
from dystop.testbed.coordinator.machine import REPLACED, CoordinatorMachine
from dystop.testbed.coordinator.process import CoordinatorProcess
from dystop.testbed.launch import failpoints
from dystop.testbed.ledger.sqlite import SqliteLedger
from dystop.testbed.ledger.tables import MetaLine, restore
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.codec import decode, encode
from dystop.testbed.protocol.messages import Heartbeat, Join, JoinOk, Report, Used
from dystop.testbed.transport.memory import MemoryHub, MemoryTransport
from support.engine_fixtures import Script
from support.testbed.coordinator_fixtures import QUICK, setup_for
from support.testbed.memory_ledger import MemoryLedger
from support.testbed.transport_parties import until

FAST = replace(QUICK, timeouts=Timeouts(heartbeat_s=5.0, suspect_s=60.0, dead_s=90.0))


def in_thread(call: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


class Setting:
    """A coordinator's process, its hub and its echo workers."""

    def __init__(self, setup, ledger=None, **more):
        self.hub = MemoryHub()
        self.setup, self.ledger = setup, ledger or MemoryLedger()
        self.records, self.traces, self.alarms = [], [], []
        self.more = more
        self.echoes = echo_workers(self.hub, setup)
        self.process = self.new_process()

    def new_process(self):
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
            echo.start(self.process.address)

    def close(self):
        for echo in self.echoes:
            echo.transport.close()
        self.hub.close()


@pytest.fixture
def setting():
    made = []

    def make(setup, ledger=None):
        made.append(Setting(setup, ledger))
        return made[-1]

    yield make
    failpoints.arm("")
    for each in made:
        each.close()


def test_a_run_from_start_to_end(setting, tmp_path):
    ledger = SqliteLedger(tmp_path / "state.db")
    run = setting(setup_for("dystop", 6, 12, params=FAST), ledger)
    before = run.process.health()
    run.start()
    assert run.process.run() == "12 rounds are over"
    health = run.process.health()
    assert (health.party, health.state) == ("coordinator", "coordinating")
    assert health.address == run.process.address
    assert health.alive_s > before.alive_s
    assert [r.round for r in run.records] == list(range(1, 13))
    assert [json.loads(json.dumps(t))["round"] for t in run.traces] == list(range(1, 13))
    done = {(o.round, o.node) for o in ledger.rows("orders") if o.outcome == "DONE"}
    did = Counter((r, k) for k, e in enumerate(run.echoes) for r in e.orders)
    assert set(did) == done
    assert set(did.values()) == {1}
    ledger.close()


SITES = (
    "before_plan_commit", "after_plan_commit", "after_execute", "before_report_commit",
    "after_report_commit", "before_ack", "before_close", "after_close",
)  # fmt: skip


class Died(BaseException):
    """Stands for the end of the process."""


@pytest.mark.parametrize("site", SITES)
def test_a_crash_at_any_place_loses_no_round(setting, site, monkeypatch):
    run = setting(setup_for("dystop", 5, 10, params=FAST))

    def die(name, point):
        raise Died

    monkeypatch.setattr(failpoints, "_act", die)
    failpoints.arm(f"coordinator.{site}:crash@3")
    run.start()
    with pytest.raises(Died):
        run.process.run()
    failpoints.arm("")
    seen = {r.round for r in run.records}
    run.process = run.new_process()
    run.process.published = run.process.traced = max(seen, default=0)
    assert run.process.run() == "10 rounds are over"
    assert [r.round for r in run.records] == list(range(1, 11))
    assert {o.outcome for o in run.ledger.rows("orders")} == {"DONE"}
    assert all(max(Counter(e.orders).values(), default=1) == 1 for e in run.echoes)


def test_malformed_messages_are_answered_and_then_end_the_session(setting):
    run = setting(setup_for("dystop", 3, 5, params=FAST))
    (bad, *good) = run.echoes
    answers, ends = [], []
    bad.opened = lambda link: [link.send(b"garbage") for _ in range(10)]
    bad.received = answers.append
    bad.closed = ends.append
    bad.start(run.process.address)
    thread = in_thread(run.process.run)
    deadline = time.monotonic() + 1200
    while not ends and time.monotonic() < deadline:
        time.sleep(0.01)
    run.process.interrupt()
    thread.join(1200.0)
    assert ends
    assert all(b"complaint" in m for m in answers)
    assert good


def test_interrupt_ends_a_run_that_waits(setting):
    run = setting(setup_for("dystop", 3, 5, params=FAST))
    thread = in_thread(run.process.run)
    run.process.interrupt("enough")
    thread.join(1200.0)
    assert (run.process.finish.reason, run.process.finish.code) == ("enough", 130)


def test_a_broken_plan_ends_the_run_with_its_error(setting):
    setup = setup_for("dystop", 3, 5, params=FAST)
    run = setting(replace(setup, mechanism=Script()))
    run.start()
    with pytest.raises((PlanError, IndexError)):
        run.process.run()


def test_a_full_disk_is_an_alarm_and_goes_away(setting):
    run = setting(setup_for("dystop", 4, 8, params=FAST))
    write, refused = run.ledger.write, []

    def full(lines):
        if run.records and len(refused) < 2:
            refused.append(lines)
            raise StorageError("disk full")
        write(lines)

    run.ledger.write = full
    run.start()
    assert run.process.run() == "8 rounds are over"
    assert run.alarms == ["disk full", "the disk takes writes again"]
    assert {o.outcome for o in run.ledger.rows("orders")} == {"DONE"}


@pytest.mark.parametrize("which", ["_on_record", "_on_trace"])
def test_a_full_disk_delays_records_and_traces(setting, which):
    """The line that the disk refused, and all later ones, are written once and in order."""
    run = setting(setup_for("dystop", 4, 8, params=FAST))
    write, refused, marked = getattr(run.process, which), [], []

    def full(line):
        if len(run.records) >= 3 and len(refused) < 2:
            refused.append(line)
            marked.append([r.round for r in run.ledger.rows("records") if r.published])
            raise StorageError("disk full")
        write(line)

    setattr(run.process, which, full)
    run.start()
    assert run.process.run() == "8 rounds are over"
    assert run.alarms == ["disk full", "the disk takes writes again"]
    assert [r.round for r in run.records] == list(range(1, 9))
    assert [t["round"] for t in run.traces] == list(range(1, 9))
    assert refused[0] == refused[1]
    first = refused[0]["round"] if isinstance(refused[0], dict) else refused[0].round
    assert all(first not in rounds for rounds in marked)  # a killed coordinator publishes it again
    assert all(r.published for r in run.ledger.rows("records"))


def claim_epoch(echo, epoch):
    """Make an echo worker claim another epoch after its join."""
    welcome = echo._answers[JoinOk]

    def lie(message):
        welcome(message)
        echo.send(Heartbeat(1, epoch))

    echo._answers[JoinOk] = lie


@pytest.mark.parametrize("kind", [MemoryLedger, SqliteLedger])
def test_a_claim_that_the_ledger_contradicts_stops_nothing(setting, tmp_path, kind):
    ledger = kind() if kind is MemoryLedger else kind(tmp_path / "state.db")
    run = setting(setup_for("dystop", 4, 8, params=FAST), ledger)
    claim_epoch(run.echoes[1], 7)
    run.start()
    assert run.process.run() == "8 rounds are over"
    assert ledger.epoch() == 8  # above the claim, so that an honest worker would obey it
    ledger.close()


def test_a_claim_that_the_ledger_confirms_ends_the_coordinator(setting):
    run = setting(setup_for("dystop", 4, 8, params=FAST))
    run.ledger.write([MetaLine("epoch", "7")])
    claim_epoch(run.echoes[1], 7)
    run.start()
    assert run.process.run() == REPLACED
    assert run.process.finish.code == 3


def test_a_claim_is_ignored_if_the_ledger_cannot_be_read(setting, tmp_path, monkeypatch):
    run = setting(setup_for("dystop", 4, 8, params=FAST))

    def gone():
        raise StorageError("it is gone")

    monkeypatch.setattr(run.ledger, "epoch", gone)
    claim_epoch(run.echoes[1], 7)
    run.start()
    assert run.process.run() == "8 rounds are over"
    assert run.alarms == ["it is gone"]
    with closing(SqliteLedger(tmp_path / "state.db")) as ledger:
        ledger.path = tmp_path / "no such"
        with pytest.raises(StorageError, match="no such: cannot be read"):
            ledger.epoch()


def padded_report(size):
    """A valid report of about this many bytes."""
    used = tuple(Used(k, 0, 1, 1, "d" * 64, 10, 0.1) for k in range(size // 150))
    return encode(Report(1, "mixed", used))


BIG_JOIN = Join(2, "ab", 1, "h", "cd", "", 8, (1,) * 9999, 1, 1, 1, "idle", 0)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (padded_report(200_000), "size"),
        (encode(BIG_JOIN), "size"),
        (b'{"type":"heartbeat","seq":1,"epoch":1' + b" " * 5000 + b"}", "size"),
        (b'{"type":"heartbeat","seq":1,"seq":2,"epoch":1}', "malformed"),
    ],
    ids=["report", "join", "spaces", "duplicate key"],
)
def test_what_the_fleet_cannot_need_is_refused_before_it_is_read(setting, message, code):
    run = setting(setup_for("dystop", 3, 5, params=FAST))
    bad, answers = run.echoes[0], []
    bad.opened = lambda link: link.send(message)
    bad.received = answers.append
    bad.start(run.process.address)
    thread = in_thread(run.process.run)
    found = until(lambda: answers and run.process.incidents())
    run.process.interrupt()
    thread.join(1200.0)
    assert found
    assert decode(answers[0], "worker").code == code
    assert [(e.member, e.kind) for e in run.process.incidents()] == [("w00", "bad_message")]
