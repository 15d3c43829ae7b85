"""The worker and its coordinator: joining, heartbeats, reports, leaving."""

import numpy as np

from dystop.testbed.events import Exit, SessionLost, SessionOpened, StartTraining, Tick
from dystop.testbed.protocol.messages import (
    Complaint,
    Heartbeat,
    Join,
    JoinOk,
    Leave,
    Reject,
    ReportAck,
    Stop,
)
from support.worker_fixtures import PEERS, RUN, Bench, of, refusal, reports, said

# Joining ----------------------------------------------------------------------------------------


def test_a_new_worker_learns_its_run_and_keeps_it():
    bench = Bench()
    assert refusal(bench.ask(peer="observer", round=1)) == "not_authorised"  # of which run?
    bench.join()
    assert bench.disk.run == RUN
    again = Bench(state=bench.disk)
    (join,) = said(again(SessionOpened()), Join)
    assert join.run == RUN
    assert not again.tell(JoinOk("cd" * 16, 9, 1, 1.0, True, PEERS))  # nobody moves us elsewhere
    assert (again.state.run, again.state.epoch) == (RUN, 1)
    (end,) = of(again.tell(Reject("run", "of run ab, this is cd")), Exit)
    assert (end.code, end.text) == (2, "the coordinator refused: run: of run ab, this is cd")


def test_join_says_who_and_where():
    bench = Bench(data_size=10, label_counts=(4, 6), address="memory:0", software="1")
    (join,) = said(bench(SessionOpened()), Join)
    assert (join.run, join.incarnation, join.address) == ("", 5, "memory:0")
    assert (join.version, join.number, join.last_round, join.phase) == (0, -1, 0, "idle")
    assert join.label_counts == (4, 6)


def test_a_new_worker_begins_training_under_a_warm_start():
    bench = Bench()
    (train,) = of(bench.join(warm=True), StartTraining)
    assert (train.number, train.steps, train.rate) == (0, 3, 1.0)
    assert bench.disk.training.number == 0  # written before it began
    assert bench.machine.phase == "training"
    actions = bench.end_training(1, 2)
    assert reports(actions) == [(0, "trained")]
    assert (bench.state.version, bench.state.number, bench.state.round) == (1, 0, 0)


def test_without_a_warm_start_the_initial_model_counts_as_trained():
    bench = Bench()
    assert not of(bench.join(warm=False), StartTraining)
    assert bench.state.number == 0
    assert of(bench.execute(1), StartTraining)[0].number == 1


def test_a_server_never_trains_by_itself():
    bench = Bench(first_steps=0)
    assert not of(bench.join(warm=True), StartTraining)


def test_a_refusal_without_hope_ends_the_process():
    bench = Bench()
    bench(SessionOpened())
    (action,) = bench.tell(Reject("schema", "tensor a differs"))
    assert action.code == 2
    assert "tensor a differs" in action.text


def test_a_refusal_with_hope_is_tried_again():
    bench = Bench()
    bench(SessionOpened())
    assert bench.tell(Reject("unknown", "later", retry_s=2.0)) == []
    assert not said(bench(Tick(), 1.9), Join)
    assert len(said(bench(Tick(), 0.2), Join)) == 1
    assert not said(bench(Tick(), 4.0), Join)


def test_a_join_ok_of_an_older_coordinator_is_ignored():
    bench = Bench()
    bench.join(epoch=3)
    assert bench.disk.epoch == 3
    bench.join(epoch=2, peers=())
    assert bench.machine.pulls.peers
    assert not bench.machine.session.is_joined


def test_echoes_and_complaints_change_nothing():
    bench = Bench()
    bench.join()
    assert bench.tell(Heartbeat(1, 1)) == []
    assert bench.tell(Complaint("x", "y")) == []


# Heartbeats and reports -------------------------------------------------------------------------


def test_heartbeats_go_out_every_period_while_joined():
    bench = Bench()
    assert not said(bench(Tick()), Heartbeat)
    assert said(bench.join(), Heartbeat)
    beats = [len(said(bench(Tick(), 0.25), Heartbeat)) for _ in range(12)]
    assert sum(beats) == 3
    bench(SessionLost())
    assert not said(bench(Tick(), 5.0), Heartbeat)


def test_heartbeats_carry_the_state():
    bench = Bench()
    bench.join()
    bench.execute(4)
    (beat,) = said(bench(Tick(), 1.0), Heartbeat)
    assert (beat.phase, beat.last_round, beat.epoch, beat.disk_full) == ("training", 4, 1, False)


def test_reports_are_repeated_with_growing_pauses_until_acknowledged():
    bench = Bench()
    bench.join()
    assert reports(bench.execute(1)) == [(1, "mixed")]
    times = []
    for _ in range(400):
        if reports(bench(Tick(), 0.1)):
            times.append(bench.now)
    pauses = np.diff([0.0, *times])
    np.testing.assert_allclose(pauses[:5], [1, 2, 4, 8, 10], atol=0.11)
    bench.tell(ReportAck(1, "mixed"))
    assert not reports(bench(Tick(), 20.0))
    assert bench.state.reports == ()


def test_a_new_session_hears_what_was_not_acknowledged():
    bench = Bench()
    bench.join()
    bench.execute(1)
    bench(SessionLost())
    assert not reports(bench.end_training(1, 1))
    assert reports(bench.join()) == [(1, "mixed"), (1, "trained")]


# Leaving ----------------------------------------------------------------------------------------


def test_stop_saves_leaves_and_exits():
    bench = Bench()
    bench.join()
    bench.execute(1)
    actions = bench.tell(Stop(1, "done"))
    assert [type(a).__name__ for a in actions] == ["SaveCheckpoint", "SendToCoordinator", "Exit"]
    assert said(actions, Leave)
    assert actions[-1].code == 0


def test_stop_with_a_full_disk_exits_all_the_same():
    bench = Bench()
    bench.join()
    bench.disk_ok = False
    assert of(bench.tell(Stop(1)), Exit)[0].code == 3
