"""Attacks on running processes by strangers and by members (F-2, F-3, F-5, F-9)."""

import json
import os
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable

import pytest

from dystop.format import FORMAT
from dystop.rng import stream
from dystop.testbed.names import COORDINATOR
from dystop.testbed.protocol.codec import BadMessage, decode, encode
from dystop.testbed.protocol.messages import (
    Complaint,
    ExecuteAck,
    Heartbeat,
    Join,
    Leave,
    Report,
    Scored,
    Used,
)
from dystop.testbed.protocol.pulls import PullBroken, PullRefused, PullRequest
from dystop.testbed.security import authority
from dystop.testbed.security.tls import channel_credentials
from dystop.testbed.setup.enrolment import read_status
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
def rig(tmp_path_factory):
    """Run four workers for all tests of this file; check the run at the end."""
    keys = (*QUICK, "stop.rounds=1000000", "testbed.observer=false")
    with Rig(tmp_path_factory.mktemp("hostile"), Setting(keys)) as rig:
        authority.issue(rig.folder / "pki", "w99")  # a certificate, but no member of the experiment
        rig.start()
        rig.until(lambda: rig.rounds > 5 and rig.joined == 4, 120)
        yield rig
        rig.stop()
        assert rig.findings() == []


def addresses(rig: Rig) -> dict[str, tuple[str, int]]:
    """Return the address of every process."""
    with sqlite3.connect(f"file:{rig.folder / 'state.db'}?mode=ro", uri=True) as base:
        rows = base.execute("SELECT name, address FROM workers").fetchall()
    base.close()
    found = {COORDINATOR: rig.address, **{name: address for name, address in rows if address}}
    return {name: (a.rpartition(":")[0], int(a.rpartition(":")[2])) for name, a in found.items()}


