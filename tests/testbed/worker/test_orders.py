"""Orders of a worker: carried out, queued, cancelled, and what does not arrive."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.testbed.events import Abandon, Fetch, FetchFailed, Save, Tick, Train
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
    one, two = of(actions, Fetch)
    assert (one.name, one.address, one.request.round, one.request.bytes_per_s) == (
        "w01", "memory:1", 1, 7.0,
    )  # fmt: skip
    assert one.deadline_s == 5.0
    assert bench.machine.phase == "pulling"
    bench.now = 1.0
    assert not of(bench.bring(one, 3, 0), Train)
    actions = bench.bring(two, 0, 6, version=4)
    kinds = [type(a).__name__ for a in actions]
    assert kinds == ["Save", "Say", "Train"]  # nothing is said or begun before it is written
    (train,) = of(actions, Train)
    np.testing.assert_allclose(train.vector, [1, 2])
    assert (train.number, train.steps) == (1, 4)
    (report,) = said(actions, Report)
    assert [(u.node, u.version, u.bytes, u.resumes) for u in report.used] == [
        (1, 1, 100, 1), (2, 4, 100, 1),
    ]  # fmt: skip
    assert report.used[0].distance == pytest.approx(3.0)
    assert (report.seconds, report.waited_s, report.number) == (1.0, 0.0, 0)
    assert bench.disk.last_round == 1
    assert bench.disk.flight.round == 1


def test_the_result_is_published_saved_and_reported():
    bench = Bench()
    bench.join()
    bench.execute(1)
    actions = bench.end_training(5, 6)
    assert [type(a).__name__ for a in actions] == ["Save", "Say"]
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
    assert not of(actions, Fetch)
    bench.now = 3.0
    actions = bench.end_training(2, 2)
    assert reports(actions) == [(0, "trained")]
    (fetch,) = of(actions, Fetch)
    (report,) = said(bench.bring(fetch, 4, 4), Report)
    assert report.waited_s == 2.0
    np.testing.assert_array_equal(bench.state.mixed, [3, 3])


def test_a_queued_order_without_pulls_needs_one_write_only():
    bench = Bench()
    bench.join(warm=True)
    bench.execute(1)
    actions = bench.end_training(2, 2)
    assert len(of(actions, Save)) == 1
    assert reports(actions) == [(0, "trained"), (1, "mixed")]
    assert len(of(actions, Train)) == 1


@pytest.mark.parametrize("moment", ["pulling", "training", "after"])
def test_a_duplicate_has_no_effect(moment):
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1)), Fetch)
    if moment != "pulling":
        bench.bring(fetch, 1, 1)
    if moment == "after":
        bench.end_training(1, 1)
    before = bench.state
    actions = bench.execute(1, Pull(1))
    assert ack_of(actions) == "duplicate"
    assert not of(actions, Fetch) + of(actions, Train) + of(actions, Save)
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
    assert bench.machine.fetches.peers
    assert ack_of(bench.execute(1, epoch=3)) == "accepted"
    assert bench.disk.epoch == 3


def test_cancel_while_pulling_keeps_the_own_model():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1)), Fetch)
    assert of(bench.tell(Cancel(1, 1)), Abandon) == [Abandon(fetch.key)]
    assert bench.machine.phase == "idle"
    assert bench.bring(fetch, 9, 9) == []
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
    (old,) = of(bench.execute(1, Pull(1)), Fetch)
    actions = bench.execute(2, Pull(2))
    assert of(actions, Abandon) == [Abandon(old.key)]
    (new,) = of(actions, Fetch)
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
    one, two = of(bench.execute(1, Pull(1), Pull(2), weights=(0.5, 0.25, 0.25)), Fetch)
    bench.bring(one, 3, 3)
    actions = bench(FetchFailed(two.key, "unreachable", 10, 1.5))
    np.testing.assert_allclose(bench.state.mixed, [1, 1])
    (report,) = said(actions, Report)
    assert [(r.node, r.code, r.seconds, r.bytes) for r in report.rejected] == [
        (2, "unreachable", 1.5, 10)
    ]


def test_lost_weight_goes_to_the_own_model_where_the_row_says_so():
    bench = Bench()
    bench.join()
    pulls = (Pull(1), Pull(2))
    one, two = of(bench.execute(1, *pulls, weights=(0.5, 0.25, 0.25), to_self=True), Fetch)
    bench.bring(one, 4, 4)
    bench(FetchFailed(two.key, "timeout"))
    np.testing.assert_allclose(bench.state.mixed, [1, 1])


def test_nothing_arrived_keeps_the_own_model():
    bench = Bench(first_state(vec(7, 7), np.zeros(1)))
    bench.join()
    (one,) = of(bench.execute(1, Pull(1), weights=(0.0, 1.0)), Fetch)
    actions = bench(FetchFailed(one.key, "timeout"))
    assert reports(actions) == [(1, "mixed")]
    np.testing.assert_allclose(bench.state.mixed, [7, 7])


def test_the_budget_ends_even_if_the_shell_says_nothing():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1)), Fetch)
    assert not of(bench(Tick(), 5.1), Abandon)
    actions = bench(Tick(), 0.5)
    assert of(actions, Abandon) == [Abandon(fetch.key)]
    (report,) = said(actions, Report)
    assert report.rejected[0].code == "timeout"


def test_a_peer_that_is_not_in_the_roster_is_missing():
    bench = Bench()
    bench.join(peers=PEERS[:2])
    assert bench.execute(1, Pull(3)) == []  # a newer roster may be on its way
    actions = bench(Tick(), 3.1)
    assert not of(actions, Fetch)
    assert said(actions, Report)[0].rejected[0].code == "unreachable"


def test_bad_models_are_refused():
    bench = Bench(first_state(vec(1, 1), np.zeros(1)))
    bench.join()
    one, two, three = of(bench.execute(1, Pull(1), Pull(2), Pull(3)), Fetch)
    bench.bring(one, np.nan, 0)
    bench.bring(two, 1e6, 0)
    (report,) = said(bench.bring(three, 3, 3), Report)
    assert [(r.node, r.code) for r in report.rejected] == [(1, "not_finite"), (2, "norm")]
    assert [u.node for u in report.used] == [3]
    np.testing.assert_allclose(bench.state.mixed, [2, 2])


def test_the_weight_cap_and_aggregator_are_the_workers_own():
    bench = Bench(first_state(vec(0, 4), np.zeros(1)), guards=Guards(weight_cap=0.25))
    bench.join()
    (one,) = of(bench.execute(1, Pull(1), weights=(0.0, 1.0)), Fetch)
    bench.bring(one, 4, 0)
    np.testing.assert_allclose(bench.state.mixed, [1, 3])


def test_a_snapshot_inside_a_round_does_not_make_publications_look_replayed():
    bench = Bench()
    bench.join()
    stages = (Stage(), Stage((Pull(1, exact=True),), Row((0, 1), (0.5, 0.5))))
    (fetch,) = of(bench.tell(Execute(1, 1, True, stages, budget_s=5.0)), Fetch)
    assert fetch.request.stage == 1
    bench.bring(fetch, 2, 2, version=8)
    bench.end_training(1, 1)
    (fetch,) = of(bench.execute(2, Pull(1)), Fetch)
    (report,) = said(bench.bring(fetch, 2, 2, version=7), Report)
    assert not report.rejected
    bench.end_training(1, 1)
    (fetch,) = of(bench.execute(3, Pull(1)), Fetch)
    (report,) = said(bench.bring(fetch, 2, 2, version=6), Report)
    assert report.rejected[0].code == "replay"


def test_a_peer_that_lives_elsewhere_now_may_begin_anew():
    bench = Bench()
    bench.join()
    (fetch,) = of(bench.execute(1, Pull(1)), Fetch)
    bench.bring(fetch, 2, 2, version=70)
    bench.end_training(1, 1)
    bench.tell(Roster(1, (PEERS[0], replace(PEERS[1], address="memory:9"))))
    (fetch,) = of(bench.execute(2, Pull(1)), Fetch)
    assert fetch.address == "memory:9"
    assert not said(bench.bring(fetch, 2, 2, version=1), Report)[0].rejected
