"""Which models a worker serves to which peers."""

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
    Pull,
    PullRefused,
    PullRequest,
    Report,
    Roster,
    Row,
    Stage,
)
from support.worker_fixtures import PEERS, Bench, of, refusal, said


def test_strangers_and_other_runs_are_refused():
    bench = Bench()
    assert refusal(bench.ask(round=1)) == "not_authorised"  # nobody is known yet
    bench.join(peers=PEERS[:2])
    assert isinstance(bench.ask(round=1)[0].answer, Publication)
    assert refusal(bench.ask(peer="w03", round=1)) == "not_authorised"
    assert refusal(bench(PullRequested(1, "w01", PullRequest("cd" * 16, 1)))) == "wrong_run"
    assert isinstance(bench.ask(peer="observer", round=1)[0].answer, Publication)


def test_who_leaves_the_roster_is_refused_and_no_longer_fetched_from():
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(1)), StartPull)
    assert bench.ask(key=7, round=2, exact=True) == []
    actions = bench.tell(Roster(1, (PEERS[0], PEERS[2])))
    assert AnswerPull(7, PullRefused("not_authorised")) in actions
    assert of(actions, CancelPull) == [CancelPull(pull.key)]
    assert said(actions, Report)[0].rejected[0].code == "not_authorised"
    assert refusal(bench.ask(round=1)) == "not_authorised"


def test_while_training_peers_get_the_last_publication():
    bench = Bench()
    bench.join()
    bench.execute(1)
    bench.end_training(5, 5)
    bench.execute(2)
    (served,) = bench.ask(round=3)
    np.testing.assert_array_equal(served.answer.vector, [5, 5])
    assert (served.answer.number, served.answer.round) == (1, 1)


def test_a_pull_gets_what_comes_from_before_its_round():
    bench = Bench()
    bench.join()
    bench.execute(1)
    bench.end_training(5, 5)  # began in round 1
    np.testing.assert_array_equal(bench.ask(round=1)[0].answer.vector, [0, 0])
    np.testing.assert_array_equal(bench.ask(round=2)[0].answer.vector, [5, 5])


def test_a_partner_of_a_pairwise_exchange_sees_the_model_before_it():
    bench = Bench()
    bench.join()
    (pull,) = of(bench.execute(1, Pull(1), train=False), StartPull)
    bench.bring(pull, 4, 4)
    np.testing.assert_array_equal(bench.ask(round=1)[0].answer.vector, [0, 0])
    np.testing.assert_array_equal(bench.ask(round=2)[0].answer.vector, [2, 2])


def test_an_exact_pull_waits_for_the_order_and_the_training():
    bench = Bench()
    bench.join(warm=True)
    assert bench.ask(key=3, round=1, exact=True) == []
    assert not of(bench.execute(1), AnswerPull)  # queued: still training
    (served,) = of(bench.end_training(2, 2), AnswerPull)
    assert served.key == 3
    np.testing.assert_array_equal(served.answer.vector, [2, 2])


def test_an_exact_pull_of_a_later_stage_waits_for_it():
    bench = Bench()
    bench.join()
    row = Row((0, 1), (0.5, 0.5))
    order = Execute(
        1, 1, True, (Stage((Pull(1),), row), Stage((Pull(2),), Row((0, 2), (0.5, 0.5))))
    )
    (one,) = of(bench.tell(replace(order, budget_s=5.0)), StartPull)
    assert bench.ask(key=1, round=1, stage=1, exact=True) == []
    assert bench.ask(key=2, round=1, stage=5, exact=True) == []
    actions = bench.bring(one, 2, 2)
    (served,) = of(actions, AnswerPull)
    np.testing.assert_array_equal(served.answer.vector, [1, 1])
    first = served.answer.version
    (served,) = of(bench.bring(of(actions, StartPull)[0], 3, 3), AnswerPull)
    assert served.key == 2
    np.testing.assert_array_equal(served.answer.vector, [2, 2])
    assert served.answer.version > first


def test_an_exact_pull_of_a_round_that_is_over_is_refused():
    bench = Bench()
    bench.join()
    bench.ask(key=1, round=1, exact=True)
    assert AnswerPull(1, PullRefused("timeout")) in bench.execute(2)
    assert refusal(bench.ask(round=1, exact=True)) == "timeout"


def test_an_exact_pull_of_a_cancelled_round_is_refused():
    bench = Bench()
    bench.join(warm=True)
    bench.execute(1)
    bench.ask(key=1, round=1, exact=True)
    assert refusal(bench.tell(Cancel(1, 1))) == "timeout"


def test_a_peer_that_went_away_is_not_served():
    bench = Bench()
    bench.join()
    bench.ask(key=1, round=1, exact=True)
    bench(PullWithdrawn(1))
    assert not of(bench.execute(1), AnswerPull)


def test_nobody_waits_for_ever():
    bench = Bench()
    bench.join()
    bench.ask(key=1, round=99, exact=True)
    assert refusal(bench(Tick(), 601.0)) == "timeout"


def test_updates_are_served_where_they_are_kept():
    bench = Bench(deltas=True)
    bench.join()
    bench.execute(1)
    bench.end_training(5, 6)
    (pull,) = of(bench.execute(2, Pull(1)), StartPull)
    bench.bring(pull, 1, 2)
    bench.end_training(4, 4)
    np.testing.assert_array_equal(bench.ask(round=3, delta=True)[0].answer.vector, [1, 0])
    plain = Bench()
    plain.join()
    assert refusal(plain.ask(round=1, delta=True)) == "no_model"
