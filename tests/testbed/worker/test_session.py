"""The session of a worker with its coordinator: joining, heartbeats, reports, leaving."""

import numpy as np

from dystop.testbed.events import (
    Exit,
    PeerIncident,
    SessionLost,
    SessionOpened,
    StartTraining,
    Tick,
)
from dystop.testbed.protocol.messages import (
    Complaint,
    Heartbeat,
    Incident,
    Join,
    JoinOk,
    Leave,
    Reject,
    ReportAck,
    Stop,
)
from dystop.testbed.worker.state import Introduction
from support.testbed.worker_fixtures import PEERS, RUN, WorkerHarness, of, refusal, reports, sent

# Joining ----------------------------------------------------------------------------------------


def test_a_new_worker_learns_its_run_and_keeps_it():
    harness = WorkerHarness()
    assert refusal(harness.ask(peer="observer", round=1)) == "not_authorised"  # of which run?
    harness.join()
    assert harness.disk.run == RUN
    again = WorkerHarness(state=harness.disk)
    (join,) = sent(again(SessionOpened()), Join)
    assert join.run == RUN
    assert not again.receive(JoinOk("cd" * 16, 9, 1, 1.0, True, PEERS))  # it stays in its run
    assert (again.state.run, again.state.epoch) == (RUN, 1)
    (end,) = of(again.receive(Reject("run", "of run ab, this is cd")), Exit)
    assert (end.code, end.text) == (2, "the coordinator refused: run: of run ab, this is cd")


def test_the_join_contains_name_and_address():
    who = Introduction("s", address="memory:0", software="1", data_size=10, label_counts=(4, 6))
    harness = WorkerHarness(introduction=who)
    (join,) = sent(harness(SessionOpened()), Join)
    assert (join.run, join.incarnation, join.address) == ("", 0, "memory:0")
    assert (join.version, join.number, join.last_round, join.phase) == (0, -1, 0, "idle")
    assert join.label_counts == (4, 6)


def test_a_process_joins_again_with_the_incarnation_that_it_was_given():
    harness = WorkerHarness()
    harness(SessionOpened())
    harness.receive(JoinOk(RUN, 1, 1, 1.0, False, PEERS, incarnation=4))
    assert (harness.state.incarnation, harness.disk.incarnation) == (4, 4)
    harness(SessionLost())
    assert sent(harness(SessionOpened()), Join)[0].incarnation == 4
    harness(SessionLost())
    again = WorkerHarness(state=harness.disk)
    assert sent(again(SessionOpened()), Join)[0].incarnation == 0  # a new process


def test_a_repeated_first_join_that_is_not_answered_does_not_replace_its_own_process():
    harness = WorkerHarness()
    harness(SessionOpened())
    assert sent(harness(Tick(), 6.0), Join)[0].incarnation == 0
    harness.receive(JoinOk(RUN, 1, 1, 1.0, False, PEERS, incarnation=4))
    harness(SessionLost())  # before the second answer, which says 5
    assert sent(harness(SessionOpened()), Join)[0].incarnation == 0
    harness.receive(JoinOk(RUN, 1, 1, 1.0, False, PEERS, incarnation=6))
    harness(SessionLost())
    assert sent(harness(SessionOpened()), Join)[0].incarnation == 6


def test_a_new_worker_begins_training_under_a_warm_start():
    harness = WorkerHarness()
    (train,) = of(harness.join(warm=True), StartTraining)
    assert (train.number, train.steps, train.rate) == (0, 3, 1.0)
    assert harness.disk.training.number == 0  # written before it began
    assert harness.machine.phase == "training"
    actions = harness.end_training(1, 2)
    assert reports(actions) == [(0, "trained")]
    assert (harness.state.version, harness.state.number, harness.state.round) == (1, 0, 0)


def test_without_a_warm_start_the_initial_model_counts_as_trained():
    harness = WorkerHarness()
    assert not of(harness.join(warm=False), StartTraining)
    assert harness.state.number == 0
    assert of(harness.execute(1), StartTraining)[0].number == 1


def test_a_server_never_trains_by_itself():
    harness = WorkerHarness(first_steps=0)
    assert not of(harness.join(warm=True), StartTraining)


