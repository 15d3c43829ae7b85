"""One contract for all transports."""

import os
import threading
import time
from pathlib import Path

import pytest
from mpi_party import lone_party, lone_switch
from parties import QUICK, RUN, Aside, Box, NotingDesk, NotingEar, Shelf, broken, until

from dystop.rng import stream
from dystop.runtime import pki
from dystop.runtime.messages import PullRefused, PullRequest
from dystop.runtime.params import Limits
from dystop.runtime.transport.base import MAX_MESSAGE_BYTES, Patience, PullBroken, TransportError
from dystop.runtime.transport.memory import MemoryHub, MemoryTransport

NOW = PullRequest(RUN, round=1)
ANY = "127.0.0.1:0"
NAMES = ("coordinator", "w00", "w01", "w02")


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("pki")
    pki.init(made)
    for name in NAMES:
        pki.issue(made, name)
    return made


class Parties:
    """Makes transports of one kind and closes them all."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.made = kind, folder, []
        self.banned: set[str] = set()
        self.hub = MemoryHub()

    def allowed(self, name: str, fingerprint: str) -> bool:
        return name not in self.banned

    def __call__(self, name: str, limits: Limits | None = None):
        if self.kind == "memory":
            transport = MemoryTransport(self.hub, name, limits, self.allowed)
        elif self.kind == "mpi":
            transport = lone_party(NAMES, name, limits, self.allowed)
        else:
            from dystop.runtime.transport.grpc import GrpcTransport

            identity = pki.load_identity(self.folder, name)
            transport = GrpcTransport(identity, self.allowed, limits)
        self.made.append(transport)
        return transport

    def close(self) -> None:
        for transport in reversed(self.made):
            transport.close()
        self.hub.close()


# MPI can be entered once in a process: tests/runtime/test_mpi.py runs this file under mpiexec.
KINDS = ["mpi"] if os.environ.get("DYSTOP_TEST_MPI") else ["memory", "grpc"]


@pytest.fixture(params=KINDS)
def parties(request, folder):
    if request.param == "mpi":
        lone_switch(NAMES)
    before = set(threading.enumerate())
    made = Parties(request.param, folder)
    yield made
    made.close()
    assert until(lambda: not leftovers(before)), leftovers(before)


def leftovers(before) -> list[threading.Thread]:
    return [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]


@pytest.fixture
def desk() -> NotingDesk:
    return NotingDesk()


@pytest.fixture
def ear() -> NotingEar:
    return NotingEar()


def payload(size: int = 3_000_001) -> bytes:
    return stream(0, "payload", size).bytes(size)


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


# Pulls -----------------------------------------------------------------------------------------


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
    hasty, began = Patience(connect_s=0.1, first_byte_s=0.3), time.monotonic()
    assert broken(lambda: pull(parties("w01"), served, Box(), patience=hasty)).code == "timeout"
    assert 0.3 <= time.monotonic() - began < 1.5


def test_a_sender_that_stands_still_is_noticed(parties):
    served = parties("w00").serve_models(ANY, Shelf(payload(), bytes_per_s=100.0))
    hasty, began = Patience(progress_s=0.3), time.monotonic()
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
