"""The behaviour of sessions that all transports have in common."""

import time

import pytest

from dystop.errors import TransportError
from dystop.testbed.protocol.codec import MAX_MESSAGE_BYTES
from support.testbed.transport_fixtures import ANY
from support.testbed.transport_parties import (
    FakeModelSource,
    RecordingClientHandler,
    RecordingSessionHandler,
)


@pytest.fixture
def sessions() -> RecordingSessionHandler:
    return RecordingSessionHandler()


@pytest.fixture
def client() -> RecordingClientHandler:
    return RecordingClientHandler()


def test_messages_go_both_ways_in_order(parties, sessions, client):
    served = parties("coordinator").serve_control(ANY, sessions)
    parties("w00").open_session(served.address, client)
    assert sessions.next() == ("opened", "w00")
    assert client.next() == ("opened",)
    for k in range(100):
        client.link.send(b"up %d" % k)
        sessions.links["w00"].send(b"down %d" % k)
    assert [sessions.next() for _ in range(100)] == [
        ("received", "w00", b"up %d" % k) for k in range(100)
    ]
    assert [client.next() for _ in range(100)] == [("received", b"down %d" % k) for k in range(100)]


def test_closing_by_the_server_sends_queued_messages_first(parties, sessions, client):
    served = parties("coordinator").serve_control(ANY, sessions)
    parties("w00").open_session(served.address, client)
    sessions.until(("opened", "w00"))
    sessions.links["w00"].send(b"the last word")
    sessions.links["w00"].close()
    assert client.next() == ("opened",)
    assert client.next() == ("received", b"the last word")
    assert client.next() == ("closed",)
    assert sessions.next() == ("closed", "w00")
    assert sessions.next() == ("opened", "w00")  # it comes back by itself


def test_closing_by_the_client_sends_queued_messages_first(parties, sessions, client):
    served = parties("coordinator").serve_control(ANY, sessions)
    parties("w00").open_session(served.address, client)
    client.until(("opened",))
    client.link.send(b"the last word")
    client.link.close()
    assert sessions.until(("closed", "w00")) == [
        ("opened", "w00"),
        ("received", "w00", b"the last word"),
    ]


def test_a_stopped_session_does_not_come_back(parties, sessions, client):
    served = parties("coordinator").serve_control(ANY, sessions)
    session = parties("w00").open_session(served.address, client)
    client.until(("opened",))
    session.stop()
    assert client.next() == ("closed",)
    assert sessions.until(("closed", "w00")) == [("opened", "w00")]
    time.sleep(0.4)
    assert sessions.events.empty()
    assert client.events.empty()
    client.link.send(b"into the void")  # does nothing


def test_sessions_come_back_after_a_restart(parties, sessions, client):
    first = parties("coordinator").serve_control(ANY, sessions)
    parties("w00").open_session(first.address, client)
    client.until(("opened",))
    first.stop()
    assert client.next() == ("closed",)
    assert sessions.until(("closed", "w00")) == [("opened", "w00")]
    again = RecordingSessionHandler()
    parties("coordinator").serve_control(first.address, again)
    assert again.next(5) == ("opened", "w00")
    assert client.until(("opened",)) in ([], [("closed",)])
    client.link.send(b"here again")
    assert again.next() == ("received", "w00", b"here again")


def test_a_session_can_be_opened_before_the_server_listens(parties, sessions, client):
    served = parties("coordinator").serve_control(ANY, RecordingSessionHandler())
    served.stop()
    parties("w00").open_session(served.address, client)
    time.sleep(0.1)
    parties("coordinator").serve_control(served.address, sessions)
    assert sessions.next(5) == ("opened", "w00")


def test_a_second_session_of_a_name_replaces_the_first(parties, sessions, client):
    served = parties("coordinator").serve_control(ANY, sessions)
    old = parties("w00").open_session(served.address, client)
    client.until(("opened",))
    newer = RecordingClientHandler()
    parties("w00").open_session(served.address, newer)
    assert newer.next() == ("opened",)
    assert client.next() == ("closed",)
    assert "replaced" in client.reason
    old.stop()
    assert [sessions.next() for _ in range(3)] == [
        ("opened", "w00"),
        ("closed", "w00"),
        ("opened", "w00"),
    ]


def test_messages_reach_only_their_session(parties, sessions):
    served = parties("coordinator").serve_control(ANY, sessions)
    clients = {name: RecordingClientHandler() for name in ("w00", "w01")}
    for name, one in clients.items():
        parties(name).open_session(served.address, one)
        one.until(("opened",))
    clients["w01"].link.send(b"hello")
    sessions.until(("received", "w01", b"hello"))
    sessions.links["w00"].send(b"for w00")
    assert clients["w00"].next() == ("received", b"for w00")
    assert clients["w01"].events.empty()


def test_a_message_that_is_too_long_is_refused_and_the_session_stays_open(
    parties, sessions, client
):
    served = parties("coordinator").serve_control(ANY, sessions)
    parties("w00").open_session(served.address, client)
    sessions.until(("opened", "w00"))
    client.until(("opened",))
    for link in (client.link, sessions.links["w00"]):
        with pytest.raises(TransportError, match="too long"):
            link.send(b"x" * (MAX_MESSAGE_BYTES + 1))
    client.link.send(b"x" * MAX_MESSAGE_BYTES)
    assert len(sessions.next()[2]) == MAX_MESSAGE_BYTES


def test_dropping_cuts_the_session(parties, sessions, client):
    served = parties("coordinator").serve_control(ANY, sessions)
    parties("w00").open_session(served.address, client)
    client.until(("opened",))
    parties.banned.add("w00")
    began = time.monotonic()
    served.drop("w00")
    assert client.next() == ("closed",)
    assert time.monotonic() - began < 1.0
    assert sessions.until(("closed", "w00")) == [("opened", "w00")]
    time.sleep(0.5)
    assert sessions.events.empty()  # it tries again, and is not let in


def test_a_taken_address_is_named(parties, sessions):
    served = parties("coordinator").serve_control(ANY, sessions)
    with pytest.raises(TransportError, match=rf"{served.address}.*port"):
        parties("coordinator").serve_control(served.address, sessions)
    with pytest.raises(TransportError, match=rf"{served.address}.*port"):
        parties("w00").serve_models(served.address, FakeModelSource())
