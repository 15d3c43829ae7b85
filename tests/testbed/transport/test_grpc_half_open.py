"""Callers that open calls and send nothing do not keep others out."""

import threading
import time

import pytest

from dystop.testbed.params import Limits
from dystop.testbed.protocol.codec import MAX_MESSAGE_BYTES, encode
from dystop.testbed.security import authority
from dystop.testbed.security.tls import channel_credentials
from dystop.testbed.transport import grpc_calls, grpc_server
from dystop.testbed.transport.grpc import GrpcTransport
from dystop.testbed.transport.grpc_settings import PULL, SESSION, client_options
from support.testbed.half_open import half_open_calls
from support.testbed.transport_fixtures import ANY, NOW
from support.testbed.transport_parties import (
    QUICK,
    BufferSink,
    FakeModelSource,
    RecordingClientHandler,
    RecordingSessionHandler,
    until,
)

import grpc  # isort: skip

HALF_OPEN = 100
BODY_S = 1.0
SLOTS = Limits(pulls=4, pulls_per_peer=2)


@pytest.fixture(autouse=True)
def short_wait(monkeypatch):
    monkeypatch.setattr(grpc_calls, "BODY_S", BODY_S)


def credentials(folder, name):
    return channel_credentials(authority.load_identity(folder, name))


def pull_as(folder, name, address, closing) -> float:
    """Pull a model and return how long it took."""
    puller = closing(GrpcTransport(authority.load_identity(folder, name), lambda *_: True))
    sink, began = BufferSink(), time.monotonic()
    puller.pull("w00", address, NOW, sink, QUICK, threading.Event())
    assert bytes(sink.got) == b"model"
    return time.monotonic() - began


@pytest.mark.parametrize("banned", [set(), {"w02"}], ids=["member", "revoked"])
def test_half_open_pulls_stop_nobody(banned, folder, closing):
    source = FakeModelSource(b"model")
    identity = authority.load_identity(folder, "w00")
    server = closing(GrpcTransport(identity, lambda name, _: name not in banned, SLOTS))
    address = server.serve_models(ANY, source).address
    with half_open_calls(address, "w00", PULL, credentials(folder, "w02"), HALF_OPEN):
        for _ in range(3):
            assert pull_as(folder, "w01", address, closing) < 2.0
    assert {name for name, _ in source.requests} == {"w01"}


def test_a_half_open_pull_ends_and_its_caller_is_named(folder, closing):
    source = FakeModelSource(b"model")
    server = closing(GrpcTransport(authority.load_identity(folder, "w00"), lambda *_: True))
    address = server.serve_models(ANY, source).address
    with half_open_calls(address, "w00", PULL, credentials(folder, "w02"), 3) as calls:
        assert until(lambda: all(call.done() for call in calls), 5 * BODY_S)
        assert until(lambda: len(source.incidents) == 3)
    assert {(name, kind) for name, kind, _ in source.incidents} == {("w02", "half_open")}
    assert source.requests == []


def test_no_thread_is_left_behind(folder, closing):
    server = closing(GrpcTransport(authority.load_identity(folder, "w00"), lambda *_: True))
    address = server.serve_models(ANY, FakeModelSource(b"model")).address

    def serving():
        return sum(thread.name == "grpc-call" for thread in threading.enumerate())

    with half_open_calls(address, "w00", PULL, credentials(folder, "w02"), HALF_OPEN):
        assert until(lambda: serving() > 0)
        assert until(lambda: 0 < serving() <= grpc_server.OPEN_PULLS, BODY_S)
        assert until(lambda: serving() == 0, 10 * BODY_S)


def test_a_client_that_streams_and_one_that_does_not_get_the_same_bytes(folder, closing):
    source = FakeModelSource(b"model")
    server = closing(GrpcTransport(authority.load_identity(folder, "w00"), lambda *_: True))
    address = server.serve_models(ANY, source).address
    options = client_options("w00", 5.0)
    with grpc.secure_channel(address, credentials(folder, "w01"), options) as channel:
        unary = list(channel.unary_stream(PULL)(encode(NOW)))
        streaming = list(channel.stream_stream(PULL)(iter([encode(NOW)])))
    assert unary == streaming
    assert b"".join(unary[1:]) == b"model"


def test_a_member_that_sends_large_messages_without_end_is_read_slowly(folder, closing):
    sessions, loud, quiet = RecordingSessionHandler(), *(RecordingClientHandler() for _ in "12")
    limits = Limits(bytes_per_s=100_000)
    identity = authority.load_identity(folder, "coordinator")
    server = closing(GrpcTransport(identity, lambda *_: True, limits))
    address = server.serve_control(ANY, sessions).address
    for name, client in (("w02", loud), ("w01", quiet)):
        worker = closing(GrpcTransport(authority.load_identity(folder, name), lambda *_: True))
        worker.open_session(address, client)
        assert client.next() == ("opened",)
    began, large = time.monotonic(), bytes(500_000)
    for _ in range(100):
        loud.link.send(large)
    for k in range(5):
        time.sleep(0.3)
        quiet.link.send(b"%d" % k)
        assert until(lambda k=k: ("received", "w01", b"%d" % k) in sessions.events.queue, 1.0)
    received = sum(event == ("received", "w02", large) for event in list(sessions.events.queue))
    bound = MAX_MESSAGE_BYTES + 100_000 * (time.monotonic() - began)
    assert received <= bound / len(large) + 1
    assert until(lambda: sessions.incidents)
    assert {(name, kind) for name, kind, _ in sessions.incidents} == {("w02", "flood")}


def test_a_member_that_opens_sessions_without_end_does_not_keep_others_out(folder, closing):
    sessions = RecordingSessionHandler()
    server = closing(GrpcTransport(authority.load_identity(folder, "coordinator"), lambda *_: True))
    address = server.serve_control(ANY, sessions).address
    with half_open_calls(address, "coordinator", SESSION, credentials(folder, "w02"), HALF_OPEN):
        client = RecordingClientHandler()
        worker = closing(GrpcTransport(authority.load_identity(folder, "w01"), lambda *_: True))
        began = time.monotonic()
        worker.open_session(address, client)
        assert client.next() == ("opened",)
        assert time.monotonic() - began < 3.0
        assert until(lambda: sessions.incidents)
        opened = [event for event in sessions.events.queue if event == ("opened", "w02")]
        assert len(opened) <= grpc_server.SESSIONS_AT_ONCE + 5
    assert {(name, kind) for name, kind, _ in sessions.incidents} == {("w02", "flood")}
