"""Benchmark of serving: how much a worker's training slows down while its model is pulled.

The worker is a process of its own, as `dystop testbed` starts it: the CNN on fmnist-mini, mutual
TLS, checkpoints on disk. This process plays the coordinator, which orders one training after
another, and the peer, which pulls the model again and again. The peer ignores the bytes, so that
most of the processor time is left to the sender.
"""

import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from dystop.errors import DystopError
from dystop.testbed.protocol.codec import decode, encode
from dystop.testbed.protocol.messages import (
    Execute,
    Heartbeat,
    IncidentKind,
    Join,
    JoinOk,
    Peer,
    Report,
    ReportAck,
    Stop,
)
from dystop.testbed.protocol.pulls import ModelHeader, PullBroken, PullDenied, PullRequest
from dystop.testbed.transport.interface import Link, PullTimeouts
from dystop_benchmarks.result import Line
from dystop_benchmarks.settings import Settings
from dystop_benchmarks.stopwatch import in_turns
from dystop_benchmarks.testbed.wire import certificates

if TYPE_CHECKING:
    from dystop.testbed.transport.grpc import GrpcTransport

Say = Callable[[str], None]
COORDINATOR, WORKER, PEER = "coordinator", "w00", "w01"
GOAL = 0.8  # of the undisturbed pace
NEWEST = 2**31  # a round that has not begun: any publication will do
_RUN = "ab" * 16
_TIMEOUT_S = 60.0  # for one training, or for the process to join
_LEAST_REPEATS, _LONGEST_S = 11, 0.5  # a training is short, and whoever else runs disturbs it
_LOG = "serving.log"
_ONE = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
_EXPERIMENT = """\
data.name = "fmnist-mini"
model.name = "{model}"
fleet.workers = 15
testbed.devices = "free"
testbed.links = "free"
"""


