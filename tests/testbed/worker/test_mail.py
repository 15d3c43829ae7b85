"""Passive orders, updates, mail, and background pulls."""

import numpy as np

from dystop.testbed.events import PullFailed, StartPull, StartTraining, Tick
from dystop.testbed.protocol.messages import Execute, Join, Pull, Report, Row, Stage
from support.worker_fixtures import Bench, ack_of, of, reports, said


def test_a_passive_order_moves_what_is_published_and_the_training_keeps_its_update():
    bench = Bench()
    bench.join(warm=True)
    actions = bench.execute(1, Pull(1), train=False)
    assert ack_of(actions) == "accepted"
    actions = bench.bring(of(actions, StartPull)[0], 4, 8)
    assert reports(actions) == [(1, "mixed")]
    assert not of(actions, StartTraining)
    np.testing.assert_allclose(bench.state.published, [2, 4])
    assert (bench.state.version, bench.state.number, bench.state.round) == (1, -1, 0)
    assert bench.machine.phase == "training"
    bench.end_training(1, 1)
    np.testing.assert_allclose(bench.state.published, [3, 5])
    assert bench.state.number == 0


def test_a_passive_shift_survives_a_restart():
    bench = Bench()
    bench.join(warm=True)
    (pull,) = of(bench.execute(1, Pull(1), train=False), StartPull)
    bench.bring(pull, 4, 8)
    again = bench.restart()
    (train,) = of(again(Tick()), StartTraining)
    assert train.number == 0
    again.end_training(1, 1)
    np.testing.assert_allclose(again.state.published, [3, 5])


def test_a_passive_order_that_changes_nothing_publishes_nothing():
    bench = Bench()
    bench.join()
    actions = bench.tell(Execute(1, 1, False, (Stage(),)))
    assert reports(actions) == [(1, "mixed")]
    assert bench.disk.last_round == 1
    assert bench.state.version == 0


def test_updates_are_added_to_where_the_training_began():
    bench = Bench(deltas=True)
    bench.join()
    bench.execute(1)
    bench.end_training(2, 0)  # from 0: the own update is (2, 0)
    actions = bench.execute(2, Pull(1, delta=True), weights=(0.5, 0.25), kind="delta")
    (pull,) = of(actions, StartPull)
    assert pull.request.delta
    bench.bring(pull, 0, 4)
    np.testing.assert_allclose(bench.state.mixed, [1, 1])
    np.testing.assert_allclose(bench.state.start, [0, 0])
    bench.end_training(3, 3)
    np.testing.assert_allclose(bench.state.start, [1, 1])


def test_mail_waits_for_the_next_activation_and_is_consumed_by_it():
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(2, into="mail"), train=False), StartPull)
    bench.bring(pull, 6, 6, number=3)
    assert [(m.node, m.number, m.round) for m in bench.disk.mail] == [(2, 3, 1)]
    assert said(bench.join(), Join) == []
    bench.tell(Execute(1, 2, True, (Stage((), Row((0, 2), (0.5, 0.5), mailed=(2,))),)))
    np.testing.assert_allclose(bench.state.mixed, [3, 3])
    assert bench.state.mail == ()


def test_mail_that_is_kept_gives_way_to_newer_mail_only():
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(2, into="mail"), train=False), StartPull)
    bench.bring(pull, 6, 6, number=3, version=1)
    row = Row((0, 2), (0.5, 0.5), mailed=(2,))
    bench.tell(Execute(1, 2, True, (Stage((), row),), keep_mail=True))
    assert [(m.node, m.number, m.round) for m in bench.disk.mail] == [(2, 3, 1)]
    (pull,) = of(bench.execute(3, Pull(2, into="mail"), train=False), StartPull)
    bench.bring(pull, 8, 8, number=4, version=2)
    assert [(m.node, m.number, m.round) for m in bench.disk.mail] == [(2, 4, 3)]


def test_the_newest_mail_of_a_sender_counts():
    bench = Bench()
    bench.join()
    for round_, value in ((1, 2), (2, 4)):
        (pull,) = of(bench.execute(round_, Pull(2, into="mail"), train=False), StartPull)
        bench.bring(pull, value, value, version=round_)
    assert [(m.node, m.round) for m in bench.state.mail] == [(2, 2)]
    np.testing.assert_array_equal(bench.state.mailbox[2].vector, [4, 4])


def test_mail_that_comes_with_an_activation_is_for_the_next_one():
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(2, into="mail"), train=False), StartPull)
    bench.bring(pull, 2, 2, version=1)
    row = Row((0, 2), (0.5, 0.5), mailed=(2,))
    order = Execute(1, 2, True, (Stage((Pull(2, into="mail"),), row),), budget_s=5.0)
    (pull,) = of(bench.tell(order), StartPull)
    bench.bring(pull, 8, 8, version=2)
    np.testing.assert_allclose(bench.state.mixed, [1, 1])
    assert [(m.node, m.round) for m in bench.state.mail] == [(2, 2)]


def test_nobody_waits_for_a_background_link():
    bench = Bench()
    bench.join()
    actions = bench.execute(1, Pull(2, background=True), weights=(0.75, 0.25))
    (pull,) = of(actions, StartPull)
    assert reports(actions) == [(1, "mixed")]
    assert len(of(actions, StartTraining)) == 1
    np.testing.assert_array_equal(bench.state.mixed, [0, 0])
    bench.bring(pull, 4, 8)
    np.testing.assert_allclose(bench.state.published, [1, 2])
    actions = bench.end_training(10, 10)
    np.testing.assert_allclose(bench.state.published, [11, 12])
    (report,) = said(actions, Report)
    assert [u.node for u in report.used] == [2]


def test_background_mail_that_fails_is_told_with_the_next_report():
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(2, background=True, into="mail")), StartPull)
    bench(PullFailed(pull.key, "timeout"))
    (report,) = said(bench.end_training(1, 1), Report)
    assert [r.node for r in report.rejected] == [2]


def test_what_comes_in_the_background_waits_for_the_order_at_hand():
    bench = Bench()
    bench.join()
    (late,) = of(bench.execute(1, Pull(2, background=True), train=False), StartPull)
    (pull,) = of(bench.execute(2, Pull(1)), StartPull)
    assert bench.bring(late, 4, 4) == []
    bench.bring(pull, 2, 2)
    np.testing.assert_allclose(bench.state.mixed, [1, 1])
    np.testing.assert_allclose(bench.state.published, [2, 2])
