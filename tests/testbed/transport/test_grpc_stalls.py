"""Peers that stall and connections that break, over real sockets (C-4, C-5)."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from dystop.testbed.events import PullFailed, PullFinished, StartPull
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.payload import PayloadReceiver, Schema, digest
from dystop.testbed.protocol.pulls import ModelHeader, PullRequest
from dystop.testbed.security import authority
from dystop.testbed.transport.admission import anyone
from dystop.testbed.transport.grpc import GrpcTransport
from dystop.testbed.transport.interface import PullTimeouts, ServedModel
from dystop.testbed.worker.pulls import pull
from support.testbed.tcp_proxy import Proxy
from support.testbed.transport_fixtures import ANY, NOW
from support.testbed.transport_parties import RUN, BackgroundCall, BufferSink, until

TESTS = Path(__file__).parents[2]
SCRIPTS = TESTS / "support" / "testbed"


@pytest.fixture
def child(folder):
    """Run a serving peer in a process of its own: 2 MB at 1 MB/s."""
    places = os.pathsep.join([str(TESTS), *sys.path])
    process = subprocess.Popen(
        [sys.executable, str(SCRIPTS / "serving_child.py"), str(folder), "w00", "2000000", "1e6"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": places},
    )
    yield process
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.communicate()


def test_a_stopped_peer_is_detected(child, folder, closing):
    """C-5: SIGSTOP while it sends; its kernel still acknowledges packets."""
    address = child.stdout.readline().strip()
    puller, sink = (
        closing(GrpcTransport(authority.load_identity(folder, "w01"), anyone)),
        BufferSink(),
    )
    usual = PullTimeouts()
    stop = threading.Event()
    running = BackgroundCall(lambda: puller.pull("w00", address, NOW, sink, usual, stop))
    assert sink.first.wait(10)
    os.kill(child.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert running.broken(6.0).code in ("timeout", "unreachable")
    assert time.monotonic() - began <= 4.0
    os.kill(child.pid, signal.SIGCONT)
    rest = BufferSink()
    request = PullRequest(RUN, 1, version=3, offset=len(sink.got))
    puller.pull("w00", address, request, rest, usual, stop)  # it is back
    assert len(sink.got) + len(rest.got) == 2_000_000


SCHEMA = Schema((("w", (100_000,)),))


class PacedModelSource:
    """A source of one real model, served at a fixed rate."""

    def __init__(self, bytes_per_s: float) -> None:
        self.vector = np.arange(SCHEMA.width, dtype=np.float32)
        self.bytes_per_s = bytes_per_s

    def requested(self, name, request):
        from concurrent.futures import Future

        parts = SCHEMA.pack(self.vector)
        header = ModelHeader(
            3, 2, 1, SCHEMA.size(), digest(parts), SCHEMA.hash, offset=request.offset
        )
        answer = Future()
        answer.set_result(ServedModel(header, parts, self.bytes_per_s))
        return answer


@pytest.fixture
def proxied(folder, closing):
    """Serve a model of 400 kB within a second, behind a proxy that can break connections."""
    models = PacedModelSource(bytes_per_s=400_000)
    server = closing(GrpcTransport(authority.load_identity(folder, "w00"), anyone))
    proxy = Proxy(server.serve_models(ANY, models).address)
    yield proxy, models
    proxy.close()


def fetching(folder, closing, proxy, budget_s) -> BackgroundCall:
    puller = closing(GrpcTransport(authority.load_identity(folder, "w01"), anyone))
    action = StartPull(1, 0, "w00", proxy.address, NOW, time.monotonic() + budget_s)
    receiver = PayloadReceiver(SCHEMA)
    job = BackgroundCall(
        lambda: pull(puller, action, lambda: receiver, Timeouts(), threading.Event())
    )
    assert until(lambda: receiver.received > 100_000)
    return job


@pytest.mark.parametrize("how", ["freeze", "cut"])
def test_a_connection_lost_for_three_seconds(how, proxied, folder, closing):
    """C-4: the pull resumes where it was, and takes at most five seconds more."""
    proxy, models = proxied
    began = time.monotonic()
    job = fetching(folder, closing, proxy, budget_s=20.0)
    proxy.freeze() if how == "freeze" else proxy.cut()
    time.sleep(3.0)
    proxy.thaw() if how == "freeze" else proxy.heal()
    done = job.result(10.0)
    assert isinstance(done, PullFinished)
    assert np.array_equal(done.vector, models.vector)
    assert time.monotonic() - began <= 1.0 + 5.0 + 0.5
    if how == "cut":
        assert done.resumes >= 1
        assert done.bytes <= SCHEMA.size() * 1.05


def test_a_connection_lost_for_good(proxied, folder, closing):
    """C-4: the stall is detected after three seconds, and the pull fails four seconds later."""
    proxy, _ = proxied
    job = fetching(folder, closing, proxy, budget_s=60.0)
    proxy.freeze()
    began = time.monotonic()
    done = job.result(12.0)
    assert isinstance(done, PullFailed)
    assert done.code in ("timeout", "unreachable")
    assert time.monotonic() - began <= 3.2 + 4.3