def serving_lines(settings: Settings, say: Say, model: str = "cnn") -> Iterator[Line]:
    """Measure a worker that serves pulls continuously, beside the same worker alone."""
    name = f"{model} on fmnist-mini, training while its model is pulled"
    say(name)
    began = time.perf_counter()
    rates: list[float] = []
    with _parties(settings, model) as (orders, peer):
        steps = orders.steps_of(min(settings.scale.at_least_s, _LONGEST_S))

        def disturbed() -> float:
            with peer.pulling() as served:
                pace = orders.pace(steps)
            rates.append(served())
            return pace

        disturbed()
        warmup_s = time.perf_counter() - began
        repeat = max(settings.repeat, _LEAST_REPEATS)
        value, reference = in_turns([disturbed, lambda: orders.pace(steps)], repeat)
    yield Line(
        what="testbed",
        name=name,
        unit="images/s",
        value=value,
        reference="the same worker, left alone",
        reference_value=reference,
        better="higher",
        warmup_s=warmup_s,
        detail={"goal": GOAL, "steps": steps, "served_mb_per_s": sorted(rates)[len(rates) // 2]},
    )


class TrainingOrders:
    """A coordinator that accepts one worker and orders trainings."""

    def __init__(self, peers: tuple[Peer, ...]) -> None:
        """Wait for the worker."""
        self._peers = peers
        self._link: Link | None = None
        self._round = 0
        self._trained: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._here = threading.Event()
        self.address = ""  # where the worker serves its model

    def opened(self, name: str, link: Link) -> None:
        """Keep the session of the worker."""
        self._link = link

    def closed(self, name: str, link: Link) -> None:
        """Ignore the end of the session."""

    def incident(self, name: str, kind: IncidentKind, text: str) -> None:
        """Ignore what a worker did wrong."""

    def received(self, name: str, link: Link, message: bytes) -> None:
        """Answer a message as a coordinator does."""
        received = decode(message, "coordinator")
        if isinstance(received, Join):
            self.address = received.address
            link.send(encode(JoinOk(_RUN, 1, 1, 1.0, False, self._peers)))
            self._here.set()
        elif isinstance(received, Heartbeat):
            link.send(encode(Heartbeat(received.seq, 1)))
        elif isinstance(received, Report):
            link.send(encode(ReportAck(received.round, received.kind)))
            if received.kind != "mixed":
                self._trained.put(received)

    def await_worker(self, child: "subprocess.Popen[bytes]", log: Path) -> None:
        """Wait until the worker has joined; quote its log where it does not."""
        until = time.monotonic() + _TIMEOUT_S
        while not self._here.wait(0.1):
            if child.poll() is not None or time.monotonic() > until:
                raise DystopError(f"the worker did not join: {log.read_text()[-500:].strip()}")

    def train(self, steps: int) -> Report:
        """Order one training and wait for its report."""
        assert self._link is not None
        self._round += 1
        self._link.send(encode(Execute(1, self._round, train=True, steps=steps, budget_s=5.0)))
        try:
            done = self._trained.get(timeout=_TIMEOUT_S)
        except queue.Empty:
            raise DystopError(f"no training ended within {_TIMEOUT_S:.0f} s") from None
        if done.kind != "trained" or done.seconds <= 0:
            raise DystopError(f"the training failed: {done.text}")
        return done

    def steps_of(self, seconds: float) -> int:
        """Return the number of mini-batches that take about this long."""
        self.train(1)  # warm-up
        done = self.train(10)
        return max(1, round(10 * seconds / done.seconds))

    def pace(self, steps: int) -> float:
        """Return images per second of one training, by the worker's clock."""
        done = self.train(steps)
        return done.samples / done.seconds

    def stop(self) -> None:
        """End the run."""
        if self._link is not None:
            self._link.send(encode(Stop(1, "measured")))


class _ByteCounter:
    """A model sink that counts bytes."""

    def __init__(self) -> None:
        self.bytes = 0

    def begin(self, header: ModelHeader) -> None:
        """Accept a model."""

    def write(self, chunk: bytes | memoryview) -> None:
        """Count a chunk."""
        self.bytes += len(chunk)


class Puller:
    """Pulls a model again and again."""

    def __init__(self, transport: "GrpcTransport", orders: TrainingOrders) -> None:
        """Use a transport to pull from the worker that joined."""
        self._transport, self._orders = transport, orders

    @contextmanager
    def pulling(self) -> Iterator[Callable[[], float]]:
        """Pull while the block runs; yield a function that returns MB/s after the block."""
        taken, over = _ByteCounter(), threading.Event()
        thread = threading.Thread(target=self._pull, args=(taken, over), name="puller")
        began = time.perf_counter()
        thread.start()
        ended = [began]
        try:
            yield lambda: taken.bytes / 1e6 / (ended[0] - began)
        finally:
            ended[0] = time.perf_counter()
            over.set()
            thread.join()
        if not taken.bytes:
            raise DystopError("the worker served no model")

    def _pull(self, taken: _ByteCounter, over: threading.Event) -> None:
        request = PullRequest(_RUN, round=NEWEST)
        while not over.is_set():
            with suppress(PullBroken, PullDenied):  # the last one is cut short
                self._transport.pull(
                    WORKER, self._orders.address, request, taken, PullTimeouts(), over
                )


@contextmanager
def _parties(settings: Settings, model: str) -> Iterator[tuple[TrainingOrders, Puller]]:
    """Start the worker in a process of its own; coordinator and peer live here."""
    pki = settings.folder / "serving-pki"
    certificates(pki, (COORDINATOR, WORKER, PEER))
    from dystop.testbed.security.identity import load_identity
    from dystop.testbed.transport.admission import anyone
    from dystop.testbed.transport.grpc import GrpcTransport

    file = settings.folder / "serving.toml"
    file.write_text(_EXPERIMENT.format(model=model))
    peers = (Peer(WORKER, 0, "", ""), Peer(PEER, 1, "", ""))
    with ExitStack() as stack:
        orders, peer = TrainingOrders(peers), GrpcTransport(load_identity(pki, PEER), anyone)
        stack.callback(peer.close)
        coordinator = GrpcTransport(load_identity(pki, COORDINATOR), anyone)
        stack.callback(coordinator.close)
        served = coordinator.serve_control("127.0.0.1:0", orders)
        child = stack.enter_context(_worker(file, pki, served.address, settings.folder / WORKER))
        orders.await_worker(child, settings.folder / _LOG)
        stack.callback(orders.stop)
        yield orders, Puller(peer, orders)


@contextmanager
def _worker(
    file: Path, pki: Path, coordinator: str, folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the worker's process; it ends with the block."""
    places = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    words = ["--name", WORKER, "--pki", str(pki), "--coordinator", coordinator]
    log = (folder.parent / _LOG).open("wb")
    child = subprocess.Popen(
        [sys.executable, "-m", "dystop", "worker", str(file), *words, "--folder", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=log,
        env={**os.environ, **dict.fromkeys(_ONE, "1"), "PYTHONPATH": places},
    )
    log.close()
    try:
        yield child
    finally:
        with suppress(subprocess.TimeoutExpired):
            child.wait(timeout=10)
        child.kill()
        child.wait()
