"""One contract for the pulls of all transports."""

import threading
import time

import pytest

from dystop.testbed.params import Limits
from dystop.testbed.protocol.interface import PullBroken, PullTimeouts
from dystop.testbed.protocol.messages import PullRefused, PullRequest
from support.transport_fixtures import ANY, KINDS, NOW, certificates, meeting, payload
from support.transport_parties import QUICK, RUN, Aside, Box, Shelf, broken, until


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return certificates(tmp_path_factory.mktemp("pki"))


@pytest.fixture(params=KINDS)
def parties(request, folder):
    with meeting(request.param, folder) as parties:
        yield parties


def pull(transport, served, box, request=NOW, patience=QUICK, cancelled=None, name="w00"):
    transport.pull(name, served.address, request, box, patience, cancelled or threading.Event())


@pytest.mark.parametrize("size", [0, 1, 3_000_001])
def test_a_whole_model(parties, size):
    shelf = Shelf(payload(size))
    served, box = parties("w00").serve_models(ANY, shelf), Box()
    pull(parties("w01"), served, box)
    assert bytes(box.got) == shelf.payload
    assert box.header == shelf.header()
    assert shelf.asked_by == [("w01", NOW)]


@pytest.mark.parametrize("offset", [1, 1_000_000, 2_500_000, 3_000_001])
def test_going_on_at_an_offset(parties, offset):
    shelf = Shelf(payload())
    served, box = parties("w00").serve_models(ANY, shelf), Box()
    request = PullRequest(RUN, round=1, version=3, offset=offset)
    pull(parties("w01"), served, box, request)
    assert box.header.offset == offset
    assert bytes(box.got) == shelf.payload[offset:]


def test_a_refusal_is_handed_on(parties):
    served = parties("w00").serve_models(ANY, Shelf(refuse=PullRefused("no_model", 1.5)))
    error = broken(lambda: pull(parties("w01"), served, Box()))
    assert (error.code, error.retry_s) == ("no_model", 1.5)


def test_a_store_that_fails_has_no_model(parties, caplog):
    class Broken(Shelf):
        def asked(self, name, request):
            raise RuntimeError("a mistake")

    served = parties("w00").serve_models(ANY, Broken())
    assert broken(lambda: pull(parties("w01"), served, Box())).code == "no_model"


def test_nobody_there_or_somebody_else(parties):
    served = parties("w00").serve_models(ANY, Shelf(b"x"))
    puller = parties("w01")
    assert broken(lambda: pull(puller, served, Box(), name="w02")).code == "unreachable"
    served.stop()
    assert broken(lambda: pull(puller, served, Box())).code == "unreachable"


def test_who_is_not_allowed_is_refused_at_every_pull(parties):
    served = parties("w00").serve_models(ANY, Shelf(b"x"))
    puller = parties("w01")
    pull(puller, served, Box())
    parties.banned.add("w01")
    assert broken(lambda: pull(puller, served, Box())).code == "not_authorised"


def test_a_parked_answer_comes_later(parties):
    shelf = Shelf(payload(10), park=True)
    served, box = parties("w00").serve_models(ANY, shelf), Box()
    waiting = Aside(lambda: pull(parties("w01"), served, box))
    assert until(lambda: len(shelf.parked) == 1)
    shelf.parked[0].set_result(shelf.answer(NOW))
    waiting.result()
    assert bytes(box.got) == shelf.payload


def test_the_puller_can_give_up_while_it_waits(parties):
    shelf, give_up = Shelf(b"x", park=True), threading.Event()
    served = parties("w00").serve_models(ANY, shelf)
    waiting = Aside(lambda: pull(parties("w01"), served, Box(), cancelled=give_up))
    assert until(lambda: len(shelf.parked) == 1)
    give_up.set()
    assert waiting.broken(1.0).code == "timeout"
    assert until(lambda: shelf.parked[0].cancelled(), 1.0)


def test_the_puller_can_give_up_in_the_middle(parties):
    shelf, give_up, box = Shelf(payload(), bytes_per_s=200_000), threading.Event(), Box()
    served = parties("w00").serve_models(ANY, shelf)
    running = Aside(lambda: pull(parties("w01"), served, box, cancelled=give_up))
    assert box.first.wait(5)
    give_up.set()
    assert running.broken(1.0).code == "timeout"
    assert bytes(box.got) == shelf.payload[: len(box.got)]  # good for going on


