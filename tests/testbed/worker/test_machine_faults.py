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
from support.testbed.worker_fixtures import (
    PEERS,
    RUN,
    WorkerHarness,
    ack_of,
    of,
    reports,
    sent,
    vec,
)

# Training that goes wrong -----------------------------------------------------------------------


def test_a_result_that_is_not_finite_is_dropped():
    harness = WorkerHarness(first_state(vec(1, 1), np.zeros(1)))
    harness.join()
    harness.execute(1)
    (report,) = sent(harness.end_training(np.inf, 0), Report)
    assert report.kind == "trained"
    assert "not finite" in report.text
    assert (harness.state.version, harness.state.number) == (0, 1)
    np.testing.assert_array_equal(harness.state.published, [1, 1])
    assert of(harness.execute(2), StartTraining)[0].number == 2


def test_a_training_that_raised_is_reported_and_the_queue_goes_on():
    harness = WorkerHarness()
    harness.join(warm=True)
    harness.execute(1)
    actions = harness(TrainingFailed(0, "x" * 500))
    assert reports(actions) == [(0, "trained"), (1, "mixed")]
    assert len(sent(actions, Report)[0].text) == 200


def test_a_loss_that_is_no_number_is_not_reported():
    harness = WorkerHarness()
    harness.join()
    harness.execute(1)
    assert sent(harness.end_training(1, 1, loss=float("nan")), Report)[0].loss is None


def test_the_end_of_another_training_is_ignored():
    harness = WorkerHarness()
    harness.join()
    harness.execute(1)
    assert harness.end_training(1, 1, number=7) == []
    assert harness(TrainingFailed(7, "?")) == []
    harness.end_training(1, 1)
    assert harness(TrainingFinished(1, vec(9, 9), np.array([1]), 0.0, 1, 1.0)) == []


# Restarts ---------------------------------------------------------------------------------------


def test_a_restart_in_the_middle_of_training_trains_again():
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(1)), StartPull)
    (train,) = of(harness.finish_pull(pull, 2, 2), StartTraining)
    again = harness.restart()
    actions = again(SessionOpened())
    (repeat,) = of(actions, StartTraining)
    assert (repeat.number, repeat.steps, repeat.rate) == (train.number, train.steps, train.rate)
    np.testing.assert_array_equal(repeat.vector, train.vector)
    (join,) = sent(actions, Join)
    assert (join.last_round, join.phase) == (1, "training")
    assert reports(again.receive(JoinOk(RUN, 1, 1, 1.0, True, PEERS))) == [(1, "mixed")]
    assert ack_of(again.execute(1, Pull(1))) == "duplicate"


def test_a_restart_before_the_mix_takes_the_order_again():
    harness = WorkerHarness()
    harness.join()
    harness.execute(1, Pull(1))
    again = harness.restart()
    assert again.machine.phase == "idle"
    again.join()
    assert ack_of(again.execute(1, Pull(1))) == "accepted"


def test_versions_are_never_used_twice():
    harness = WorkerHarness()
    harness.join()
    harness.execute(1)
    harness.end_training(1, 1)
    again = harness.restart()
    again.join()
    again.execute(2)
    again.end_training(2, 2)
    assert again.state.version > harness.state.version + VERSION_GAP


def test_after_a_restart_exact_pulls_of_the_open_round_can_still_be_served():
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(1)), StartPull)
    harness.finish_pull(pull, 2, 2)
    again = harness.restart()
    again.join()
    (served,) = again.ask(round=1, exact=True)
    np.testing.assert_array_equal(served.answer.vector, [0, 0])
    (served,) = again.ask(round=1, exact=True, stage=1)
    np.testing.assert_array_equal(served.answer.vector, [1, 1])


# The disk ---------------------------------------------------------------------------------------


def test_a_full_disk_fails_the_order_and_keeps_the_worker_up():
    harness = WorkerHarness()
    harness.join()
    harness.disk_ok = False
    actions = harness.execute(1)
    assert not of(actions, StartTraining)
    (report,) = sent(actions, Report)
    assert (report.kind, report.round) == ("failed", 1)
    assert "full" in report.text
    assert harness.machine.phase == "idle"
    (beat,) = sent(harness(Tick(), 1.0), Heartbeat)
    assert beat.disk_full
    assert ack_of(harness.execute(1)) == "duplicate"
    (served,) = harness.ask(round=5)
    assert isinstance(served.answer, Publication)


def test_the_disk_is_tried_again_until_it_takes_the_state():
    harness = WorkerHarness()
    harness.join()
    harness.disk_ok = False
    harness.execute(1)
    assert not of(harness(Tick(), 1.0), SaveCheckpoint)
    assert of(harness(Tick(), 4.1), SaveCheckpoint)
    harness.disk_ok = True
    assert of(harness(Tick(), 5.1), SaveCheckpoint)
    assert harness.disk.last_round == 1
    (beat,) = sent(harness(Tick(), 1.0), Heartbeat)
    assert not beat.disk_full
    assert len(of(harness.execute(2), StartTraining)) == 1


def test_a_result_that_could_not_be_written_is_served_but_not_reported_yet():
    harness = WorkerHarness()
    harness.join()
    harness.execute(1)
    harness.receive(ReportAck(1, "mixed"))
    harness.disk_ok = False
    assert not reports(harness.end_training(1, 1))
    assert not reports(harness(Tick(), 2.0))
    np.testing.assert_array_equal(harness.ask(round=5)[0].answer.vector, [1, 1])
    harness.disk_ok = True
    harness(Tick(), 5.1)
    assert reports(harness(Tick(), 1.1)) == [(1, "trained")]


def test_a_passive_mix_that_could_not_be_written_is_undone():
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(1), train=False), StartPull)
    harness.disk_ok = False
    assert reports(harness.finish_pull(pull, 4, 4)) == [(1, "failed")]
    np.testing.assert_array_equal(harness.state.published, [0, 0])
    np.testing.assert_array_equal(harness.ask(round=9)[0].answer.vector, [0, 0])


def test_the_first_training_begins_when_the_disk_works_again():
    harness = WorkerHarness()
    harness.disk_ok = False
    assert not of(harness.join(warm=True), StartTraining)
    assert harness.state.number == -1
    harness.disk_ok = True
    harness(Tick(), 5.1)
    assert len(of(harness(Tick(), 0.1), StartTraining)) == 1
