"""Orders of a worker: carried out, queued, cancelled, and with missing models."""

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
from dystop.testbed.params import Guards
from dystop.testbed.protocol.messages import Cancel, Execute, Pull, Report, Roster, Row, Stage, Stop
from dystop.testbed.worker.state import first_state
from support.worker_fixtures import PEERS, Bench, ack_of, of, reports, said, vec

# Orders -----------------------------------------------------------------------------------------


def test_an_order_fetches_mixes_saves_reports_and_trains():
    bench = Bench()
    bench.join()
    actions = bench.execute(1, Pull(1, bytes_per_s=7.0), Pull(2))
    assert ack_of(actions) == "accepted"
    one, two = of(actions, StartPull)
    assert (one.name, one.address, one.request.round, one.request.bytes_per_s) == (
        "w01", "memory:1", 1, 7.0,
    )  # fmt: skip
    assert one.deadline_s == 5.0
    assert bench.machine.phase == "pulling"
    bench.now = 1.0
    assert not of(bench.bring(one, 3, 0), StartTraining)
    actions = bench.bring(two, 0, 6, version=4)
    kinds = [type(a).__name__ for a in actions]
    assert kinds == ["SaveCheckpoint", "SendToCoordinator", "StartTraining"]  # the save comes first
    (train,) = of(actions, StartTraining)
    np.testing.assert_allclose(train.vector, [1, 2])
    assert (train.number, train.steps) == (1, 4)
    (report,) = said(actions, Report)
    assert [(u.node, u.version, u.bytes, u.resumes) for u in report.used] == [
        (1, 1, 100, 1), (2, 4, 100, 1),
    ]  # fmt: skip
    assert report.used[0].distance == pytest.approx(3.0)
    assert (report.seconds, report.waited_s, report.number) == (1.0, 0.0, 0)
    assert bench.disk.last_round == 1
    assert bench.disk.training.round == 1


def test_the_result_is_published_saved_and_reported():
    bench = Bench()
    bench.join()
    bench.execute(1)
    actions = bench.end_training(5, 6)
    assert [type(a).__name__ for a in actions] == ["SaveCheckpoint", "SendToCoordinator"]
    (report,) = said(actions, Report)
    assert (report.kind, report.number, report.loss, report.samples) == ("trained", 1, 0.5, 64)
    assert report.version == bench.state.version > 0
    np.testing.assert_array_equal(bench.disk.published, [5, 6])
    np.testing.assert_array_equal(bench.disk.counters, [9])
    assert bench.machine.phase == "idle"


def test_an_order_while_training_waits_for_it():
    bench = Bench()
    bench.join(warm=True)
    bench.now = 1.0
    actions = bench.execute(1, Pull(1))
    assert ack_of(actions) == "queued"
    assert not of(actions, StartPull)
    bench.now = 3.0
    actions = bench.end_training(2, 2)
    assert reports(actions) == [(0, "trained")]
    (pull,) = of(actions, StartPull)
    (report,) = said(bench.bring(pull, 4, 4), Report)
    assert report.waited_s == 2.0
    np.testing.assert_array_equal(bench.state.mixed, [3, 3])


def test_a_queued_order_without_pulls_needs_one_write_only():
    bench = Bench()
    bench.join(warm=True)
    bench.execute(1)
    actions = bench.end_training(2, 2)
    assert len(of(actions, SaveCheckpoint)) == 1
    assert reports(actions) == [(0, "trained"), (1, "mixed")]
    assert len(of(actions, StartTraining)) == 1


@pytest.mark.parametrize("moment", ["pulling", "training", "after"])
def test_a_duplicate_has_no_effect(moment):
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(1)), StartPull)
    if moment != "pulling":
        bench.bring(pull, 1, 1)
    if moment == "after":
        bench.end_training(1, 1)
    before = bench.state
    actions = bench.execute(1, Pull(1))
    assert ack_of(actions) == "duplicate"
    assert not of(actions, StartPull) + of(actions, StartTraining) + of(actions, SaveCheckpoint)
    assert bench.state is before
    known = {"pulling": [], "training": [(1, "mixed")], "after": [(1, "mixed"), (1, "trained")]}
    assert reports(actions) == known[moment]


def test_a_stale_epoch_has_no_effect():
    bench = Bench()
    bench.join(epoch=2)
    assert ack_of(bench.execute(1, epoch=1)) == "stale_epoch"
    assert bench.tell(Cancel(1, 5)) == []
    assert bench.tell(Roster(1, ())) == []
    assert bench.tell(Stop(1)) == []
    assert bench.machine.pulls.peers
    assert ack_of(bench.execute(1, epoch=3)) == "accepted"
    assert bench.disk.epoch == 3


def test_cancel_while_pulling_keeps_the_own_model():
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(1)), StartPull)
    assert of(bench.tell(Cancel(1, 1)), CancelPull) == [CancelPull(pull.key)]
    assert bench.machine.phase == "idle"
    assert bench.bring(pull, 9, 9) == []
    assert ack_of(bench.execute(1, Pull(1))) == "duplicate"
    assert ack_of(bench.execute(2)) == "accepted"


def test_cancel_of_a_queued_order_forgets_it():
    bench = Bench()
    bench.join(warm=True)
    bench.execute(1)
    bench.tell(Cancel(1, 1))
    assert reports(bench.end_training(1, 1)) == [(0, "trained")]
    assert bench.machine.phase == "idle"


def test_cancel_after_the_mix_comes_too_late():
    bench = Bench()
    bench.join()
    bench.execute(1)
    assert bench.tell(Cancel(1, 1)) == []
    assert bench.machine.phase == "training"


