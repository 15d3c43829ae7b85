"""A coordinator that is killed, interrupted, or has no disk."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.testbed.coordinator.machine import CoordinatorMachine
from dystop.testbed.events import FinishRun
from dystop.testbed.ledger.tables import restore
from dystop.testbed.protocol.messages import Cancel, Execute, Heartbeat, ReportAck
from support.coordinator_fixtures import QUICK, Rig, check_history, play, rows, setup_for, told

# Restarts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("mechanism", ["dystop", "fedavg"])
def test_restart_at_every_commit(mechanism, before):
    whole = play(mechanism, rounds=4)
    for k in range(1, whole.commits + 1, 1 if mechanism == "dystop" else 4):
        rig = Rig(setup_for(mechanism, 5, 4))
        rig.crash_after, rig.crash_before = k, before
        rig.join_all()
        rig.run(120)
        assert rig.finished is not None, k
        check_history(rig, 4)
        assert {o.outcome for o in rows(rig, "orders")} == {"DONE"}, k
        assert rig.machine.epoch == 2


def test_many_restarts():
    rig = Rig(setup_for("dystop", rounds=30))
    rig.join_all()
    for _ in range(15):
        rig.run(0.45)
        rig.restart()
    rig.run(200)
    check_history(rig, 30)
    assert rig.machine.epoch == 16


def test_a_restart_before_the_last_score_opens_no_further_round():
    rig = Rig(setup_for("dystop", rounds=6, params=replace(QUICK, observer=True)))
    rig.puppets["observer"].mute = True
    rig.join_all()
    rig.run(100, until=lambda: 6 in rig.machine.records.held)
    rig.restart()
    rig.puppets["observer"].mute = False
    rig.join("observer")
    rig.run(100)
    assert [r.round for r in rig.records] == [1, 2, 3, 4, 5, 6]
    assert [line.round for line in rows(rig, "rounds")] == [1, 2, 3, 4, 5, 6]
    assert rig.finished is not None
    assert rig.finished.reason == "6 rounds are over"


def test_a_restarted_machine_knows_what_the_old_one_knew():
    rig = Rig(setup_for("dystop", rounds=20))
    rig.join_all()
    rig.run(5.05)
    old = rig.machine
    new = CoordinatorMachine(rig.setup, restore(rig.ledger))
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
    rig = Rig(setup_for("d-psgd", rounds=8))
    for k, p in enumerate(rig.puppets.values()):
        p.last_round = 3 + (k == 0)
    rig.join_all()
    rig.run(100)
    assert rig.finished == FinishRun("8 rounds are over")
    failed = {(o.round, o.node) for o in rows(rig, "orders") if o.outcome == "FAILED"}
    assert failed == {(r, i) for r in (1, 2, 3) for i in range(5)} | {(4, 0)}
    assert max(r.duration_s for r in rig.records) < 3.0  # nobody waits for a deadline
    assert told(rig, Cancel) == []


def test_an_interrupted_run_can_be_taken_up():
    rig = Rig(setup_for("dystop", rounds=10))
    rig.join_all()
    rig.run(3.0)
    rig.machine.interrupt("interrupted")
    rig.run(10.0)
    assert rig.finished == FinishRun("interrupted", 130)
    again = Rig(rig.setup, rig.ledger)
    again.puppets = rig.puppets
    for p in again.puppets.values():
        p.training, p.queued, p.incarnation = False, None, 2
        if p.name != "observer":
            again.join(p.name)
    for p in again.puppets.values():
        again.later(1.0, lambda n=p.name: again.beat(n))
    again.run(200.0)
    assert again.finished.reason == "10 rounds are over"
    assert [r.round for r in rows(again, "rounds")] == list(range(1, 11))


# A full disk ------------------------------------------------------------------------------------


def test_a_full_disk_stops_rounds_but_not_heartbeats():
    rig = Rig(setup_for("dystop", rounds=10))
    rig.join_all()
    rig.run(3.0)
    rig.disk_full = True
    open_rounds = len(rows(rig, "rounds"))
    rig.told.clear()
    rig.run(8.0)
    assert told(rig, Execute) == []
    assert told(rig, ReportAck) == []
    assert len(told(rig, Heartbeat)) > 20
    assert len(rows(rig, "rounds")) == open_rounds
    rig.disk_full = False
    rig.run(100)
    assert rig.finished
    check_history(rig, 10)


def test_a_worker_with_a_full_disk_is_left_in_peace():
    rig = Rig(setup_for("d-psgd", rounds=10))
    rig.join_all()
    rig.run(0.5)
    rig.hear_from("w01", Heartbeat(9, 1, disk_full=True))
    rig.beat = lambda name: None
    rig.run(4.0, until=lambda: len(rows(rig, "rounds")) > 1)
    assert rig.machine.rounds.current.view.alive.tolist() == [True, False, True, True, True]
