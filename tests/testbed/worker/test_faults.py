"""A worker whose training, process or disk fails."""

import numpy as np

from dystop.testbed.events import (
    Publication,
    SaveCheckpoint,
    SessionOpened,
    StartPull,
    StartTraining,
    Tick,
    TrainingFailed,
    TrainingFinished,
)
from dystop.testbed.protocol.messages import Heartbeat, Join, JoinOk, Pull, Report, ReportAck
from dystop.testbed.worker.state import VERSION_GAP, first_state
from support.worker_fixtures import PEERS, RUN, Bench, ack_of, of, reports, said, vec

# Training that goes wrong -----------------------------------------------------------------------


def test_a_result_that_is_not_finite_is_dropped():
    bench = Bench(first_state(vec(1, 1), np.zeros(1)))
    bench.join()
    bench.execute(1)
    (report,) = said(bench.end_training(np.inf, 0), Report)
    assert report.kind == "trained"
    assert "not finite" in report.text
    assert (bench.state.version, bench.state.number) == (0, 1)
    np.testing.assert_array_equal(bench.state.published, [1, 1])
    assert of(bench.execute(2), StartTraining)[0].number == 2


def test_a_training_that_raised_is_reported_and_the_queue_goes_on():
    bench = Bench()
    bench.join(warm=True)
    bench.execute(1)
    actions = bench(TrainingFailed(0, "x" * 500))
    assert reports(actions) == [(0, "trained"), (1, "mixed")]
    assert len(said(actions, Report)[0].text) == 200


def test_a_loss_that_is_no_number_is_not_reported():
    bench = Bench()
    bench.join()
    bench.execute(1)
    assert said(bench.end_training(1, 1, loss=float("nan")), Report)[0].loss is None


def test_the_end_of_another_training_is_ignored():
    bench = Bench()
    bench.join()
    bench.execute(1)
    assert bench.end_training(1, 1, number=7) == []
    assert bench(TrainingFailed(7, "?")) == []
    bench.end_training(1, 1)
    assert bench(TrainingFinished(1, vec(9, 9), np.array([1]), 0.0, 1, 1.0)) == []


# Restarts ---------------------------------------------------------------------------------------


def test_a_restart_in_the_middle_of_training_trains_again():
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(1)), StartPull)
    (train,) = of(bench.bring(pull, 2, 2), StartTraining)
    again = bench.restart()
    actions = again(SessionOpened())
    (repeat,) = of(actions, StartTraining)
    assert (repeat.number, repeat.steps, repeat.rate) == (train.number, train.steps, train.rate)
    np.testing.assert_array_equal(repeat.vector, train.vector)
    (join,) = said(actions, Join)
    assert (join.last_round, join.phase) == (1, "training")
    assert reports(again.tell(JoinOk(RUN, 1, 1, 1.0, True, PEERS))) == [(1, "mixed")]
    assert ack_of(again.execute(1, Pull(1))) == "duplicate"


def test_a_restart_before_the_mix_takes_the_order_again():
    bench = Bench()
    bench.join()
    bench.execute(1, Pull(1))
    again = bench.restart()
    assert again.machine.phase == "idle"
    again.join()
    assert ack_of(again.execute(1, Pull(1))) == "accepted"


def test_versions_are_never_used_twice():
    bench = Bench()
    bench.join()
    bench.execute(1)
    bench.end_training(1, 1)
    again = bench.restart()
    again.join()
    again.execute(2)
    again.end_training(2, 2)
    assert again.state.version > bench.state.version + VERSION_GAP


def test_after_a_restart_exact_pulls_of_the_open_round_can_still_be_served():
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(1)), StartPull)
    bench.bring(pull, 2, 2)
    again = bench.restart()
    again.join()
    (served,) = again.ask(round=1, exact=True)
    np.testing.assert_array_equal(served.answer.vector, [0, 0])
    (served,) = again.ask(round=1, exact=True, stage=1)
    np.testing.assert_array_equal(served.answer.vector, [1, 1])


# The disk ---------------------------------------------------------------------------------------


def test_a_full_disk_fails_the_order_and_keeps_the_worker_up():
    bench = Bench()
    bench.join()
    bench.disk_ok = False
    actions = bench.execute(1)
    assert not of(actions, StartTraining)
    (report,) = said(actions, Report)
    assert (report.kind, report.round) == ("failed", 1)
    assert "full" in report.text
    assert bench.machine.phase == "idle"
    (beat,) = said(bench(Tick(), 1.0), Heartbeat)
    assert beat.disk_full
    assert ack_of(bench.execute(1)) == "duplicate"
    (served,) = bench.ask(round=5)
    assert isinstance(served.answer, Publication)


def test_the_disk_is_tried_again_until_it_takes_the_state():
    bench = Bench()
    bench.join()
    bench.disk_ok = False
    bench.execute(1)
    assert not of(bench(Tick(), 1.0), SaveCheckpoint)
    assert of(bench(Tick(), 4.1), SaveCheckpoint)
    bench.disk_ok = True
    assert of(bench(Tick(), 5.1), SaveCheckpoint)
    assert bench.disk.last_round == 1
    (beat,) = said(bench(Tick(), 1.0), Heartbeat)
    assert not beat.disk_full
    assert len(of(bench.execute(2), StartTraining)) == 1


def test_a_result_that_could_not_be_written_is_served_but_not_reported_yet():
    bench = Bench()
    bench.join()
    bench.execute(1)
    bench.tell(ReportAck(1, "mixed"))
    bench.disk_ok = False
    assert not reports(bench.end_training(1, 1))
    assert not reports(bench(Tick(), 2.0))
    np.testing.assert_array_equal(bench.ask(round=5)[0].answer.vector, [1, 1])
    bench.disk_ok = True
    bench(Tick(), 5.1)
    assert reports(bench(Tick(), 1.1)) == [(1, "trained")]


def test_a_passive_mix_that_could_not_be_written_is_taken_back():
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(1), train=False), StartPull)
    bench.disk_ok = False
    assert reports(bench.bring(pull, 4, 4)) == [(1, "failed")]
    np.testing.assert_array_equal(bench.state.published, [0, 0])
    np.testing.assert_array_equal(bench.ask(round=9)[0].answer.vector, [0, 0])


def test_the_first_training_begins_when_the_disk_works_again():
    bench = Bench()
    bench.disk_ok = False
    assert not of(bench.join(warm=True), StartTraining)
    assert bench.state.number == -1
    bench.disk_ok = True
    bench(Tick(), 5.1)
    assert len(of(bench(Tick(), 0.1), StartTraining)) == 1