def test_no_answer_is_noticed(parties):
    served = parties("w00").serve_models(ANY, Shelf(b"x", park=True))
    hasty, began = PullTimeouts(connect_s=0.1, first_byte_s=0.3), time.monotonic()
    assert broken(lambda: pull(parties("w01"), served, Box(), patience=hasty)).code == "timeout"
    assert 0.3 <= time.monotonic() - began < 1.5


def test_a_sender_that_stands_still_is_noticed(parties):
    served = parties("w00").serve_models(ANY, Shelf(payload(), bytes_per_s=100.0))
    hasty, began = PullTimeouts(progress_s=0.3), time.monotonic()
    assert broken(lambda: pull(parties("w01"), served, Box(), patience=hasty)).code == "timeout"
    assert 0.3 <= time.monotonic() - began < 1.5


def test_a_server_that_dies_in_the_middle(parties):
    shelf, box, puller = Shelf(payload(), bytes_per_s=200_000), Box(), parties("w01")
    served = parties("w00").serve_models(ANY, shelf)
    running = Aside(lambda: pull(puller, served, box))
    assert box.first.wait(5)
    served.stop()
    assert running.broken(2.0).code == "unreachable"
    shelf.bytes_per_s = 0.0
    again = parties("w00").serve_models(served.address, shelf)
    rest = Box()
    pull(puller, again, rest, PullRequest(RUN, 1, version=3, offset=len(box.got)))
    assert bytes(box.got + rest.got) == shelf.payload


def test_dropping_cuts_the_pulls_of_that_peer_only(parties):
    shelf = Shelf(payload(100_000), bytes_per_s=100_000)
    served, cut, other = parties("w00").serve_models(ANY, shelf), Box(), Box()
    pulls = [
        Aside(lambda: pull(parties("w01"), served, cut)),
        Aside(lambda: pull(parties("w02"), served, other)),
    ]
    assert cut.first.wait(5)
    assert other.first.wait(5)
    began = time.monotonic()
    served.drop("w01")
    assert pulls[0].broken(1.0).code == "unreachable"
    assert time.monotonic() - began < 0.5
    pulls[1].result()
    assert bytes(other.got) == shelf.payload


def test_limits_hold_per_peer_and_in_all(parties):
    shelf = Shelf(payload(10), park=True)
    server = parties("w00", Limits(pulls=3, pulls_per_peer=2))
    served = server.serve_models(ANY, shelf)
    one, two = parties("w01"), parties("w02")
    waiting = [Aside(lambda: pull(one, served, Box())) for _ in range(2)]
    assert until(lambda: len(shelf.parked) == 2)
    error = broken(lambda: pull(one, served, Box()))
    assert error.code == "busy"
    assert error.retry_s > 0
    waiting.append(Aside(lambda: pull(two, served, Box())))
    assert until(lambda: len(shelf.parked) == 3)
    assert broken(lambda: pull(two, served, Box())).code == "busy"
    assert len(shelf.parked) == 3  # the store was not even asked
    for answer in shelf.parked:
        answer.set_result(shelf.answer(NOW))
    for each in waiting:
        each.result()
    shelf.park = False
    assert until(lambda: not isinstance(_try(lambda: pull(two, served, Box())), Exception), 2.0)


def _try(call):
    try:
        return call()
    except Exception as error:
        return error


def test_two_transfers_at_once(parties):
    shelf = Shelf(payload())
    served, puller = parties("w00").serve_models(ANY, shelf), parties("w01")
    boxes = [Box(), Box()]
    for running in [Aside(lambda box=box: pull(puller, served, box)) for box in boxes]:
        running.result()
    assert [bytes(box.got) == shelf.payload for box in boxes] == [True, True]


def test_a_parcel_that_refuses_ends_the_pull(parties):
    class Wary(Box):
        def begin(self, header):
            raise PullBroken("schema")

    served, puller = parties("w00").serve_models(ANY, Shelf(payload())), parties("w01")
    assert broken(lambda: pull(puller, served, Wary())).code == "schema"
    box = Box()
    pull(puller, served, box)  # the next one works
    assert len(box.got) == 3_000_001


def test_a_paced_shipment_takes_its_time(parties):
    shelf, box = Shelf(payload(100_000), bytes_per_s=200_000), Box()
    served, puller = parties("w00").serve_models(ANY, shelf), parties("w01")
    pull(puller, served, Box(), PullRequest(RUN, 1, offset=99_999))  # opens the connection
    began = time.monotonic()
    pull(puller, served, box)
    took_s = time.monotonic() - began
    assert bytes(box.got) == shelf.payload
    assert 0.49 <= took_s < 2.0
