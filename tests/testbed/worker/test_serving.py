"""The models that a worker serves to its peers."""

from dataclasses import replace

import numpy as np

from dystop.testbed.events import (
    AnswerPull,
    CancelPull,
    Publication,
    PullRequested,
    PullWithdrawn,
    StartPull,
    Tick,
)
from dystop.testbed.protocol.messages import (
    Cancel,
    Execute,
    Incident,
    Pull,
    Report,
    Roster,
    Row,
    Stage,
)
from dystop.testbed.protocol.pulls import PullRefused, PullRequest
from support.testbed.worker_fixtures import PEERS, WorkerHarness, of, refusal, sent


def test_strangers_and_other_runs_are_refused():
    harness = WorkerHarness()
    assert refusal(harness.ask(round=1)) == "not_authorised"  # no roster yet
    harness.join(peers=PEERS[:2])
    assert isinstance(harness.ask(round=1)[0].answer, Publication)
    assert refusal(harness.ask(peer="w03", round=1)) == "not_authorised"
    assert refusal(harness(PullRequested(1, "w01", PullRequest("cd" * 16, 1)))) == "wrong_run"
    assert isinstance(harness.ask(peer="observer", round=1)[0].answer, Publication)


def test_a_peer_that_left_the_roster_is_neither_served_nor_pulled_from():
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(1)), StartPull)
    assert harness.ask(key=7, round=2, exact=True) == []
    actions = harness.receive(Roster(1, (PEERS[0], PEERS[2])))
    assert AnswerPull(7, PullRefused("not_authorised")) in actions
    assert of(actions, CancelPull) == [CancelPull(pull.key)]
    assert sent(actions, Report)[0].rejected[0].code == "not_authorised"
    assert refusal(harness.ask(round=1)) == "not_authorised"


def test_while_training_peers_get_the_last_publication():
    harness = WorkerHarness()
    harness.join()
    harness.execute(1)
    harness.end_training(5, 5)
    harness.execute(2)
    (served,) = harness.ask(round=3)
    np.testing.assert_array_equal(served.answer.vector, [5, 5])
    assert (served.answer.number, served.answer.round) == (1, 1)


def test_a_pull_gets_a_model_from_before_its_round():
    harness = WorkerHarness()
    harness.join()
    harness.execute(1)
    harness.end_training(5, 5)  # began in round 1
    np.testing.assert_array_equal(harness.ask(round=1)[0].answer.vector, [0, 0])
    np.testing.assert_array_equal(harness.ask(round=2)[0].answer.vector, [5, 5])


def test_a_partner_of_a_pairwise_exchange_sees_the_model_before_it():
    harness = WorkerHarness()
    harness.join()
    (pull,) = of(harness.execute(1, Pull(1), train=False), StartPull)
    harness.finish_pull(pull, 4, 4)
    np.testing.assert_array_equal(harness.ask(round=1)[0].answer.vector, [0, 0])
    np.testing.assert_array_equal(harness.ask(round=2)[0].answer.vector, [2, 2])


def test_an_exact_pull_waits_for_the_order_and_the_training():
    harness = WorkerHarness()
    harness.join(warm=True)
    assert harness.ask(key=3, round=1, exact=True) == []
    assert not of(harness.execute(1), AnswerPull)  # queued: still training
    (served,) = of(harness.end_training(2, 2), AnswerPull)
    assert served.key == 3
    np.testing.assert_array_equal(served.answer.vector, [2, 2])


def test_an_exact_pull_of_a_later_stage_waits_for_it():
    harness = WorkerHarness()
    harness.join()
    row = Row((0, 1), (0.5, 0.5))
    order = Execute(
        1, 1, True, (Stage((Pull(1),), row), Stage((Pull(2),), Row((0, 2), (0.5, 0.5))))
    )
    (one,) = of(harness.receive(replace(order, budget_s=5.0)), StartPull)
    assert harness.ask(key=1, round=1, stage=1, exact=True) == []
    assert harness.ask(key=2, round=1, stage=5, exact=True) == []
    actions = harness.finish_pull(one, 2, 2)
    (served,) = of(actions, AnswerPull)
    np.testing.assert_array_equal(served.answer.vector, [1, 1])
    first = served.answer.version
    (served,) = of(harness.finish_pull(of(actions, StartPull)[0], 3, 3), AnswerPull)
    assert served.key == 2
    np.testing.assert_array_equal(served.answer.vector, [2, 2])
    assert served.answer.version > first


def test_an_exact_pull_of_a_round_that_is_over_is_refused():
    harness = WorkerHarness()
    harness.join()
    harness.ask(key=1, round=1, exact=True)
    assert AnswerPull(1, PullRefused("timeout")) in harness.execute(2)
    assert refusal(harness.ask(round=1, exact=True)) == "timeout"


def test_an_exact_pull_of_a_cancelled_round_is_refused():
    harness = WorkerHarness()
    harness.join(warm=True)
    harness.execute(1)
    harness.ask(key=1, round=1, exact=True)
    assert refusal(harness.receive(Cancel(1, 1))) == "timeout"


def test_a_withdrawn_pull_is_not_served():
    harness = WorkerHarness()
    harness.join()
    harness.ask(key=1, round=1, exact=True)
    harness(PullWithdrawn(1))
    assert not of(harness.execute(1), AnswerPull)


def test_waiting_pulls_time_out():
    harness = WorkerHarness()
    harness.join()
    harness.ask(key=1, round=99, exact=True)
    assert refusal(harness(Tick(), 601.0)) == "timeout"


def test_updates_are_served_where_they_are_kept():
    harness = WorkerHarness(deltas=True)
    harness.join()
    harness.execute(1)
    harness.end_training(5, 6)
    (pull,) = of(harness.execute(2, Pull(1)), StartPull)
    harness.finish_pull(pull, 1, 2)
    harness.end_training(4, 4)
    np.testing.assert_array_equal(harness.ask(round=3, delta=True)[0].answer.vector, [1, 0])
    plain = WorkerHarness()
    plain.join()
    assert refusal(plain.ask(round=1, delta=True)) == "no_model"


def test_one_peer_gets_a_model_under_a_few_masks_only():
    harness = WorkerHarness()
    harness.join()
    asked = [harness.ask(k, "w01", round=1, mask=(k, 0.5)) for k in range(40)]
    refused = [bool(refusals) for refusals in (refusal_or_none(actions) for actions in asked)]
    assert refused == [False] * 16 + [True] * 24
    assert refusal_or_none(harness.ask(90, "w01", round=1, mask=(3, 0.5))) is None  # known
    assert refusal_or_none(harness.ask(91, "w01", round=1)) is None
    assert refusal_or_none(harness.ask(92, "w02", round=1, mask=(99, 0.5))) is None
    (seen,) = sent(harness(Tick(), 1.0), Incident)
    assert (seen.node, seen.kind, seen.count) == (1, "flood", 24)


def refusal_or_none(actions):
    (answer,) = of(actions, AnswerPull)
    return answer.answer if isinstance(answer.answer, PullRefused) else None
