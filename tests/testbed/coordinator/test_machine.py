"""The coordinator machine: members that join, die and leave, restarts, and a full disk."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from dystop.recorders.privacy import PrivacyRecorder
from dystop.recorders.topology import TopologyRecorder
from dystop.testbed.coordinator.machine import REPLACED, CoordinatorMachine
from dystop.testbed.events import (
    EpochFound,
    FinishRun,
    LookUpEpoch,
    MemberIncident,
    MessageFromMember,
    Tick,
)
from dystop.testbed.ledger.tables import MetaLine, read_blob, restore
from dystop.testbed.names import member_name
from dystop.testbed.params import Limits
from dystop.testbed.protocol.messages import (
    Cancel,
    Complaint,
    Execute,
    ExecuteAck,
    Heartbeat,
    JoinOk,
    Leave,
    Reject,
    Report,
    ReportAck,
    Roster,
)
from support.testbed.coordinator_fixtures import (
    QUICK,
    CoordinatorHarness,
    check_history,
    play,
    rows,
    sent,
    setup_for,
)

# Members ------------------------------------------------------------------------------------------


def test_unknown_names_and_older_processes_are_refused():
    harness = CoordinatorHarness(setup_for("dystop"))
    harness.workers["evil"] = replace(harness.workers["w00"], name="evil")
    harness.join("evil")
    assert [m.code for m in sent(harness, Reject, "evil")] == ["unknown"]
    harness.join("w00", incarnation=0)
    harness.join("w00", incarnation=0)  # its clock does not matter
    harness.join("w00", incarnation=1)
    assert [m.incarnation for m in sent(harness, JoinOk, "w00")] == [1, 2]
    assert [m.code for m in sent(harness, Reject, "w00")] == ["replaced"]
    harness.machine.state.incidents.write_all()
    (incident,) = harness.machine.state.incidents.written
    assert (incident.member, incident.kind) == ("w00", "refused")
    assert "replaced" in incident.text


def test_nobody_waits_for_a_member_whose_process_cannot_go_on():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=20))
    harness.join_all()
    harness.run(2.0)
    harness.kill("w03")
    harness.event(MemberIncident("w03", "left_behind", "w03.crt has expired"))
    harness.event(MemberIncident("unknown", "left_behind", ""))
    assert harness.machine.state.members.get("w03").state == "LEFT"
    began_s = harness.now_s
    harness.run(100.0)
    assert len(harness.records) == 20
    assert harness.now_s - began_s < 60.0
    named = {(e.member, e.kind) for e in harness.machine.state.incidents.written}
    assert ("w03", "left_behind") in named
    assert all(p.name != "w03" for p in sent(harness, Roster, "w00")[-1].peers)


def test_a_process_keeps_its_incarnation_when_the_coordinator_restarts():
    harness = CoordinatorHarness(setup_for("dystop", rounds=100))
    harness.join_all()
    harness.run(3.0)
    harness.restart()
    harness.run(3.0)
    assert [m.incarnation for m in sent(harness, JoinOk, "w00")] == [1, 1]
    harness.join("w00", incarnation=0)
    assert sent(harness, JoinOk, "w00")[-1].incarnation == 2


def test_messages_before_a_join_are_refused():
    harness = CoordinatorHarness(setup_for("dystop"))
    harness.receive("w00", Report(0, "trained"))
    assert sent(harness, Complaint, "w00")[0].code == "not_joined"
    assert rows(harness, "reports") == []


def test_a_coordinator_ends_when_a_newer_one_took_over():
    for claim in ("join", "beat", "ack"):
        harness = CoordinatorHarness(setup_for("dystop"))
        harness.join_all()
        harness.ledger.write([MetaLine("epoch", "7")])  # the epoch that the workers claim
        if claim == "join":
            harness.join("w00", epoch=7)
        elif claim == "beat":
            harness.receive("w00", Heartbeat(1, 7))
        else:
            harness.receive("w00", ExecuteAck(1, "stale_epoch", 7))
        assert harness.finished is None  # the ledger was not read yet
        harness.run(0.1)
        assert (harness.finished.reason, harness.finished.code) == (REPLACED, 3)
        assert harness.machine.handle(Tick(), harness.now_s + 1) == []


def test_of_two_coordinators_the_one_with_the_lower_epoch_ends():
    harness = CoordinatorHarness(setup_for("dystop", rounds=30))
    harness.join_all()
    harness.run(3)
    old = harness.machine
    harness.restart()
    harness.run(2)
    assert harness.workers["w00"].epoch == 2
    asked = MessageFromMember("w00", Heartbeat(1, 2))
    assert old.handle(asked, harness.now_s)[0] == LookUpEpoch(asked)
    assert old.handle(EpochFound(asked, harness.ledger.epoch()), harness.now_s) == [
        FinishRun(REPLACED, 3)
    ]


def test_a_worker_that_crashed_gets_its_order_again():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=6))
    harness.join_all()
    harness.run(2.0)
    harness.kill("w03")
    harness.run(2.0)
    p = harness.workers["w03"]
    p.incarnation, p.last_round = 2, max(p.orders, default=0)  # its checkpoint
    harness.join("w03")
    if p.number == -1 or p.last_round:
        harness.train(p, p.last_round, 1)
    harness.run(100)
    check_history(harness, 6)
    assert {o.outcome for o in rows(harness, "orders")} == {"DONE"}


def test_nobody_is_late_when_the_coordinator_was_stopped():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=6))
    harness.join_all()
    harness.run(0.5)
    harness.now_s += 60.0
    harness.event(Tick())
    assert harness.machine.rounds.current.t == 1
    assert {m.state for m in harness.machine.state.members if m.name != "observer"} == {"JOINED"}
    harness.run(30.0)
    assert {o.outcome for o in rows(harness, "orders")} == {"DONE"}
    assert harness.machine.state.failures.to_list() == []


def test_a_killed_worker_fails_after_suspect_s_and_gets_no_orders():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=6))
    harness.join_all()
    harness.run(2.0)
    harness.kill("w03")
    harness.run(100)
    assert harness.finished
    outcomes = {(o.round, o.node): o.outcome for o in rows(harness, "orders")}
    assert list(outcomes.values()).count("FAILED") == 1
    assert harness.machine.state.members.get("w03").state == "DEAD"
    failed = next(r for (r, i), x in outcomes.items() if x == "FAILED")
    assert harness.records[failed - 1].duration_s == pytest.approx(3.0, abs=0.2)
    assert [r.alive for r in harness.records][failed:] == [4] * (6 - failed)
    control = read_blob(rows(harness, "rounds")[-1].books)
    assert control.staleness[3] == 1  # grew in the failed round, then stayed the same
    assert control.version[3] == control.version[0] - (6 - failed) - 1


def test_staleness_of_absent_workers_grows_if_configured():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=6, params=replace(QUICK, away="age")))
    harness.join_all()
    harness.run(2.0)
    harness.kill("w03")
    harness.run(100)
    assert read_blob(rows(harness, "rounds")[-1].books).staleness[3] > 1


def test_rounds_do_not_wait_for_a_worker_that_left():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=6))
    harness.join_all()
    harness.run(2.0)
    harness.workers["w03"].up = False
    harness.receive("w03", Leave())
    harness.run(100)
    assert Counter(o.outcome for o in rows(harness, "orders"))["CANCELLED"] == 1
    assert max(r.duration_s for r in harness.records) < 3.0


def test_rosters_list_the_members():
    harness = CoordinatorHarness(setup_for("dystop", rounds=10))
    harness.join_all()
    harness.run(1.0)
    assert [bool(p.address) for p in sent(harness, JoinOk, "w03")[0].peers] == [True] * 4 + [
        False
    ] * 2
    roster = sent(harness, Roster, "w00")[-1]
    assert [p.name for p in roster.peers] == [*(member_name(k, 5) for k in range(5)), "observer"]
    assert all(p.address for p in roster.peers if p.name != "observer")
    assert len(sent(harness, Roster, "w00")) <= 2


def test_a_flood_of_messages_is_ignored():
    harness = CoordinatorHarness(
        setup_for("dystop", params=replace(QUICK, limits=Limits(messages_per_s=20)))
    )
    harness.join_all()
    for _ in range(1000):
        harness.receive("w00", Heartbeat(1, 1))
    assert len(sent(harness, Heartbeat, "w00")) <= 100
    harness.receive("w01", Heartbeat(1, 1))
    assert len(sent(harness, Heartbeat, "w01")) == 1


# Restarts -----------------------------------------------------------------------------------------


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


def private_setup(rounds):
    """The epsilon of a worker is the number of its local steps."""
    counts_steps = PrivacyRecorder(lambda steps: steps.astype(float))
    return setup_for("dystop", 5, rounds, recorders=(TopologyRecorder(), counts_steps))


def ordered_steps(harness):
    """Return the local steps of all orders in the ledger, and those of the first trainings."""
    steps = harness.setup.steps.astype(float)
    for order in rows(harness, "orders"):
        steps[order.node] += order.train * harness.setup.steps[order.node]
    return steps.tolist()


@pytest.mark.parametrize("before", [False, True])
def test_local_steps_of_private_training_survive_a_restart_at_every_commit(before):
    for k in range(7, 30):  # all workers have begun their first training
        harness = CoordinatorHarness(private_setup(4))
        harness.crash_after, harness.crash_before = k, before
        harness.join_all()
        harness.run(120)
        assert harness.finished is not None, k
        assert harness.machine.state.memories[-1].tolist() == ordered_steps(harness), k
        assert harness.records[-1].get("epsilon") == max(ordered_steps(harness)), k
    assert harness.records[0].get("epsilon") is None


def test_a_training_that_a_new_process_repeats_costs_privacy_again():
    harness = CoordinatorHarness(private_setup(6))
    harness.join_all()
    harness.run(0.05)
    harness.kill("w01")
    before = harness.machine.state.memories[-1].copy()
    harness.join("w01", incarnation=0, phase="training", number=-1)
    more = harness.machine.state.memories[-1] - before
    assert more.tolist() == [0, harness.setup.steps[1], 0, 0, 0]


def test_many_restarts():
    harness = CoordinatorHarness(setup_for("dystop", rounds=30))
    harness.join_all()
    for _ in range(15):
        harness.run(0.45)
        harness.restart()
    harness.run(200)
    check_history(harness, 30)
    assert harness.machine.epoch == 16


def test_a_restart_before_the_last_score_opens_no_round():
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


def test_a_restarted_machine_has_the_same_state():
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


def test_rounds_missing_from_a_restored_ledger_fail_at_once():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=8))
    for k, p in enumerate(harness.workers.values()):
        p.last_round = 3 + (k == 0)
    harness.join_all()
    harness.run(100)
    assert harness.finished == FinishRun("8 rounds are over")
    failed = {(o.round, o.node) for o in rows(harness, "orders") if o.outcome == "FAILED"}
    assert failed == {(r, i) for r in (1, 2, 3) for i in range(5)} | {(4, 0)}
    assert max(r.duration_s for r in harness.records) < 3.0  # no round waits for a deadline
    assert sent(harness, Cancel) == []


def test_an_interrupted_run_can_be_resumed():
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


# A full disk --------------------------------------------------------------------------------------


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


def test_a_worker_with_a_full_disk_gets_no_orders():
    harness = CoordinatorHarness(setup_for("d-psgd", rounds=10))
    harness.join_all()
    harness.run(0.5)
    harness.receive("w01", Heartbeat(9, 1, disk_full=True))
    harness.beat = lambda name: None
    harness.run(4.0, until=lambda: len(rows(harness, "rounds")) > 1)
    assert harness.machine.rounds.current.view.alive.tolist() == [True, False, True, True, True]
