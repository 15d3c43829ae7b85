"""The behaviour of pulls that all transports have in common."""

import threading
import time

import pytest

from dystop.testbed.params import Limits
from dystop.testbed.protocol.pulls import PullBroken, PullRefused, PullRequest
from dystop.testbed.transport.interface import PullTimeouts
from support.testbed.transport_fixtures import ANY, NOW, payload
from support.testbed.transport_parties import (
    QUICK,
    RUN,
    BackgroundCall,
    BufferSink,
    FakeModelSource,
    broken,
    until,
)


def pull(transport, served, sink, request=NOW, timeouts=QUICK, cancelled=None, name="w00"):
    transport.pull(name, served.address, request, sink, timeouts, cancelled or threading.Event())


@pytest.mark.parametrize("size", [0, 1, 3_000_001])
def test_a_whole_model(parties, size):
    source = FakeModelSource(payload(size))
    served, sink = parties("w00").serve_models(ANY, source), BufferSink()
    pull(parties("w01"), served, sink)
    assert bytes(sink.got) == source.payload
    assert sink.header == source.header()
    assert source.requests == [("w01", NOW)]


@pytest.mark.parametrize("offset", [1, 1_000_000, 2_500_000, 3_000_001])
def test_going_on_at_an_offset(parties, offset):
    source = FakeModelSource(payload())
    served, sink = parties("w00").serve_models(ANY, source), BufferSink()
    request = PullRequest(RUN, round=1, version=3, offset=offset)
    pull(parties("w01"), served, sink, request)
    assert sink.header.offset == offset
    assert bytes(sink.got) == source.payload[offset:]


def test_a_refusal_reaches_the_puller(parties):
    served = parties("w00").serve_models(ANY, FakeModelSource(refuse=PullRefused("no_model", 1.5)))
    error = broken(lambda: pull(parties("w01"), served, BufferSink()))
    assert (error.code, error.retry_s) == ("no_model", 1.5)


def test_a_source_that_raises_gives_no_model(parties, caplog):
    class Broken(FakeModelSource):
        def requested(self, name, request):
            raise RuntimeError("a mistake")

    served = parties("w00").serve_models(ANY, Broken())
    assert broken(lambda: pull(parties("w01"), served, BufferSink())).code == "no_model"


def test_an_unknown_address_or_another_peer_is_unreachable(parties):
    served = parties("w00").serve_models(ANY, FakeModelSource(b"x"))
    puller = parties("w01")
    assert broken(lambda: pull(puller, served, BufferSink(), name="w02")).code == "unreachable"
    served.stop()
    assert broken(lambda: pull(puller, served, BufferSink())).code == "unreachable"


def test_a_banned_peer_is_refused_at_every_pull(parties):
    served = parties("w00").serve_models(ANY, FakeModelSource(b"x"))
    puller = parties("w01")
    pull(puller, served, BufferSink())
    parties.banned.add("w01")
    assert broken(lambda: pull(puller, served, BufferSink())).code == "not_authorised"


def test_a_deferred_answer_arrives_later(parties):
    source = FakeModelSource(payload(10), defer=True)
    served, sink = parties("w00").serve_models(ANY, source), BufferSink()
    waiting = BackgroundCall(lambda: pull(parties("w01"), served, sink))
    assert until(lambda: len(source.deferred) == 1)
    source.deferred[0].set_result(source.answer(NOW))
    waiting.result()
    assert bytes(sink.got) == source.payload


def test_the_puller_can_give_up_while_it_waits(parties):
    source, give_up = FakeModelSource(b"x", defer=True), threading.Event()
    served = parties("w00").serve_models(ANY, source)
    waiting = BackgroundCall(lambda: pull(parties("w01"), served, BufferSink(), cancelled=give_up))
    assert until(lambda: len(source.deferred) == 1)
    give_up.set()
    assert waiting.broken(1.0).code == "timeout"
    assert until(lambda: source.deferred[0].cancelled(), 1.0)


def test_the_puller_can_give_up_in_the_middle(parties):
    source, give_up, sink = (
        FakeModelSource(payload(), bytes_per_s=200_000),
        threading.Event(),
        BufferSink(),
    )
    served = parties("w00").serve_models(ANY, source)
    running = BackgroundCall(lambda: pull(parties("w01"), served, sink, cancelled=give_up))
    assert sink.first.wait(30)
    give_up.set()
    assert running.broken(1.0).code == "timeout"
    assert bytes(sink.got) == source.payload[: len(sink.got)]  # good for going on