def test_a_permanent_refusal_ends_the_process():
    harness = WorkerHarness()
    harness(SessionOpened())
    (action,) = harness.receive(Reject("schema", "tensor a differs"))
    assert action.code == 2
    assert "tensor a differs" in action.text


def test_a_temporary_refusal_is_retried():
    harness = WorkerHarness()
    harness(SessionOpened())
    assert harness.receive(Reject("unknown", "later", retry_s=2.0)) == []
    assert not sent(harness(Tick(), 1.9), Join)
    assert len(sent(harness(Tick(), 0.2), Join)) == 1
    assert not sent(harness(Tick(), 4.0), Join)


def test_a_join_ok_of_an_older_coordinator_is_ignored():
    harness = WorkerHarness()
    harness.join(epoch=3)
    assert harness.disk.epoch == 3
    harness.join(epoch=2, peers=())
    assert harness.machine.pulls.peers
    assert not harness.machine.session.is_joined


def test_echoes_and_complaints_change_nothing():
    harness = WorkerHarness()
    harness.join()
    assert harness.receive(Heartbeat(1, 1)) == []
    assert harness.receive(Complaint("x", "y")) == []


# Heartbeats and reports -------------------------------------------------------------------------


def test_heartbeats_go_out_every_period_while_joined():
    harness = WorkerHarness()
    assert not sent(harness(Tick()), Heartbeat)
    assert sent(harness.join(), Heartbeat)
    beats = [len(sent(harness(Tick(), 0.25), Heartbeat)) for _ in range(12)]
    assert sum(beats) == 3
    harness(SessionLost())
    assert not sent(harness(Tick(), 5.0), Heartbeat)


def test_heartbeats_carry_the_state():
    harness = WorkerHarness()
    harness.join()
    harness.execute(4)
    (beat,) = sent(harness(Tick(), 1.0), Heartbeat)
    assert (beat.phase, beat.last_round, beat.epoch, beat.disk_full) == ("training", 4, 1, False)


def test_reports_are_repeated_with_growing_pauses_until_acknowledged():
    harness = WorkerHarness()
    harness.join()
    assert reports(harness.execute(1)) == [(1, "mixed")]
    times = []
    for _ in range(400):
        if reports(harness(Tick(), 0.1)):
            times.append(harness.now)
    pauses = np.diff([0.0, *times])
    np.testing.assert_allclose(pauses[:5], [1, 2, 4, 8, 10], atol=0.11)
    harness.receive(ReportAck(1, "mixed"))
    assert not reports(harness(Tick(), 20.0))
    assert harness.state.reports == ()


def test_a_new_session_repeats_unacknowledged_reports():
    harness = WorkerHarness()
    harness.join()
    harness.execute(1)
    harness(SessionLost())
    assert not reports(harness.end_training(1, 1))
    assert reports(harness.join()) == [(1, "mixed"), (1, "trained")]


# Leaving ----------------------------------------------------------------------------------------


def test_stop_saves_leaves_and_exits():
    harness = WorkerHarness()
    harness.join()
    harness.execute(1)
    actions = harness.receive(Stop(1, "done"))
    assert [type(a).__name__ for a in actions] == ["SaveCheckpoint", "SendToCoordinator", "Exit"]
    assert sent(actions, Leave)
    assert actions[-1].code == 0


def test_stop_with_a_full_disk_exits_all_the_same():
    harness = WorkerHarness()
    harness.join()
    harness.disk_ok = False
    assert of(harness.receive(Stop(1)), Exit)[0].code == 3


# Incidents --------------------------------------------------------------------------------------


def test_what_a_worker_saw_of_its_peers_is_gathered():
    harness = WorkerHarness()
    harness(PeerIncident("w02", "flood", "too early"))
    assert not sent(harness(Tick(), 0.1), Incident)  # nobody is there to be told
    assert sent(harness.join(), Incident) == [Incident(2, "flood", 1, "too early")]
    for k in range(30):
        harness(PeerIncident("w02", "flood", f"pull {k}"))
        harness(PeerIncident("nobody", "flood", "a stranger"))
    assert not sent(harness(Tick(), 0.1), Incident)
    assert sent(harness(Tick(), 2.0), Incident) == [Incident(2, "flood", 30, "pull 29")]
    assert not sent(harness(Tick(), 5.0), Incident)
