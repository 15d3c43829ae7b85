"""Strangers and members that mean harm, against processes at work (F-2, F-3, F-5, F-9)."""

import json
import os
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from dystop.experiments.testbed.enrolment import COORDINATOR, read_status
from dystop.rng import stream
from dystop.testbed.protocol.codec import BadMessage, decode, encode
from dystop.testbed.protocol.messages import (
    PROTOCOL,
    Complaint,
    ExecuteAck,
    Heartbeat,
    Join,
    Leave,
    PullBroken,
    PullRefused,
    PullRequest,
    Report,
    Scored,
    Used,
)
from dystop.testbed.security import authority
from dystop.testbed.security.tls import channel_credentials
from dystop.testbed.transport.admission import anyone
from dystop.testbed.transport.grpc import GrpcTransport
from dystop.testbed.transport.grpc_settings import PULL, client_options
from dystop.testbed.transport.interface import PullTimeouts

from .rig import QUICK, Rig, Setting
from .supervision import resources_of
from .transfer import Pair

import grpc  # isort: skip

pytestmark = pytest.mark.chaos

ATTACK_S = 20.0
MORE_BYTES = 32 * 2**20
HELLO = bytes.fromhex("16030102000100 01fc0303") + bytes(500)
DOCUMENTED = {"size", "depth", "type", "malformed", "invalid", "not_joined"}


@pytest.fixture(scope="module")
def bed(tmp_path_factory):
    """Four workers at work while all tests of this file go on; checked at the end."""
    keys = (*QUICK, "stop.rounds=1000000", "testbed.observer=false")
    with Rig(tmp_path_factory.mktemp("hostile"), Setting(keys)) as rig:
        authority.issue(rig.folder / "pki", "w99")  # a certificate, but no place in the experiment
        rig.start()
        rig.until(lambda: rig.rounds > 5 and rig.joined == 4, 120)
        yield rig
        rig.stop()
        assert rig.findings() == []


def addresses(rig: Rig) -> dict[str, tuple[str, int]]:
    """Where everybody listens."""
    with sqlite3.connect(f"file:{rig.folder / 'state.db'}?mode=ro", uri=True) as base:
        rows = base.execute("SELECT name, address FROM workers").fetchall()
    base.close()
    found = {COORDINATOR: rig.address, **{name: address for name, address in rows if address}}
    return {name: (a.rpartition(":")[0], int(a.rpartition(":")[2])) for name, a in found.items()}


