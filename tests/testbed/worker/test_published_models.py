"""Which model a peer gets, and who has to wait for it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.testbed.events import Asked, Publication, Serve
from dystop.testbed.protocol.messages import PullRefused, PullRequest
from dystop.testbed.worker.published_models import KEPT, PublishedModel, PublishedModels

RUN = "ab" * 16


def entry(version, since, value=None, start=None):
    value = version if value is None else value
    model = Publication(version, version, since, np.full(2, value, np.float32))
    return PublishedModel(model, since, start)


def asked(key, peer="w01", **request):
    return Asked(key, peer, PullRequest(RUN, **request))


def version_of(answers):
    (answer,) = [a.answer for a in answers]
    return answer.version if isinstance(answer, Publication) else answer.code


def test_the_newest_from_before_the_round_counts():
    slot = PublishedModels()
    for version, since in ((1, 0), (2, 3), (3, 5)):
        slot.publish(entry(version, since))
    found = [version_of(slot.ask(asked(1, round=t), 0.0, expected=True)) for t in (1, 3, 4, 5, 6)]
    assert found == [1, 1, 2, 2, 3]


@given(st.lists(st.integers(0, 9), max_size=8).map(sorted), st.integers(0, 10))
@settings(derandomize=True, deadline=None)
def test_nothing_from_the_round_itself_or_later_is_handed_out(rounds, wanted):
    slot = PublishedModels()
    for version, since in enumerate(rounds):
        slot.publish(entry(version + 1, since))
    assert len(slot.entries) <= KEPT
    found = slot.find(PullRequest(RUN, wanted))
    older = [v + 1 for v, since in enumerate(rounds) if since < wanted][-KEPT:]
    kept = [v for v in older if v > len(rounds) - KEPT]
    assert (found.publication.version if found else None) == (kept[-1] if kept else None)


def test_only_three_are_kept_and_an_older_one_is_no_longer_there():
    slot = PublishedModels()
    for k in range(1, 6):
        slot.publish(entry(k, k))
    assert version_of(slot.ask(asked(1, round=3), 0.0, expected=True)) == "no_model"
    assert version_of(slot.ask(asked(1, round=4), 0.0, expected=True)) == 3


def test_who_goes_on_gets_the_same_publication():
    slot = PublishedModels()
    slot.publish(entry(1, 0))
    slot.publish(entry(2, 1))
    assert slot.find(PullRequest(RUN, 9, version=1, offset=10)).publication.version == 1
    assert slot.find(PullRequest(RUN, 9, version=7, offset=10)).publication.version == 2
    slot.open(4)
    slot.remember(1, entry(3, 4))
    assert slot.find(PullRequest(RUN, 4, 1, True, version=3, offset=1)).publication.version == 3


def test_exact_pulls_are_parked_until_their_stage():
    slot = PublishedModels()
    for key, stage in ((1, 0), (2, 1), (3, 9)):
        assert (
            slot.ask(asked(key, f"w{key}", round=2, stage=stage, exact=True), 0.0, expected=True)
            == []
        )
    slot.open(2)
    assert [s.key for s in slot.remember(0, entry(1, 1))] == [1]
    assert [s.key for s in slot.remember(1, entry(2, 2))] == [2]
    assert [s.key for s in slot.remember(2, entry(3, 2), last=True)] == [3]
    assert version_of(slot.ask(asked(4, round=2, stage=7, exact=True), 0.0, expected=False)) == 3
    assert version_of(slot.ask(asked(4, round=3, exact=True), 0.0, expected=False)) == "timeout"


def test_a_later_order_forgets_snapshots_and_refuses_who_waited():
    slot = PublishedModels()
    slot.open(1)
    slot.remember(0, entry(1, 0))
    slot.ask(asked(1, round=1, stage=1, exact=True), 0.0, expected=True)
    slot.ask(asked(2, "w02", round=3, exact=True), 0.0, expected=True)
    assert slot.open(3) == [Serve(1, PullRefused("timeout"))]
    assert slot.find(PullRequest(RUN, 1, exact=True)) is None
    assert list(slot.parked) == [2]
    assert slot.close(3) == [Serve(2, PullRefused("timeout"))]


def test_one_peer_cannot_fill_the_waiting_room():
    slot = PublishedModels(per_peer=2)
    answers = [slot.ask(asked(k, round=k, exact=True), 0.0, expected=True) for k in range(1, 5)]
    assert [bool(a) for a in answers] == [False, False, True, True]
    assert answers[2][0].answer.code == "busy"
    again = slot.ask(asked(9, round=1, exact=True), 0.0, expected=True)
    assert again == [Serve(1, PullRefused("busy"))]
    assert set(slot.parked) == {2, 9}


def test_waiting_ends():
    slot = PublishedModels()
    slot.ask(asked(1, round=1, exact=True), 1.0, expected=True)
    slot.ask(asked(2, "w02", round=1, exact=True), 2.0, expected=True)
    assert slot.expire(1.5) == [Serve(1, PullRefused("timeout"))]
    assert slot.expel({"w01"}) == [Serve(2, PullRefused("not_authorised"))]
    slot.drop(77)


def test_an_update_is_the_model_less_its_start():
    slot = PublishedModels()
    slot.publish(entry(1, 0, value=5, start=np.full(2, 2, np.float32)))
    (served,) = slot.ask(asked(1, round=1, delta=True), 0.0, expected=True)
    np.testing.assert_array_equal(served.answer.vector, [3, 3])
    slot.publish(entry(2, 0))
    assert version_of(slot.ask(asked(1, round=1, delta=True), 0.0, expected=True)) == "no_model"


def test_what_could_not_be_written_is_taken_back():
    slot = PublishedModels()
    slot.publish(entry(1, 0))
    slot.publish(entry(2, 1))
    slot.retract(1)
    assert version_of(slot.ask(asked(1, round=9), 0.0, expected=True)) == 1