class AttackRun:
    """Runs the rig under an attack; no process may crash, grow or write too much log."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.ended = threading.Event()
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
        """Return the rounds per second."""
        before = self.rig.rounds
        self.rig.spend(seconds)
        return (self.rig.rounds - before) / seconds

    def attack(self, *attacks: Callable[[threading.Event], None]) -> float:
        """Run attacks in threads for a while; return the rounds per second meanwhile."""
        for attack in attacks:
            thread = threading.Thread(target=attack, args=(self.ended,), daemon=True)
            self._threads.append(thread)
            thread.start()
        pace = self._pace(ATTACK_S)
        self.ended.set()
        for thread in self._threads:
            thread.join(20)
        return pace

    def check(self) -> int:
        """Check that all processes survived; return the largest growth of memory in bytes."""
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


def test_f2_garbage_connections(rig, show):
    """F-2: random bytes to every port, as fast as possible."""
    run, count, there = AttackRun(rig), Counter(), list(addresses(rig).values())

    def attack(over: threading.Event) -> None:
        rng = stream(2, "garbage", threading.get_ident())
        while not over.is_set():
            place = there[int(rng.integers(len(there)))]
            try:
                with socket.create_connection(place, 2) as peer:
                    peer.sendall(rng.bytes(int(rng.integers(1, 300))))
                count["sent"] += 1
            except OSError:
                count["refused"] += 1

    pace = run.attack(*[attack] * 3)
    grown = run.check()
    show(f"{count['sent']} connections, {count['refused']} refused; {run.idle:.1f} -> {pace:.1f} "
         f"rounds/s, memory +{grown / 2**20:.1f} MiB")  # fmt: skip
    assert count["sent"] > 1000
    assert pace > 0


MESSAGES = [
    Join(FORMAT, "ab", 1, "127.0.0.1:1", "cd", "x", 10, (1, 2), 1, 1, 1, "idle", 1),
    Heartbeat(1, 1),
    ExecuteAck(1, "accepted"),
    Report(1, "mixed", (Used(1, 0, 1, 1, "ab", 10, 0.1),)),
    Scored(1, 0.5, 0.1, 0.5, 1.0, 1.0, 0),
    Leave("bye"),
]


def mutated(rng, message: bytes) -> bytes:
    """Return a message with a random defect."""
    data, kind = bytearray(message), int(rng.integers(6))
    at = int(rng.integers(len(data)))
    if kind == 0:
        data[at] ^= int(rng.integers(1, 256))
    elif kind == 1:
        del data[at : at + int(rng.integers(1, 20))]
    elif kind == 2:
        data[at:at] = rng.bytes(int(rng.integers(1, 20)))
    elif kind == 3:
        data = bytearray(message.replace(b":1", b":" + b"9" * int(rng.integers(20, 400))))
    elif kind == 4:
        deep = int(rng.integers(10, 5000))
        data = bytearray(message[:-1] + b',"x":' + b"[" * deep + b"]" * deep + b"}")
    else:
        data = bytearray(rng.bytes(int(rng.integers(0, 2000))))
    return bytes(data)


class MalformedClient:
    """A client with a valid certificate that sends malformed messages in every session."""

    def __init__(self, count: Counter) -> None:
        self.count, self.rng = count, stream(3, "nonsense")

    def opened(self, link) -> None:
        self.count["sessions"] += 1
        for _ in range(40):
            message = encode(MESSAGES[int(self.rng.integers(len(MESSAGES)))])
            link.send(mutated(self.rng, message))
            self.count["sent"] += 1

    def received(self, message: bytes) -> None:
        answer = decode(message, "worker")
        self.count[answer.code if isinstance(answer, Complaint) else type(answer).__name__] += 1

    def closed(self, reason: str) -> None:
        pass


def open_pull_channel(rig: Rig, name: str, peer: str):
    """Open a raw channel to a worker under a name; return it with its pull method."""
    identity = authority.load_identity(rig.folder / "pki", name)
    host, port = addresses(rig)[peer]
    channel = grpc.secure_channel(
        f"{host}:{port}", channel_credentials(identity), options=client_options(peer, 5.0)
    )
    return channel, channel.unary_stream(PULL)


def test_f3_malformed_messages(rig, show):
    """F-3: malformed messages over valid mutual TLS, to the coordinator and to a worker."""
    run, answers, pulled = AttackRun(rig), Counter(), Counter()
    good = encode(PullRequest("ab", 1))

    def to_coordinator(over: threading.Event) -> None:
        transport = GrpcTransport(authority.load_identity(rig.folder / "pki", "w99"), anyone)
        session = transport.open_session(rig.address, MalformedClient(answers))
        over.wait()
        session.stop()
        transport.close()

    def to_worker(over: threading.Event) -> None:
        channel, call = open_pull_channel(rig, "observer", "w01")
        rng = stream(3, "pulls")
        while not over.is_set():
            try:
                for frame in call(mutated(rng, good), timeout=5):
                    first = decode(frame, "peer")
                    pulled[first.code if isinstance(first, PullRefused) else "model"] += 1
                    break
            except (grpc.RpcError, BadMessage) as error:
                pulled[type(error).__name__] += 1
        channel.close()

    pace = run.attack(to_coordinator, to_worker)
    grown = run.check()
    show(f"coordinator {dict(answers)}; worker {dict(pulled)}; {run.idle:.1f} -> {pace:.1f} "
         f"rounds/s, memory +{grown / 2**20:.1f} MiB")  # fmt: skip
    assert answers["sent"] > 100
    assert set(answers) - {"sent", "sessions", "Reject", "Heartbeat", "JoinOk"} <= DOCUMENTED
    assert pulled["malformed"] > 500
    assert "model" not in pulled
    assert pulled["BadMessage"] == 0


def test_f5_slow_handshakes(rig, show):
    """F-5: connections that never finish the handshake are closed."""
    run, cut = AttackRun(rig), []

    def attack(over: threading.Event) -> None:
        began = time.monotonic()
        places = [place for place in addresses(rig).values() for _ in range(60)]
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

    pace = run.attack(attack)
    grown = run.check()
    show(f"{len(cut)} of 300 cut, the last after {max(cut, default=0):.1f} s; {run.idle:.1f} -> "
         f"{pace:.1f} rounds/s, memory +{grown / 2**20:.1f} MiB")  # fmt: skip
    assert len(cut) == 300
    assert max(cut) < 12.0


@pytest.mark.parametrize("behaviour", ["endless", "drip"])
def test_f5_models_that_never_end(tmp_path, show, behaviour):
    """F-5: an endless model fails at once, a slow one at the deadline; memory stays small."""
    pair = Pair(tmp_path, 4.0)
    with pair.serving(behaviour):
        result = pair.fetch(8.0)()
    show(
        f"{behaviour}: {result['code']} after {result['seconds']:.1f} s and {result['bytes']} "
        f"bytes, {result['rss'] / 2**20:.0f} MiB"
    )
    assert result["code"]
    assert result["seconds"] < 13.0
    assert result["bytes"] < 2.5 * 4.1e6


def test_f9_a_flood_of_pulls(rig, show):
    """F-9: a member that pulls as fast as it can gets two models at a time and no more."""
    run, count, lock = AttackRun(rig), Counter(), threading.Lock()
    run_id = read_status(rig.folder)["run"]
    there = addresses(rig)
    transport = GrpcTransport(authority.load_identity(rig.folder / "pki", "observer"), anyone)
    at_once, most = Counter(), Counter()

    class CountingSink:
        """Discards a model, and counts the open transfers of each peer."""

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
                sink = CountingSink(peer)
                request = PullRequest(run_id, 10**9, bytes_per_s=20_000.0)
                try:
                    transport.pull(peer, f"{host}:{port}", request, sink, PullTimeouts(), over)
                    count["models"] += 1
                except PullBroken as error:
                    count[error.code] += 1
                    if sink.left:
                        sink.end()

    pace = run.attack(*[attack] * 8)
    transport.close()
    grown = run.check()
    show(f"{json.dumps(count)}, at once {dict(most)}; {run.idle:.1f} -> {pace:.1f} rounds/s, "
         f"memory +{grown / 2**20:.1f} MiB, {os.cpu_count()} cores")  # fmt: skip
    assert count["busy"] > 0
    assert max(most.values()) <= 3  # two, and one whose last bytes are still on their way
    assert pace > 0.1 * run.idle  # the attacker uses the same cores
