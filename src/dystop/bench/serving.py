"""How much a worker's training suffers while somebody fetches its model without a pause.

The worker is a process of its own, as `dystop testbed` starts it: the CNN on fmnist-mini, mutual
TLS, checkpoints on the disk. This process stands in for the coordinator, which orders one training
after another, and for the peer, which fetches the model again as soon as it has it, and looks at
none of its bytes, so that as much as possible is left to the sender.
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

from dystop.bench.clock import in_turns
from dystop.bench.result import Line
from dystop.bench.settings import Settings
from dystop.bench.wire import certificates
from dystop.errors import DystopError
from dystop.testbed.protocol.codec import decode, encode
from dystop.testbed.protocol.interface import Link, PullBroken, PullDenied, PullTimeouts
from dystop.testbed.protocol.messages import (
    Execute,
    Heartbeat,
    Join,
    JoinOk,
    ModelHeader,
    Peer,
    PullRequest,
    Report,
    ReportAck,
    Stop,
)

if TYPE_CHECKING:
    from dystop.testbed.transport.grpc import GrpcTransport

Say = Callable[[str], None]
COORDINATOR, WORKER, PEER = "coordinator", "w00", "w01"
GOAL = 0.8  # of the undisturbed pace
NEWEST = 2**31  # a round that has not begun: any publication will do
_RUN = "ab" * 16
_PATIENCE_S = 60.0  # for one training, or for the process to come
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
    """Pace of a worker that serves pulls without a pause, beside its own without any."""
    name = f"{model} on fmnist-mini, training while its model is fetched"
    say(name)
    began = time.perf_counter()
    rates: list[float] = []
    with _cast(settings, model) as (desk, peer):
        steps = desk.steps_of(min(settings.scale.at_least_s, _LONGEST_S))

        def disturbed() -> float:
            with peer.fetching() as fetched:
                pace = desk.pace(steps)
            rates.append(fetched())
            return pace

        disturbed()
        warmup_s = time.perf_counter() - began
        repeat = max(settings.repeat, _LEAST_REPEATS)
        value, reference = in_turns([disturbed, lambda: desk.pace(steps)], repeat)
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


class Desk:
    """Stands in for the coordinator: lets the worker in, and orders trainings."""

    def __init__(self, peers: tuple[Peer, ...]) -> None:
        """Nobody has come yet."""
        self._peers = peers
        self._link: Link | None = None
        self._round = 0
        self._trained: queue.SimpleQueue[Report] = queue.SimpleQueue()
        self._here = threading.Event()
        self.address = ""  # where the worker serves its model

    def opened(self, name: str, link: Link) -> None:
        """The worker has called."""
        self._link = link

    def closed(self, name: str, link: Link) -> None:
        """It has hung up."""

    def said(self, name: str, link: Link, message: bytes) -> None:
        """Answer as a coordinator does."""
        told = decode(message, "coordinator")
        if isinstance(told, Join):
            self.address = told.address
            link.send(encode(JoinOk(_RUN, 1, 1, 1.0, False, self._peers)))
            self._here.set()
        elif isinstance(told, Heartbeat):
            link.send(encode(Heartbeat(told.seq, 1)))
        elif isinstance(told, Report):
            link.send(encode(ReportAck(told.round, told.kind)))
            if told.kind != "mixed":
                self._trained.put(told)

    def await_worker(self, child: "subprocess.Popen[bytes]", log: Path) -> None:
        """Until it has joined; `log` is where it says why it does not."""
        until = time.monotonic() + _PATIENCE_S
        while not self._here.wait(0.1):
            if child.poll() is not None or time.monotonic() > until:
                raise DystopError(f"the worker did not come: {log.read_text()[-500:].strip()}")

    def train(self, steps: int) -> Report:
        """Order one training and wait for its end."""
        assert self._link is not None
        self._round += 1
        self._link.send(encode(Execute(1, self._round, train=True, steps=steps, budget_s=5.0)))
        try:
            done = self._trained.get(timeout=_PATIENCE_S)
        except queue.Empty:
            raise DystopError(f"no end of a training within {_PATIENCE_S:.0f} s") from None
        if done.kind != "trained" or done.seconds <= 0:
            raise DystopError(f"the training failed: {done.text}")
        return done

    def steps_of(self, seconds: float) -> int:
        """Mini-batches that take about so long."""
        self.train(1)  # whatever is loaded or built at the first time
        done = self.train(10)
        return max(1, round(10 * seconds / done.seconds))

    def pace(self, steps: int) -> float:
        """Images a second of one training, by the worker's own clock."""
        done = self.train(steps)
        return done.samples / done.seconds

    def dismiss(self) -> None:
        """The run is over."""
        if self._link is not None:
            self._link.send(encode(Stop(1, "measured")))


class _Bin:
    """Takes a model and only counts."""

    def __init__(self) -> None:
        self.bytes = 0

    def begin(self, header: ModelHeader) -> None:
        """A model comes."""

    def write(self, chunk: bytes | memoryview) -> None:
        """A piece of it."""
        self.bytes += len(chunk)


class Puller:
    """Fetches a model again and again while it is asked to."""

    def __init__(self, transport: "GrpcTransport", desk: Desk) -> None:
        """At rest."""
        self._transport, self._desk = transport, desk

    @contextmanager
    def fetching(self) -> Iterator[Callable[[], float]]:
        """While the block runs; hands out megabytes a second, to be asked for after the block."""
        taken, over = _Bin(), threading.Event()
        thread = threading.Thread(target=self._fetch, args=(taken, over), name="puller")
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
            raise DystopError("the worker handed out nothing")

    def _fetch(self, taken: _Bin, over: threading.Event) -> None:
        request = PullRequest(_RUN, round=NEWEST)
        while not over.is_set():
            with suppress(PullBroken, PullDenied):  # the last one is cut short
                self._transport.pull(
                    WORKER, self._desk.address, request, taken, PullTimeouts(), over
                )


@contextmanager
def _cast(settings: Settings, model: str) -> Iterator[tuple[Desk, Puller]]:
    """Coordinator and peer here, the worker in a process of its own."""
    pki = settings.folder / "serving-pki"
    certificates(pki, (COORDINATOR, WORKER, PEER))
    from dystop.testbed.security.identity import load_identity
    from dystop.testbed.transport.admission import anyone
    from dystop.testbed.transport.grpc import GrpcTransport

    file = settings.folder / "serving.toml"
    file.write_text(_EXPERIMENT.format(model=model))
    peers = (Peer(WORKER, 0, "", ""), Peer(PEER, 1, "", ""))
    with ExitStack() as stack:
        desk, party = Desk(peers), GrpcTransport(load_identity(pki, PEER), anyone)
        stack.callback(party.close)
        office = GrpcTransport(load_identity(pki, COORDINATOR), anyone)
        stack.callback(office.close)
        served = office.serve_control("127.0.0.1:0", desk)
        child = stack.enter_context(_worker(file, pki, served.address, settings.folder / WORKER))
        desk.await_worker(child, settings.folder / _LOG)
        stack.callback(desk.dismiss)
        yield desk, Puller(party, desk)


@contextmanager
def _worker(
    file: Path, pki: Path, coordinator: str, folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """The process of the worker; ends with the block, one way or another."""
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
