"""A coordinator that is killed, interrupted, or has no disk."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.events import FinishRun
from dystop.testbed.ledger.tables import restore
from dystop.testbed.protocol.messages import Cancel, Execute, Heartbeat, ReportAck
from support.coordinator_fixtures import (
    QUICK,
    CoordinatorHarness,
    check_history,
    play,
    rows,
    sent,
    setup_for,
)

# Restarts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("mechanism", ["dystop", "fedavg"])
def test_restart_at_every_commit(mechanism, before):
    whole = play(mechanism, rounds=4)
    for k in range(1, whole.commits + 1, 1 if mechanism == "dystop" else 4):
        harness = CoordinatorHarness(setup_for(mechanism, 5, 4))
        harness.crash_after, harness.crash_before = k, before
        harness.join_all()
        harness.run(120)
        assert harness.finished is not None, k
        check_history(harness, 4)
        assert {o.outcome for o in rows(harness, "orders")} == {"DONE"}, k
        assert harness.machine.epoch == 2


def test_many_restarts():
    harness = CoordinatorHarness(setup_for("dystop", rounds=30))
    harness.join_all()
    for _ in range(15):
        harness.run(0.45)
        harness.restart()
    harness.run(200)
    check_history(harness, 30)
    assert harness.machine.epoch == 16


def test_a_restart_before_the_last_score_opens_no_further_round():
    harness = CoordinatorHarness(
        setup_for("dystop", rounds=6, params=replace(QUICK, observer=True))
    )
    harness.workers["observer"].mute = True
    harness.join_all()
    harness.run(100, until=lambda: 6 in harness.machine.records.held)
    harness.restart()
    harness.workers["observer"].mute = False
    harness.join("observer")
    harness.run(100)
    assert [r.round for r in harness.records] == [1, 2, 3, 4, 5, 6]
    assert [line.round for line in rows(harness, "rounds")] == [1, 2, 3, 4, 5, 6]
    assert harness.finished is not None
    assert harness.finished.reason == "6 rounds are over"


def test_a_restarted_machine_knows_what_the_old_one_knew():
    harness = CoordinatorHarness(setup_for("dystop", rounds=20))
    harness.join_all()
    harness.run(5.05)
    old = harness.machine
    new = CoordinatorMachine(harness.setup, restore(harness.ledger))
    assert new.epoch == old.epoch + 1
    assert new.round == old.round
    for name in ("staleness", "queue", "version"):
        assert np.array_equal(getattr(new.state.control, name), getattr(old.state.control, name))
    assert np.array_equal(new.state.control.pulls.counts, old.state.control.pulls.counts)
    assert new.state.observations.links == old.state.observations.links
    assert np.array_equal(new.state.trained_round, old.state.trained_round)
    a, b = new.rounds.current, old.rounds.current
    assert (a is None) == (b is None)
    if a is not None and b is not None:
        assert (a.t, a.mixed, a.orders) == (b.t, b.mixed, b.orders)


def test_rounds_that_a_restored_ledger_has_forgotten_pass_at_once():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=8))
    for k, p in enumerate(harness.workers.values()):
        p.last_round = 3 + (k == 0)
    harness.join_all()
    harness.run(100)
    assert harness.finished == FinishRun("8 rounds are over")
    failed = {(o.round, o.node) for o in rows(harness, "orders") if o.outcome == "FAILED"}
    assert failed == {(r, i) for r in (1, 2, 3) for i in range(5)} | {(4, 0)}
    assert max(r.duration_s for r in harness.records) < 3.0  # nobody waits for a deadline
    assert sent(harness, Cancel) == []


def test_an_interrupted_run_can_be_taken_up():
    harness = CoordinatorHarness(setup_for("dystop", rounds=10))
    harness.join_all()
    harness.run(3.0)
    harness.machine.interrupt("interrupted")
    harness.run(10.0)
    assert harness.finished == FinishRun("interrupted", 130)
    again = CoordinatorHarness(harness.setup, harness.ledger)
    again.workers = harness.workers
    for p in again.workers.values():
        p.training, p.queued, p.incarnation = False, None, 2
        if p.name != "observer":
            again.join(p.name)
    for p in again.workers.values():
        again.later(1.0, lambda n=p.name: again.beat(n))
    again.run(200.0)
    assert again.finished.reason == "10 rounds are over"
    assert [r.round for r in rows(again, "rounds")] == list(range(1, 11))


# A full disk ------------------------------------------------------------------------------------


def test_a_full_disk_stops_rounds_but_not_heartbeats():
    harness = CoordinatorHarness(setup_for("dystop", rounds=10))
    harness.join_all()
    harness.run(3.0)
    harness.disk_full = True
    open_rounds = len(rows(harness, "rounds"))
    harness.sent.clear()
    harness.run(8.0)
    assert sent(harness, Execute) == []
    assert sent(harness, ReportAck) == []
    assert len(sent(harness, Heartbeat)) > 20
    assert len(rows(harness, "rounds")) == open_rounds
    harness.disk_full = False
    harness.run(100)
    assert harness.finished
    check_history(harness, 10)


def test_a_worker_with_a_full_disk_is_left_in_peace():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=10))
    harness.join_all()
    harness.run(0.5)
    harness.receive("w01", Heartbeat(9, 1, disk_full=True))
    harness.beat = lambda name: None
    harness.run(4.0, until=lambda: len(rows(harness, "rounds")) > 1)
    assert harness.machine.rounds.current.view.alive.tolist() == [True, False, True, True, True]
