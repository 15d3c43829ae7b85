"""The coordinator machine, driven by hand and by scripted workers in virtual time."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.staleness_weighting import StalenessWeighting
from dystop.control.stopping import Stop as StopRule
from dystop.errors import ConfigError, RunFolderError
from dystop.mechanisms import MECHANISMS
from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.events import Commit, FinishRun, MessageFromMember, SendToMember, Tick
from dystop.testbed.ledger.tables import read_blob, restore
from dystop.testbed.protocol.messages import Execute, Heartbeat, ReportAck
from dystop.types import ControlState
from support.coordinator_fixtures import (
    QUICK,
    CoordinatorHarness,
    check_history,
    play,
    rows,
    setup_for,
)


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_runs_to_its_end(name):
    harness = play(name, rounds=5)
    assert harness.finished == FinishRun("5 rounds are over")
    check_history(harness, 5)
    assert all(o.outcome == "DONE" for o in rows(harness, "orders"))
    assert [r.lost for r in harness.records] == [0] * 5
    assert not any(p.up for p in harness.workers.values() if p.name != "observer")


def test_control_state_follows_the_papers_equations():
    """S-9: without a fault staleness and queues are those of the simulator's equations."""
    harness = play(rounds=30)
    tau, q = np.zeros(5, int), np.zeros(5)
    bound = harness.setup.mechanism.capabilities().queue_bound
    for row, record in zip(rows(harness, "rounds"), harness.records, strict=True):
        control = read_blob(row.books)
        assert isinstance(control, ControlState)
        q = np.maximum(q + tau - bound, 0.0)
        tau = tau + 1
        tau[record.active_ids] = 0
        assert control.staleness.tolist() == tau.tolist()
        assert control.queue.tolist() == q.tolist()


def test_a_round_lasts_as_long_as_its_slowest_worker():
    harness = play("d-psgd", rounds=4)
    assert [round(r.duration_s, 3) for r in harness.records] == [1.2] * 4
    scaled = play("d-psgd", rounds=4, params=replace(QUICK, time_scale=2.0))
    assert [round(r.duration_s, 3) for r in scaled.records] == [0.6] * 4


def test_plan_is_on_the_disk_before_any_order_leaves():
    harness = CoordinatorHarness(setup_for("dystop"))
    seen = []

    def spy(name, message):
        if isinstance(message, Execute):
            seen.append(message.round in {r.round for r in rows(harness, "rounds")})
        if isinstance(message, ReportAck):
            kept = {(r.round, r.kind) for r in rows(harness, "reports")}
            seen.append((message.round, message.kind) in kept)
        return True

    harness.deliver = spy
    harness.join_all()
    harness.run(60)
    assert seen
    assert all(seen)


def test_one_handle_gives_at_most_one_commit():
    harness = CoordinatorHarness(setup_for("dystop"))
    harness.join_all()
    events = [MessageFromMember(f"w{k:02d}", Heartbeat(1, 1)) for k in range(5)]
    actions = harness.machine.handle_all([*events, Tick()], harness.now_s + 4.0)
    assert sum(isinstance(a, Commit) for a in actions) <= 1
    assert (
        sum(isinstance(a, SendToMember) and isinstance(a.message, Heartbeat) for a in actions) == 5
    )


def test_opening_waits_for_the_quorum_or_for_gather_s():
    harness = CoordinatorHarness(setup_for("dystop"))
    for name in ("w00", "w01", "w02"):
        harness.join(name)
        harness.later(0.5, lambda n=name: harness.beat(n))
    harness.run(4.0)
    assert harness.machine.rounds.current is None
    harness.run(2.0)
    assert harness.machine.rounds.current is not None
    assert harness.machine.rounds.current.view.alive.tolist() == [True, True, True, False, False]


def test_nothing_opens_without_the_server():
    harness = CoordinatorHarness(setup_for("fedavg"))
    for k in range(5):
        harness.join(f"w{k:02d}")
        harness.later(0.5, lambda n=f"w{k:02d}": harness.beat(n))
    harness.run(20)
    assert rows(harness, "rounds") == []
    harness.join("server")
    harness.run(1)
    assert rows(harness, "rounds")


def test_stop_rules():
    assert play(stop=StopRule(100, seconds=3.0)).finished.reason == "3 emulated seconds are over"
    assert play(stop=StopRule(100, loss=0.6)).finished.reason == "target loss reached"
    watched = play(stop=StopRule(100, accuracy=0.4), params=replace(QUICK, observer=True))
    assert watched.finished.reason == "target accuracy reached"
    assert watched.records[3].accuracy == 0.5


def test_records_wait_for_their_score_and_leave_in_order():
    harness = CoordinatorHarness(
        setup_for("dystop", rounds=9, params=replace(QUICK, observer=True))
    )
    harness.join_all()
    harness.run(600)
    assert [r.round for r in harness.records] == list(range(1, 10))
    assert [r.accuracy for r in harness.records] == [None] * 3 + [0.5] + [None] * 3 + [0.5, 0.5]
    assert [t["round"] for t in harness.traces] == list(range(1, 10))
    assert rows(harness, "kept")[0].key == "state"
    assert not [k for k in rows(harness, "kept") if k.key.startswith("seen:") and k.key != "seen:9"]


def test_a_silent_observer_holds_nothing_back_for_ever():
    harness = CoordinatorHarness(
        setup_for("dystop", rounds=5, params=replace(QUICK, observer=True))
    )
    harness.workers["observer"].mute = True
    harness.join_all()
    harness.run(200)
    assert harness.finished
    assert [r.accuracy for r in harness.records] == [None] * 5


def test_what_the_testbed_cannot_do_is_refused():
    with pytest.raises(ConfigError, match="compensate"):
        setup_for("dystop", staleness_weighting=StalenessWeighting("compensate"))
    with pytest.raises(ConfigError, match=r"nodes? .*0 .*\[\]"):
        setup_for("dystop", members=())
    harness = play(rounds=1)
    with pytest.raises(RunFolderError, match="ee" * 8):
        CoordinatorMachine(replace(harness.setup, run="ee" * 16), restore(harness.ledger))
