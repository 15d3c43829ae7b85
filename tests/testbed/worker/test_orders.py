"""Orders of a worker: executed, queued, cancelled, and with missing models."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.testbed.events import (
    CancelPull,
    PullFailed,
    SaveCheckpoint,
    StartPull,
    StartTraining,
    Tick,
)
from dystop.testbed.params import Guards, TestbedParams
from dystop.testbed.protocol.messages import Cancel, Execute, Pull, Report, Roster, Row, Stage, Stop
from dystop.testbed.worker.state import first_state
from support.testbed.worker_fixtures import PEERS, WorkerHarness, ack_of, of, reports, sent, vec

# Orders -----------------------------------------------------------------------------------------


def test_an_order_pulls_mixes_saves_reports_and_trains():
    harness = WorkerHarness()
    harness.join()
    actions = harness.execute(1, Pull(1, bytes_per_s=7.0), Pull(2))
    assert ack_of(actions) == "accepted"
    one, two = of(actions, StartPull)
    assert (one.name, one.address, one.request.round, one.request.bytes_per_s) == (
        "w01", "memory:1", 1, 7.0,
    )  # fmt: skip
    assert one.deadline_s == 5.0
    assert harness.machine.phase == "pulling"
    harness.now = 1.0
    assert not of(harness.finish_pull(one, 3, 0), StartTraining)
    actions = harness.finish_pull(two, 0, 6, version=4)
    kinds = [type(a).__name__ for a in actions]
    assert kinds == ["SaveCheckpoint", "SendToCoordinator", "StartTraining"]  # the save comes first
    (train,) = of(actions, StartTraining)
    np.testing.assert_allclose(train.vector, [1, 2])
    assert (train.number, train.steps) == (1, 4)
    (report,) = sent(actions, Report)
    assert [(u.node, u.version, u.bytes, u.resumes) for u in report.used] == [
        (1, 1, 100, 1), (2, 4, 100, 1),
    ]  # fmt: skip
    assert report.used[0].distance == pytest.approx(3.0)
    assert (report.seconds, report.waited_s, report.number) == (1.0, 0.0, 0)
    assert harness.disk.last_round == 1
    assert harness.disk.training.round == 1


def test_the_result_is_published_saved_and_reported():
    harness = WorkerHarness()
    harness.join()
    harness.execute(1)
    actions = harness.end_training(5, 6)
    assert [type(a).__name__ for a in actions] == ["SaveCheckpoint", "SendToCoordinator"]
    (report,) = sent(actions, Report)
    assert (report.kind, report.number, report.loss, report.samples) == ("trained", 1, 0.5, 64)
    assert report.version == harness.state.version > 0
    np.testing.assert_array_equal(harness.disk.published, [5, 6])
    np.testing.assert_array_equal(harness.disk.models.counters, [9])
    assert harness.machine.phase == "idle"


def test_an_order_while_training_waits_for_it():
    harness = WorkerHarness()
    harness.join(warm=True)
    harness.now = 1.0
    actions = harness.execute(1, Pull(1))
    assert ack_of(actions) == "queued"
    assert not of(actions, StartPull)
    harness.now = 3.0
    actions = harness.end_training(2, 2)
    assert reports(actions) == [(0, "trained")]
    (pull,) = of(actions, StartPull)
    (report,) = sent(harness.finish_pull(pull, 4, 4), Report)
    assert report.waited_s == 2.0
    np.testing.assert_array_equal(harness.state.models.latest, [3, 3])


def test_a_queued_order_without_pulls_needs_one_write_only():
    harness = WorkerHarness()
    harness.join(warm=True)
    harness.execute(1)
    actions = harness.end_training(2, 2)
    assert len(of(actions, SaveCheckpoint)) == 1
    assert reports(actions) == [(0, "trained"), (1, "mixed")]
    assert len(of(actions, StartTraining)) == 1


@pytest.mark.parametrize("moment", ["pulling", "training", "after"])
def test_a_duplicate_has_no_effect(moment):
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(1)), StartPull)
    if moment != "pulling":
        harness.finish_pull(pull, 1, 1)
    if moment == "after":
        harness.end_training(1, 1)
    before = harness.state
    actions = harness.execute(1, Pull(1))
    assert ack_of(actions) == "duplicate"
    assert not of(actions, StartPull) + of(actions, StartTraining) + of(actions, SaveCheckpoint)
    assert harness.state is before
    known = {"pulling": [], "training": [(1, "mixed")], "after": [(1, "mixed"), (1, "trained")]}
    assert reports(actions) == known[moment]


def test_a_stale_epoch_has_no_effect():
    harness = WorkerHarness()
    harness.join(epoch=2)
    assert ack_of(harness.execute(1, epoch=1)) == "stale_epoch"
    assert harness.receive(Cancel(1, 5)) == []
    assert harness.receive(Roster(1, ())) == []
    assert harness.receive(Stop(1)) == []
    assert harness.machine.pulls.peers
    assert ack_of(harness.execute(1, epoch=3)) == "accepted"
    assert harness.disk.epoch == 3


def test_cancel_while_pulling_keeps_the_own_model():
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(1)), StartPull)
    assert of(harness.receive(Cancel(1, 1)), CancelPull) == [CancelPull(pull.key)]
    assert harness.machine.phase == "idle"
    assert harness.finish_pull(pull, 9, 9) == []
    assert ack_of(harness.execute(1, Pull(1))) == "duplicate"
    assert ack_of(harness.execute(2)) == "accepted"


def test_cancel_removes_a_queued_order():
    harness = WorkerHarness()
    harness.join(warm=True)
    harness.execute(1)
    harness.receive(Cancel(1, 1))
    assert reports(harness.end_training(1, 1)) == [(0, "trained")]
    assert harness.machine.phase == "idle"


def test_cancel_after_the_mix_comes_too_late():
    harness = WorkerHarness()
    harness.join()
    harness.execute(1)
    assert harness.receive(Cancel(1, 1)) == []
    assert harness.machine.phase == "training"


def test_a_later_round_means_that_the_earlier_one_is_over():
    harness = WorkerHarness()
    harness.join()
    (old,) = of(harness.execute(1, Pull(1)), StartPull)
    actions = harness.execute(2, Pull(2))
    assert of(actions, CancelPull) == [CancelPull(old.key)]
    (new,) = of(actions, StartPull)
    assert reports(harness.finish_pull(new, 2, 2)) == [(2, "mixed")]


def test_a_later_round_takes_the_place_of_a_queued_one():
    harness = WorkerHarness()
    harness.join(warm=True)
    harness.execute(1, Pull(1))
    harness.execute(2)
    assert reports(harness.end_training(1, 1)) == [(0, "trained"), (2, "mixed")]


# What does not arrive ---------------------------------------------------------------------------


def test_weights_are_shared_out_among_what_arrived():
    harness = WorkerHarness()
    harness.join()
    one, two = of(harness.execute(1, Pull(1), Pull(2), weights=(0.5, 0.25, 0.25)), StartPull)
    harness.finish_pull(one, 3, 3)
    actions = harness(PullFailed(two.key, "unreachable", 10, 1.5))
    np.testing.assert_allclose(harness.state.models.latest, [1, 1])
    (report,) = sent(actions, Report)
    assert [(r.node, r.code, r.seconds, r.bytes) for r in report.rejected] == [
        (2, "unreachable", 1.5, 10)
    ]


def test_lost_weight_goes_to_the_own_model_if_the_row_requires_it():
    harness = WorkerHarness()
    harness.join()
    pulls = (Pull(1), Pull(2))
    one, two = of(harness.execute(1, *pulls, weights=(0.5, 0.25, 0.25), to_self=True), StartPull)
    harness.finish_pull(one, 4, 4)
    harness(PullFailed(two.key, "timeout"))
    np.testing.assert_allclose(harness.state.models.latest, [1, 1])


def test_nothing_arrived_keeps_the_own_model():
    harness = WorkerHarness(first_state(vec(7, 7), np.zeros(1)))
    harness.join()
    (one,) = of(harness.execute(1, Pull(1), weights=(0.0, 1.0)), StartPull)
    actions = harness(PullFailed(one.key, "timeout"))
    assert reports(actions) == [(1, "mixed")]
    np.testing.assert_allclose(harness.state.models.latest, [7, 7])


def test_the_budget_ends_even_if_the_process_reports_nothing():
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(1)), StartPull)
    assert not of(harness(Tick(), 5.1), CancelPull)
    actions = harness(Tick(), 0.5)
    assert of(actions, CancelPull) == [CancelPull(pull.key)]
    (report,) = sent(actions, Report)
    assert report.rejected[0].code == "timeout"


def test_a_peer_that_is_not_in_the_roster_is_missing():
    harness = WorkerHarness()
    harness.join(peers=PEERS[:2])
    assert harness.execute(1, Pull(3)) == []  # a newer roster may be on its way
    actions = harness(Tick(), 3.1)
    assert not of(actions, StartPull)
    assert sent(actions, Report)[0].rejected[0].code == "unreachable"


def test_bad_models_are_refused():
    harness = WorkerHarness(first_state(vec(1, 1), np.zeros(1)))
    harness.join()
    one, two, three = of(harness.execute(1, Pull(1), Pull(2), Pull(3)), StartPull)
    harness.finish_pull(one, np.nan, 0)
    harness.finish_pull(two, 1e6, 0)
    (report,) = sent(harness.finish_pull(three, 3, 3), Report)
    assert [(r.node, r.code) for r in report.rejected] == [(1, "not_finite"), (2, "norm")]
    assert [u.node for u in report.used] == [3]
    np.testing.assert_allclose(harness.state.models.latest, [2, 2])


def test_the_weight_cap_and_aggregator_are_the_workers_own():
    params = TestbedParams(guards=Guards(weight_cap=0.25))
    harness = WorkerHarness(first_state(vec(0, 4), np.zeros(1)), params=params)
    harness.join()
    (one,) = of(harness.execute(1, Pull(1), weights=(0.0, 1.0)), StartPull)
    harness.finish_pull(one, 4, 0)
    np.testing.assert_allclose(harness.state.models.latest, [1, 3])


def test_a_snapshot_inside_a_round_does_not_make_publications_look_replayed():
    harness = WorkerHarness()
    harness.join()
    stages = (Stage(), Stage((Pull(1, exact=True),), Row((0, 1), (0.5, 0.5))))
    (pull,) = of(harness.receive(Execute(1, 1, True, stages, budget_s=5.0)), StartPull)
    assert pull.request.stage == 1
    harness.finish_pull(pull, 2, 2, version=8)
    harness.end_training(1, 1)
    (pull,) = of(harness.execute(2, Pull(1)), StartPull)
    (report,) = sent(harness.finish_pull(pull, 2, 2, version=7), Report)
    assert not report.rejected
    harness.end_training(1, 1)
    (pull,) = of(harness.execute(3, Pull(1)), StartPull)
    (report,) = sent(harness.finish_pull(pull, 2, 2, version=6), Report)
    assert report.rejected[0].code == "replay"


def test_a_peer_at_a_new_address_may_start_over():
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(1)), StartPull)
    harness.finish_pull(pull, 2, 2, version=70)
    harness.end_training(1, 1)
    harness.receive(Roster(1, (PEERS[0], replace(PEERS[1], address="memory:9"))))
    (pull,) = of(harness.execute(2, Pull(1)), StartPull)
    assert pull.address == "memory:9"
    assert not sent(harness.finish_pull(pull, 2, 2, version=1), Report)[0].rejected
