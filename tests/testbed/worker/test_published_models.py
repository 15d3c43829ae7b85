"""The model that a peer gets, and the pulls that wait for one."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.testbed.events import AnswerPull, Publication, PullRequested
from dystop.testbed.protocol.pulls import SERVED_S, PullRefused, PullRequest
from dystop.testbed.worker.published_models import MAX_PUBLICATIONS, PublishedModel, PublishedModels

RUN = "ab" * 16


def a_model(version, since, value=None, start=None):
    value = version if value is None else value
    model = Publication(version, version, since, np.full(2, value, np.float32))
    return PublishedModel(model, since, start)


def requested(key, peer="w01", **request):
    return PullRequested(key, peer, PullRequest(RUN, **request))


def version_of(answers):
    (answer,) = [a.answer for a in answers]
    return answer.version if isinstance(answer, Publication) else answer.code


def test_the_newest_from_before_the_round_counts():
    published = PublishedModels()
    for version, since in ((1, 0), (2, 3), (3, 5)):
        published.publish(a_model(version, since))
    found = [
        version_of(published.answer(requested(1, round=t), 0.0, expected=True))
        for t in (1, 3, 4, 5, 6)
    ]
    assert found == [1, 1, 2, 2, 3]


@given(st.lists(st.integers(0, 9), max_size=8).map(sorted), st.integers(0, 10))
@settings(derandomize=True, deadline=None)
def test_nothing_from_the_round_itself_or_later_is_handed_out(rounds, wanted):
    published = PublishedModels()
    for version, since in enumerate(rounds):
        published.publish(a_model(version + 1, since))
    assert len(published.models) <= MAX_PUBLICATIONS
    found = published.find(PullRequest(RUN, wanted))
    older = [v + 1 for v, since in enumerate(rounds) if since < wanted][-MAX_PUBLICATIONS:]
    kept = [v for v in older if v > len(rounds) - MAX_PUBLICATIONS]
    assert (found.publication.version if found else None) == (kept[-1] if kept else None)


def test_only_three_are_kept_and_an_older_one_is_no_longer_there():
    published = PublishedModels()
    for k in range(1, 6):
        published.publish(a_model(k, k))
    assert version_of(published.answer(requested(1, round=3), 0.0, expected=True)) == "no_model"
    assert version_of(published.answer(requested(1, round=4), 0.0, expected=True)) == 3


def test_a_resumed_pull_gets_the_same_publication():
    published = PublishedModels()
    published.publish(a_model(1, 0))
    published.publish(a_model(2, 1))
    assert published.find(PullRequest(RUN, 9, version=1, offset=10)).publication.version == 1
    assert published.find(PullRequest(RUN, 9, version=7, offset=10)).publication.version == 2
    published.open_round(4)
    published.add_snapshot(1, a_model(3, 4))
    assert (
        published.find(PullRequest(RUN, 4, 1, True, version=3, offset=1)).publication.version == 3
    )


def test_exact_pulls_wait_until_their_stage():
    published = PublishedModels()
    for key, stage in ((1, 0), (2, 1), (3, 9)):
        assert (
            published.answer(
                requested(key, f"w{key}", round=2, stage=stage, exact=True), 0.0, expected=True
            )
            == []
        )
    published.open_round(2)
    assert [s.key for s in published.add_snapshot(0, a_model(1, 1))] == [1]
    assert [s.key for s in published.add_snapshot(1, a_model(2, 2))] == [2]
    assert [s.key for s in published.add_snapshot(2, a_model(3, 2), last=True)] == [3]
    assert (
        version_of(
            published.answer(requested(4, round=2, stage=7, exact=True), 0.0, expected=False)
        )
        == 3
    )
    assert (
        version_of(published.answer(requested(4, round=3, exact=True), 0.0, expected=False))
        == "timeout"
    )


def test_a_later_order_drops_snapshots_and_refuses_waiting_pulls():
    published = PublishedModels()
    published.open_round(1)
    published.add_snapshot(0, a_model(1, 0))
    published.answer(requested(1, round=1, stage=1, exact=True), 0.0, expected=True)
    published.answer(requested(2, "w02", round=3, exact=True), 0.0, expected=True)
    assert published.open_round(3) == [AnswerPull(1, PullRefused("timeout"))]
    assert published.find(PullRequest(RUN, 1, exact=True)) is None
    assert list(published.waiting) == [2]
    assert published.close_round(3) == [AnswerPull(2, PullRefused("timeout"))]


def test_one_peer_cannot_fill_the_queue():
    published = PublishedModels(per_peer=2)
    answers = [
        published.answer(requested(k, round=k, exact=True), 0.0, expected=True) for k in range(1, 5)
    ]
    assert [bool(a) for a in answers] == [False, False, True, True]
    assert answers[2][0].answer.code == "busy"
    again = published.answer(requested(9, round=1, exact=True), 0.0, expected=True)
    assert again == [AnswerPull(1, PullRefused("busy"))]
    assert set(published.waiting) == {2, 9}


def test_a_model_that_was_served_can_be_pulled_again_for_a_while():
    """So that the observer can check it, whatever the worker has published since."""
    published = PublishedModels()
    for k in range(1, 4):
        published.publish(a_model(k, 0))
    assert version_of(published.answer(requested(1, round=9), 10.0, expected=True)) == 3
    for k in range(4, 9):
        published.publish(a_model(k, 0))
    soon = published.answer(requested(2, round=9, version=3), 10.0 + SERVED_S, expected=True)
    assert version_of(soon) == 3
    never = published.answer(requested(3, round=9, version=4), 11.0, expected=True)
    assert version_of(never) == "no_model"  # nobody got it while it was the newest
    published.expire(10.1 + 2 * SERVED_S, 0.0)
    late = published.answer(requested(4, round=9, version=3), 16.0 + SERVED_S, expected=True)
    assert version_of(late) == "no_model"


def test_waiting_ends():
    published = PublishedModels()
    published.answer(requested(1, round=1, exact=True), 1.0, expected=True)
    published.answer(requested(2, "w02", round=1, exact=True), 2.0, expected=True)
    assert published.expire(1.5, 0.0) == [AnswerPull(1, PullRefused("timeout"))]
    assert published.refuse_others({"w01"}) == [AnswerPull(2, PullRefused("not_authorised"))]
    published.withdraw(77)


def test_an_update_is_the_model_less_its_start():
    published = PublishedModels()
    published.publish(a_model(1, 0, value=5, start=np.full(2, 2, np.float32)))
    (served,) = published.answer(requested(1, round=1, delta=True), 0.0, expected=True)
    np.testing.assert_array_equal(served.answer.vector, [3, 3])
    published.publish(a_model(2, 0))
    assert (
        version_of(published.answer(requested(1, round=1, delta=True), 0.0, expected=True))
        == "no_model"
    )


def test_a_publication_that_could_not_be_written_is_undone():
    published = PublishedModels()
    published.publish(a_model(1, 0))
    published.publish(a_model(2, 1))
    published.retract_after(1)
    assert version_of(published.answer(requested(1, round=9), 0.0, expected=True)) == 1


def test_a_request_with_a_version_gets_this_publication_or_none():
    published = PublishedModels()
    for k in range(1, 6):
        published.publish(a_model(k, k))
    published.open_round(9)
    published.add_snapshot(1, a_model(70, 9))
    for exact in (False, True):
        found = [
            version_of(
                published.answer(
                    requested(k, round=9, version=k, exact=exact, stage=1), 0.0, expected=True
                )
            )
            for k in (1, 2, 3, 5, 70)
        ]
        assert found == ["no_model", "no_model", 3, 5, 70]
    assert published.waiting == {}