def test_a_later_round_means_that_the_earlier_one_is_over():
    bench = Bench()
    bench.join()
    (old,) = of(bench.execute(1, Pull(1)), StartPull)
    actions = bench.execute(2, Pull(2))
    assert of(actions, CancelPull) == [CancelPull(old.key)]
    (new,) = of(actions, StartPull)
    assert reports(bench.bring(new, 2, 2)) == [(2, "mixed")]


def test_a_later_round_takes_the_place_of_a_queued_one():
    bench = Bench()
    bench.join(warm=True)
    bench.execute(1, Pull(1))
    bench.execute(2)
    assert reports(bench.end_training(1, 1)) == [(0, "trained"), (2, "mixed")]


# What does not arrive ---------------------------------------------------------------------------


def test_weights_are_shared_out_among_what_arrived():
    bench = Bench()
    bench.join()
    one, two = of(bench.execute(1, Pull(1), Pull(2), weights=(0.5, 0.25, 0.25)), StartPull)
    bench.bring(one, 3, 3)
    actions = bench(PullFailed(two.key, "unreachable", 10, 1.5))
    np.testing.assert_allclose(bench.state.mixed, [1, 1])
    (report,) = said(actions, Report)
    assert [(r.node, r.code, r.seconds, r.bytes) for r in report.rejected] == [
        (2, "unreachable", 1.5, 10)
    ]


def test_lost_weight_goes_to_the_own_model_where_the_row_says_so():
    bench = Bench()
    bench.join()
    pulls = (Pull(1), Pull(2))
    one, two = of(bench.execute(1, *pulls, weights=(0.5, 0.25, 0.25), to_self=True), StartPull)
    bench.bring(one, 4, 4)
    bench(PullFailed(two.key, "timeout"))
    np.testing.assert_allclose(bench.state.mixed, [1, 1])


def test_nothing_arrived_keeps_the_own_model():
    bench = Bench(first_state(vec(7, 7), np.zeros(1)))
    bench.join()
    (one,) = of(bench.execute(1, Pull(1), weights=(0.0, 1.0)), StartPull)
    actions = bench(PullFailed(one.key, "timeout"))
    assert reports(actions) == [(1, "mixed")]
    np.testing.assert_allclose(bench.state.mixed, [7, 7])


def test_the_budget_ends_even_if_the_process_reports_nothing():
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(1)), StartPull)
    assert not of(bench(Tick(), 5.1), CancelPull)
    actions = bench(Tick(), 0.5)
    assert of(actions, CancelPull) == [CancelPull(pull.key)]
    (report,) = said(actions, Report)
    assert report.rejected[0].code == "timeout"


def test_a_peer_that_is_not_in_the_roster_is_missing():
    bench = Bench()
    bench.join(peers=PEERS[:2])
    assert bench.execute(1, Pull(3)) == []  # a newer roster may be on its way
    actions = bench(Tick(), 3.1)
    assert not of(actions, StartPull)
    assert said(actions, Report)[0].rejected[0].code == "unreachable"


def test_bad_models_are_refused():
    bench = Bench(first_state(vec(1, 1), np.zeros(1)))
    bench.join()
    one, two, three = of(bench.execute(1, Pull(1), Pull(2), Pull(3)), StartPull)
    bench.bring(one, np.nan, 0)
    bench.bring(two, 1e6, 0)
    (report,) = said(bench.bring(three, 3, 3), Report)
    assert [(r.node, r.code) for r in report.rejected] == [(1, "not_finite"), (2, "norm")]
    assert [u.node for u in report.used] == [3]
    np.testing.assert_allclose(bench.state.mixed, [2, 2])


def test_the_weight_cap_and_aggregator_are_the_workers_own():
    bench = Bench(first_state(vec(0, 4), np.zeros(1)), guards=Guards(weight_cap=0.25))
    bench.join()
    (one,) = of(bench.execute(1, Pull(1), weights=(0.0, 1.0)), StartPull)
    bench.bring(one, 4, 0)
    np.testing.assert_allclose(bench.state.mixed, [1, 3])


def test_a_snapshot_inside_a_round_does_not_make_publications_look_replayed():
    bench = Bench()
    bench.join()
    stages = (Stage(), Stage((Pull(1, exact=True),), Row((0, 1), (0.5, 0.5))))
    (pull,) = of(bench.tell(Execute(1, 1, True, stages, budget_s=5.0)), StartPull)
    assert pull.request.stage == 1
    bench.bring(pull, 2, 2, version=8)
    bench.end_training(1, 1)
    (pull,) = of(bench.execute(2, Pull(1)), StartPull)
    (report,) = said(bench.bring(pull, 2, 2, version=7), Report)
    assert not report.rejected
    bench.end_training(1, 1)
    (pull,) = of(bench.execute(3, Pull(1)), StartPull)
    (report,) = said(bench.bring(pull, 2, 2, version=6), Report)
    assert report.rejected[0].code == "replay"


def test_a_peer_that_lives_elsewhere_now_may_begin_anew():
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(1)), StartPull)
    bench.bring(pull, 2, 2, version=70)
    bench.end_training(1, 1)
    bench.tell(Roster(1, (PEERS[0], replace(PEERS[1], address="memory:9"))))
    (pull,) = of(bench.execute(2, Pull(1)), StartPull)
    assert pull.address == "memory:9"
    assert not said(bench.bring(pull, 2, 2, version=1), Report)[0].rejected