def test_a_missing_answer_is_detected(parties):
    served = parties("w00").serve_models(ANY, FakeModelSource(b"x", defer=True))
    hasty, began = PullTimeouts(connect_s=0.1, first_byte_s=0.3), time.monotonic()
    assert (
        broken(lambda: pull(parties("w01"), served, BufferSink(), timeouts=hasty)).code == "timeout"
    )
    assert 0.3 <= time.monotonic() - began < 1.5


def test_a_sender_that_stalls_is_detected(parties):
    served = parties("w00").serve_models(ANY, FakeModelSource(payload(), bytes_per_s=100.0))
    hasty, began = PullTimeouts(progress_s=0.3), time.monotonic()
    assert (
        broken(lambda: pull(parties("w01"), served, BufferSink(), timeouts=hasty)).code == "timeout"
    )
    assert 0.3 <= time.monotonic() - began < 1.5


def test_a_server_that_dies_in_the_middle(parties):
    source, sink, puller = (
        FakeModelSource(payload(), bytes_per_s=200_000),
        BufferSink(),
        parties("w01"),
    )
    served = parties("w00").serve_models(ANY, source)
    running = BackgroundCall(lambda: pull(puller, served, sink))
    assert sink.first.wait(30)
    served.stop()
    assert running.broken(2.0).code == "unreachable"
    source.bytes_per_s = 0.0
    again = parties("w00").serve_models(served.address, source)
    rest = BufferSink()
    pull(puller, again, rest, PullRequest(RUN, 1, version=3, offset=len(sink.got)))
    assert bytes(sink.got + rest.got) == source.payload


def test_dropping_cuts_the_pulls_of_that_peer_only(parties):
    source = FakeModelSource(payload(100_000), bytes_per_s=100_000)
    served, cut, other = parties("w00").serve_models(ANY, source), BufferSink(), BufferSink()
    pulls = [
        BackgroundCall(lambda: pull(parties("w01"), served, cut)),
        BackgroundCall(lambda: pull(parties("w02"), served, other)),
    ]
    assert cut.first.wait(30)
    assert other.first.wait(30)
    began = time.monotonic()
    served.drop("w01")
    assert pulls[0].broken(1.0).code == "unreachable"
    assert time.monotonic() - began < 0.5
    pulls[1].result()
    assert bytes(other.got) == source.payload


def test_limits_hold_per_peer_and_in_all(parties):
    source = FakeModelSource(payload(10), defer=True)
    server = parties("w00", Limits(pulls=3, pulls_per_peer=2))
    served = server.serve_models(ANY, source)
    one, two = parties("w01"), parties("w02")
    waiting = [BackgroundCall(lambda: pull(one, served, BufferSink())) for _ in range(2)]
    assert until(lambda: len(source.deferred) == 2)
    error = broken(lambda: pull(one, served, BufferSink()))
    assert error.code == "busy"
    assert error.retry_s > 0
    waiting.append(BackgroundCall(lambda: pull(two, served, BufferSink())))
    assert until(lambda: len(source.deferred) == 3)
    assert broken(lambda: pull(two, served, BufferSink())).code == "busy"
    assert len(source.deferred) == 3  # the store was not even asked
    for answer in source.deferred:
        answer.set_result(source.answer(NOW))
    for each in waiting:
        each.result()
    source.defer = False
    assert until(
        lambda: not isinstance(_try(lambda: pull(two, served, BufferSink())), Exception), 2.0
    )


def _try(call):
    try:
        return call()
    except Exception as error:
        return error


def test_two_transfers_at_once(parties):
    source = FakeModelSource(payload())
    served, puller = parties("w00").serve_models(ANY, source), parties("w01")
    sinks = [BufferSink(), BufferSink()]
    for running in [BackgroundCall(lambda sink=sink: pull(puller, served, sink)) for sink in sinks]:
        running.result()
    assert [bytes(sink.got) == source.payload for sink in sinks] == [True, True]


def test_a_sink_that_refuses_the_header_ends_the_pull(parties):
    class RefusingSink(BufferSink):
        def begin(self, header):
            raise PullBroken("schema")

    served, puller = parties("w00").serve_models(ANY, FakeModelSource(payload())), parties("w01")
    assert broken(lambda: pull(puller, served, RefusingSink())).code == "schema"
    sink = BufferSink()
    pull(puller, served, sink)  # the next one works
    assert len(sink.got) == 3_000_001


def test_a_paced_model_arrives_at_its_rate(parties):
    source, sink = FakeModelSource(payload(100_000), bytes_per_s=200_000), BufferSink()
    served, puller = parties("w00").serve_models(ANY, source), parties("w01")
    pull(puller, served, BufferSink(), PullRequest(RUN, 1, offset=99_999))  # opens the connection
    began = time.monotonic()
    pull(puller, served, sink)
    took_s = time.monotonic() - began
    assert bytes(sink.got) == source.payload
    assert 0.49 <= took_s < 2.0
