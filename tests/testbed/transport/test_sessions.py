"""One contract for the sessions of all transports."""

import time

import pytest

from dystop.testbed.protocol.interface import MAX_MESSAGE_BYTES, TransportError
from support.transport_fixtures import ANY, KINDS, certificates, meeting
from support.transport_parties import NotingDesk, NotingEar, Shelf


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return certificates(tmp_path_factory.mktemp("pki"))


@pytest.fixture(params=KINDS)
def parties(request, folder):
    with meeting(request.param, folder) as parties:
        yield parties


@pytest.fixture
def desk() -> NotingDesk:
    return NotingDesk()


@pytest.fixture
def ear() -> NotingEar:
    return NotingEar()


def test_messages_go_both_ways_in_order(parties, desk, ear):
    served = parties("coordinator").serve_control(ANY, desk)
    parties("w00").open_session(served.address, ear)
    assert desk.next() == ("opened", "w00")
    assert ear.next() == ("opened",)
    for k in range(100):
        ear.link.send(b"up %d" % k)
        desk.links["w00"].send(b"down %d" % k)
    assert [desk.next() for _ in range(100)] == [("said", "w00", b"up %d" % k) for k in range(100)]
    assert [ear.next() for _ in range(100)] == [("said", b"down %d" % k) for k in range(100)]


def test_closing_by_the_desk_comes_after_what_is_queued(parties, desk, ear):
    served = parties("coordinator").serve_control(ANY, desk)
    parties("w00").open_session(served.address, ear)
    desk.until(("opened", "w00"))
    desk.links["w00"].send(b"the last word")
    desk.links["w00"].close()
    assert ear.next() == ("opened",)
    assert ear.next() == ("said", b"the last word")
    assert ear.next() == ("closed",)
    assert desk.next() == ("closed", "w00")
    assert desk.next() == ("opened", "w00")  # it comes back by itself


def test_closing_by_the_ear_comes_after_what_is_queued(parties, desk, ear):
    served = parties("coordinator").serve_control(ANY, desk)
    parties("w00").open_session(served.address, ear)
    ear.until(("opened",))
    ear.link.send(b"the last word")
    ear.link.close()
    assert desk.until(("closed", "w00")) == [("opened", "w00"), ("said", "w00", b"the last word")]


def test_a_stopped_session_does_not_come_back(parties, desk, ear):
    served = parties("coordinator").serve_control(ANY, desk)
    session = parties("w00").open_session(served.address, ear)
    ear.until(("opened",))
    session.stop()
    assert ear.next() == ("closed",)
    assert desk.until(("closed", "w00")) == [("opened", "w00")]
    time.sleep(0.4)
    assert desk.events.empty()
    assert ear.events.empty()
    ear.link.send(b"into the void")  # does nothing


def test_sessions_come_back_after_a_restart(parties, desk, ear):
    first = parties("coordinator").serve_control(ANY, desk)
    parties("w00").open_session(first.address, ear)
    ear.until(("opened",))
    first.stop()
    assert ear.next() == ("closed",)
    assert desk.until(("closed", "w00")) == [("opened", "w00")]
    again = NotingDesk()
    parties("coordinator").serve_control(first.address, again)
    assert again.next(5) == ("opened", "w00")
    assert ear.until(("opened",)) in ([], [("closed",)])
    ear.link.send(b"here again")
    assert again.next() == ("said", "w00", b"here again")


def test_a_session_may_be_asked_for_before_anyone_listens(parties, desk, ear):
    served = parties("coordinator").serve_control(ANY, NotingDesk())
    served.stop()
    parties("w00").open_session(served.address, ear)
    time.sleep(0.1)
    parties("coordinator").serve_control(served.address, desk)
    assert desk.next(5) == ("opened", "w00")


def test_a_second_session_of_a_name_replaces_the_first(parties, desk, ear):
    served = parties("coordinator").serve_control(ANY, desk)
    old = parties("w00").open_session(served.address, ear)
    ear.until(("opened",))
    newer = NotingEar()
    parties("w00").open_session(served.address, newer)
    assert newer.next() == ("opened",)
    assert ear.next() == ("closed",)
    assert "replaced" in ear.reason
    old.stop()
    assert [desk.next() for _ in range(3)] == [
        ("opened", "w00"),
        ("closed", "w00"),
        ("opened", "w00"),
    ]


def test_two_names_do_not_disturb_each_other(parties, desk):
    served = parties("coordinator").serve_control(ANY, desk)
    ears = {name: NotingEar() for name in ("w00", "w01")}
    for name, one in ears.items():
        parties(name).open_session(served.address, one)
        one.until(("opened",))
    ears["w01"].link.send(b"hello")
    desk.until(("said", "w01", b"hello"))
    desk.links["w00"].send(b"for w00")
    assert ears["w00"].next() == ("said", b"for w00")
    assert ears["w01"].events.empty()


def test_a_message_that_is_too_long_is_refused_and_the_session_lives(parties, desk, ear):
    served = parties("coordinator").serve_control(ANY, desk)
    parties("w00").open_session(served.address, ear)
    desk.until(("opened", "w00"))
    ear.until(("opened",))
    for link in (ear.link, desk.links["w00"]):
        with pytest.raises(TransportError, match="too long"):
            link.send(b"x" * (MAX_MESSAGE_BYTES + 1))
    ear.link.send(b"x" * MAX_MESSAGE_BYTES)
    assert len(desk.next()[2]) == MAX_MESSAGE_BYTES


def test_dropping_cuts_the_session(parties, desk, ear):
    served = parties("coordinator").serve_control(ANY, desk)
    parties("w00").open_session(served.address, ear)
    ear.until(("opened",))
    parties.banned.add("w00")
    began = time.monotonic()
    served.drop("w00")
    assert ear.next() == ("closed",)
    assert time.monotonic() - began < 1.0
    assert desk.until(("closed", "w00")) == [("opened", "w00")]
    time.sleep(0.5)
    assert desk.events.empty()  # it tries again, and is not let in


def test_a_taken_address_is_named(parties, desk):
    served = parties("coordinator").serve_control(ANY, desk)
    with pytest.raises(TransportError, match=rf"{served.address}.*port"):
        parties("coordinator").serve_control(served.address, desk)
    with pytest.raises(TransportError, match=rf"{served.address}.*port"):
        parties("w00").serve_models(served.address, Shelf())