class Siege:
    """Keeps the rig going while something happens; nobody may crash, swell or talk too much."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.over = threading.Event()
        self._threads: list[threading.Thread] = []
        self._before = self._state()
        self.idle = self._pace(4.0)

    def _state(self) -> dict[str, tuple[int, int, int]]:
        found = {}
        for name, child in self.rig.supervisor.children.items():
            taken = resources_of(self.rig.supervisor.pid(name) or 0) or {}
            found[name] = (child.starts, taken.get("rss_bytes", 0), child.log.stat().st_size)
        return found

    def _pace(self, seconds: float) -> float:
        """Rounds per second."""
        before = self.rig.rounds
        self.rig.spend(seconds)
        return (self.rig.rounds - before) / seconds

    def lay(self, *attacks: Callable[[threading.Event], None]) -> float:
        """Attack for a while; answers the pace of rounds meanwhile."""
        for attack in attacks:
            thread = threading.Thread(target=attack, args=(self.over,), daemon=True)
            self._threads.append(thread)
            thread.start()
        pace = self._pace(ATTACK_S)
        self.over.set()
        for thread in self._threads:
            thread.join(20)
        return pace

    def check(self) -> int:
        """Nobody was hurt; answers the largest growth of memory in bytes."""
        before = self.rig.rounds
        self.rig.until(lambda: self.rig.rounds > before + 5, 60)
        assert self.rig.joined == 4
        most = 0
        for name, (starts, rss, log) in self._state().items():
            started, was, logged = self._before[name]
            assert starts == started, f"{name} was started again"
            assert log - logged <= 10**6, f"{name} wrote {log - logged} bytes of log"
            most = max(most, rss - was)
        assert most <= MORE_BYTES
        return most


def test_f2_garbage_connections(bed, tell):
    """F-2: garbage on every port, as fast as it goes."""
    siege, count, there = Siege(bed), Counter(), list(addresses(bed).values())

    def attack(over: threading.Event) -> None:
        dice = stream(2, "garbage", threading.get_ident())
        while not over.is_set():
            place = there[int(dice.integers(len(there)))]
            try:
                with socket.create_connection(place, 2) as peer:
                    peer.sendall(dice.bytes(int(dice.integers(1, 300))))
                count["sent"] += 1
            except OSError:
                count["refused"] += 1

    pace = siege.lay(*[attack] * 3)
    grown = siege.check()
    tell(f"{count['sent']} connections, {count['refused']} refused; {siege.idle:.1f} -> {pace:.1f} "
         f"rounds/s, memory +{grown / 2**20:.1f} MiB")  # fmt: skip
    assert count["sent"] > 1000
    assert pace > 0


MESSAGES = [
    Join(PROTOCOL, "ab", 1, "127.0.0.1:1", "cd", "x", 10, (1, 2), 1, 1, 1, "idle", 1),
    Heartbeat(1, 1),
    ExecuteAck(1, "accepted"),
    Report(1, "mixed", (Used(1, 0, 1, 1, "ab", 10, 0.1),)),
    Scored(1, 0.5, 0.1, 0.5, 1.0, 1.0, 0),
    Leave("bye"),
]


def mutated(dice, message: bytes) -> bytes:
    """A message with something wrong in it."""
    data, kind = bytearray(message), int(dice.integers(6))
    at = int(dice.integers(len(data)))
    if kind == 0:
        data[at] ^= int(dice.integers(1, 256))
    elif kind == 1:
        del data[at : at + int(dice.integers(1, 20))]
    elif kind == 2:
        data[at:at] = dice.bytes(int(dice.integers(1, 20)))
    elif kind == 3:
        data = bytearray(message.replace(b":1", b":" + b"9" * int(dice.integers(20, 400))))
    elif kind == 4:
        deep = int(dice.integers(10, 5000))
        data = bytearray(message[:-1] + b',"x":' + b"[" * deep + b"]" * deep + b"}")
    else:
        data = bytearray(dice.bytes(int(dice.integers(0, 2000))))
    return bytes(data)


class Nuisance:
    """An ear with a certificate that says nonsense whenever it gets a line."""

    def __init__(self, count: Counter) -> None:
        self.count, self.dice = count, stream(3, "nonsense")

    def opened(self, link) -> None:
        self.count["sessions"] += 1
        for _ in range(40):
            message = encode(MESSAGES[int(self.dice.integers(len(MESSAGES)))])
            link.send(mutated(self.dice, message))
            self.count["sent"] += 1

    def received(self, message: bytes) -> None:
        told = decode(message, "worker")
        self.count[told.code if isinstance(told, Complaint) else type(told).__name__] += 1

    def closed(self, reason: str) -> None:
        pass


def pulling(rig: Rig, name: str, peer: str):
    """A raw channel to a worker under a name, and the call behind it."""
    identity = authority.load_identity(rig.folder / "pki", name)
    host, port = addresses(rig)[peer]
    channel = grpc.secure_channel(
        f"{host}:{port}", channel_credentials(identity), options=client_options(peer, 5.0)
    )
    return channel, channel.unary_stream(PULL)


def test_f3_malformed_messages(bed, tell):
    """F-3: nonsense over valid mutual TLS, to the coordinator and to a worker."""
    siege, said, pulled = Siege(bed), Counter(), Counter()
    good = encode(PullRequest("ab", 1))

    def to_coordinator(over: threading.Event) -> None:
        transport = GrpcTransport(authority.load_identity(bed.folder / "pki", "w99"), anyone)
        session = transport.open_session(bed.address, Nuisance(said))
        over.wait()
        session.stop()
        transport.close()

    def to_worker(over: threading.Event) -> None:
        channel, call = pulling(bed, "observer", "w01")
        dice = stream(3, "pulls")
        while not over.is_set():
            try:
                for frame in call(mutated(dice, good), timeout=5):
                    first = decode(frame, "peer")
                    pulled[first.code if isinstance(first, PullRefused) else "model"] += 1
                    break
            except (grpc.RpcError, BadMessage) as error:
                pulled[type(error).__name__] += 1
        channel.close()

    pace = siege.lay(to_coordinator, to_worker)
    grown = siege.check()
    tell(f"coordinator {dict(said)}; worker {dict(pulled)}; {siege.idle:.1f} -> {pace:.1f} "
         f"rounds/s, memory +{grown / 2**20:.1f} MiB")  # fmt: skip
    assert said["sent"] > 100
    assert set(said) - {"sent", "sessions", "Reject", "Heartbeat", "JoinOk"} <= DOCUMENTED
    assert pulled["malformed"] > 500
    assert "model" not in pulled
    assert pulled["BadMessage"] == 0


def test_f5_connections_that_never_say_anything(bed, tell):
    """F-5: slow strangers are cut off at the handshake."""
    siege, cut = Siege(bed), []

    def attack(over: threading.Event) -> None:
        began = time.monotonic()
        places = [place for place in addresses(bed).values() for _ in range(60)]
        peers = [socket.create_connection(place, 5) for place in places]
        for byte in HELLO:  # of a handshake that would be right if it ever ended
            if not peers or over.wait(0.5):
                break
            left = []
            for peer in peers:
                try:
                    peer.setblocking(False)
                    peer.send(bytes([byte]))
                    if peer.recv(1) == b"":
                        raise ConnectionResetError
                except BlockingIOError:
                    left.append(peer)
                except OSError:
                    cut.append(time.monotonic() - began)
                    peer.close()
            peers = left
        for peer in peers:
            peer.close()

    pace = siege.lay(attack)
    grown = siege.check()
    tell(f"{len(cut)} of 300 cut, the last after {max(cut, default=0):.1f} s; {siege.idle:.1f} -> "
         f"{pace:.1f} rounds/s, memory +{grown / 2**20:.1f} MiB")  # fmt: skip
    assert len(cut) == 300
    assert max(cut) < 12.0


@pytest.mark.parametrize("manner", ["endless", "drip"])
def test_f5_models_that_never_end(tmp_path, tell, manner):
    """F-5: more than was announced is cut at once, a drip at the deadline; memory stays small."""
    pair = Pair(tmp_path, 4.0)
    with pair.serving(manner):
        came = pair.fetch(8.0)()
    tell(f"{manner}: {came['code']} after {came['seconds']:.1f} s and {came['bytes']} bytes, "
         f"{came['rss'] / 2**20:.0f} MiB")  # fmt: skip
    assert came["code"]
    assert came["seconds"] < 13.0
    assert came["bytes"] < 2.5 * 4.1e6


def test_f9_a_flooder(bed, tell):
    """F-9: a member that fetches as fast as it can gets two models at a time and no more."""
    siege, count, lock = Siege(bed), Counter(), threading.Lock()
    run = read_status(bed.folder)["run"]
    there = addresses(bed)
    transport = GrpcTransport(authority.load_identity(bed.folder / "pki", "observer"), anyone)
    at_once, most = Counter(), Counter()

    class Bin:
        """A parcel that throws everything away, and counts how many are open."""

        def __init__(self, peer: str) -> None:
            self.peer, self.left = peer, 0

        def begin(self, header) -> None:
            with lock:
                self.left = header.size
                at_once[self.peer] += 1
                most[self.peer] = max(most[self.peer], at_once[self.peer])

        def write(self, chunk) -> None:
            self.left -= len(chunk)
            if self.left <= 0:
                self.end()

        def end(self) -> None:
            with lock:
                at_once[self.peer] -= self.left is not None
                self.left = None

    def attack(over: threading.Event) -> None:
        while not over.is_set():
            for peer in ("w00", "w01", "w02"):
                host, port = there[peer]
                bin_ = Bin(peer)
                request = PullRequest(run, 10**9, bytes_per_s=20_000.0)
                try:
                    transport.pull(peer, f"{host}:{port}", request, bin_, PullTimeouts(), over)
                    count["models"] += 1
                except PullBroken as error:
                    count[error.code] += 1
                    if bin_.left:
                        bin_.end()

    pace = siege.lay(*[attack] * 8)
    transport.close()
    grown = siege.check()
    tell(f"{json.dumps(count)}, at once {dict(most)}; {siege.idle:.1f} -> {pace:.1f} rounds/s, "
         f"memory +{grown / 2**20:.1f} MiB, {os.cpu_count()} cores")  # fmt: skip
    assert count["busy"] > 0
    assert max(most.values()) <= 3  # two, and one whose last bytes are still on their way
    assert pace > 0.1 * siege.idle  # the flooder takes its share of the same cores
