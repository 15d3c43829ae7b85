"""Passive orders, updates, the mailbox, and background pulls."""

from dataclasses import replace

import numpy as np

from dystop.testbed.events import PullFailed, StartPull, StartTraining, Tick
from dystop.testbed.protocol.messages import Execute, Join, Pull, Report, Row, Stage
from dystop.testbed.worker.state import (
    RunningTraining,
    first_state,
    mixed_passively,
    training_finished,
    training_started,
)
from support.testbed.worker_fixtures import WorkerHarness, ack_of, of, reports, sent


def test_a_passive_order_moves_what_is_published_and_the_training_keeps_its_update():
    harness = WorkerHarness()
    harness.join(warm=True)
    actions = harness.execute(1, Pull(1), train=False)
    assert ack_of(actions) == "accepted"
    actions = harness.finish_pull(of(actions, StartPull)[0], 4, 8)
    assert reports(actions) == [(1, "mixed")]
    assert not of(actions, StartTraining)
    np.testing.assert_allclose(harness.state.published, [2, 4])
    assert (harness.state.version, harness.state.number, harness.state.round) == (1, -1, 0)
    assert harness.machine.phase == "training"
    harness.end_training(1, 1)
    np.testing.assert_allclose(harness.state.published, [3, 5])
    assert harness.state.number == 0


def test_a_passive_shift_survives_a_restart():
    harness = WorkerHarness()
    harness.join(warm=True)
    (pull,) = of(harness.execute(1, Pull(1), train=False), StartPull)
    harness.finish_pull(pull, 4, 8)
    again = harness.restart()
    (train,) = of(again(Tick()), StartTraining)
    assert train.number == 0
    again.end_training(1, 1)
    np.testing.assert_allclose(again.state.published, [3, 5])


def test_a_passive_order_that_changes_nothing_publishes_nothing():
    harness = WorkerHarness()
    harness.join()
    actions = harness.receive(Execute(1, 1, False, (Stage(),)))
    assert reports(actions) == [(1, "mixed")]
    assert harness.disk.last_round == 1
    assert harness.state.version == 0


def test_updates_are_added_to_where_the_training_began():
    harness = WorkerHarness(deltas=True)
    harness.join()
    harness.execute(1)
    harness.end_training(2, 0)  # from 0: the own update is (2, 0)
    actions = harness.execute(2, Pull(1, delta=True), weights=(0.5, 0.25), kind="delta")
    (pull,) = of(actions, StartPull)
    assert pull.request.delta
    harness.finish_pull(pull, 0, 4)
    np.testing.assert_allclose(harness.state.models.latest, [1, 1])
    np.testing.assert_allclose(harness.state.models.published_start, [0, 0])
    harness.end_training(3, 3)
    np.testing.assert_allclose(harness.state.models.published_start, [1, 1])


def test_mail_waits_for_the_next_activation_and_is_consumed_by_it():
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(2, into="mail"), train=False), StartPull)
    harness.finish_pull(pull, 6, 6, number=3)
    assert [(m.node, m.number, m.round) for m in harness.disk.mail] == [(2, 3, 1)]
    assert sent(harness.join(), Join) == []
    harness.receive(Execute(1, 2, True, (Stage((), Row((0, 2), (0.5, 0.5), mailed=(2,))),)))
    np.testing.assert_allclose(harness.state.models.latest, [3, 3])
    assert harness.state.mail == ()


def test_mail_that_is_kept_gives_way_to_newer_mail_only():
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(2, into="mail"), train=False), StartPull)
    harness.finish_pull(pull, 6, 6, number=3, version=1)
    row = Row((0, 2), (0.5, 0.5), mailed=(2,))
    harness.receive(Execute(1, 2, True, (Stage((), row),), keep_mail=True))
    assert [(m.node, m.number, m.round) for m in harness.disk.mail] == [(2, 3, 1)]
    (pull,) = of(harness.execute(3, Pull(2, into="mail"), train=False), StartPull)
    harness.finish_pull(pull, 8, 8, number=4, version=2)
    assert [(m.node, m.number, m.round) for m in harness.disk.mail] == [(2, 4, 3)]


def test_the_newest_mail_of_a_sender_counts():
    harness = WorkerHarness()
    harness.join()
    for round_, value in ((1, 2), (2, 4)):
        (pull,) = of(harness.execute(round_, Pull(2, into="mail"), train=False), StartPull)
        harness.finish_pull(pull, value, value, version=round_)
    assert [(m.node, m.round) for m in harness.state.mail] == [(2, 2)]
    np.testing.assert_array_equal(harness.state.mailbox[2].vector, [4, 4])


def test_mail_that_comes_with_an_activation_is_for_the_next_one():
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(2, into="mail"), train=False), StartPull)
    harness.finish_pull(pull, 2, 2, version=1)
    row = Row((0, 2), (0.5, 0.5), mailed=(2,))
    order = Execute(1, 2, True, (Stage((Pull(2, into="mail"),), row),), budget_s=5.0)
    (pull,) = of(harness.receive(order), StartPull)
    harness.finish_pull(pull, 8, 8, version=2)
    np.testing.assert_allclose(harness.state.models.latest, [1, 1])
    assert [(m.node, m.round) for m in harness.state.mail] == [(2, 2)]


def test_orders_do_not_wait_for_a_background_link():
    harness = WorkerHarness()
    harness.join()
    actions = harness.execute(1, Pull(2, background=True), weights=(0.75, 0.25))
    (pull,) = of(actions, StartPull)
    assert reports(actions) == [(1, "mixed")]
    assert len(of(actions, StartTraining)) == 1
    np.testing.assert_array_equal(harness.state.models.latest, [0, 0])
    harness.finish_pull(pull, 4, 8)
    np.testing.assert_allclose(harness.state.published, [1, 2])
    actions = harness.end_training(10, 10)
    np.testing.assert_allclose(harness.state.published, [11, 12])
    (report,) = sent(actions, Report)
    assert [u.node for u in report.used] == [2]


def test_failed_background_mail_is_part_of_the_next_report():
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(2, background=True, into="mail")), StartPull)
    harness(PullFailed(pull.key, "timeout"))
    (report,) = sent(harness.end_training(1, 1), Report)
    assert [r.node for r in report.rejected] == [2]


def test_background_mail_waits_for_the_current_order():
    harness = WorkerHarness()
    harness.join()
    (late,) = of(harness.execute(1, Pull(2, background=True), train=False), StartPull)
    (pull,) = of(harness.execute(2, Pull(1)), StartPull)
    assert harness.finish_pull(late, 4, 4) == []
    harness.finish_pull(pull, 2, 2)
    np.testing.assert_allclose(harness.state.models.latest, [1, 1])
    np.testing.assert_allclose(harness.state.published, [2, 2])


def test_a_passive_mix_moves_a_model_and_leaves_its_update():
    none, first = np.zeros(0), first_state(np.zeros(2), np.zeros(0), deltas=True)
    state = replace(first, models=replace(first.models, latest=np.ones(2)))
    training = RunningTraining(1, 1, 4, 1.0)
    for before in (state, training_started(state, np.full(2, 3.0), none, training)):
        after = mixed_passively(before, np.array([5.0, 7.0]), 2)
        assert after.published.tolist() == [5, 7]
        assert (after.published - after.models.published_start).tolist() == [1, 1]
    ended = training_finished(after, np.full(2, 4.0), none, 3)
    assert ended.published.tolist() == [8, 10]  # 4, and what the mix has added
    assert (ended.published - ended.models.published_start).tolist() == [1, 1]
