"""Benchmark of the wire: pull a model over loopback, beside a plain TLS 1.3 socket.

Sender (`dystop_benchmarks.testbed.wire_sender`) and receiver are two processes. Both ways keep
their connection open between pulls and use the same certificates, and in both the receiver hashes
what arrives (SHA-256).
"""

import contextlib
import hashlib
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dystop.errors import DystopError
from dystop.testbed.security import check_installed
from dystop_benchmarks.result import Line
from dystop_benchmarks.settings import Settings
from dystop_benchmarks.stopwatch import in_turns

Say = Callable[[str], None]
MODEL_BYTES = 45_000_000  # a small ResNet in 32 bits
_LEAST_REPEATS, _BEST_OF = 11, 3  # a pull is short, and whoever else runs disturbs it
_CHUNK = 2**20


def wire_lines(settings: Settings, say: Say) -> Iterator[Line]:
    """Measure the seconds of one pull, and of the same bytes over a socket."""
    floats = MODEL_BYTES // 4
    folder = settings.folder / "wire-pki"
    name = f"{MODEL_BYTES / 1e6:.0f} MB pulled over loopback, mutual TLS"
    say(name)
    began = time.perf_counter()
    certificates(folder, ("w00", "w01"))
    with (
        _sender(folder, floats) as places,
        _puller(folder, places, floats) as ours,
        _plain_puller(folder, places, floats) as plain,
    ):
        for warm in (ours, plain):
            warm()  # shakes hands
        warmup_s = time.perf_counter() - began
        measures = [_best(ours), _best(plain)]
        value, reference = in_turns(measures, max(settings.repeat, _LEAST_REPEATS))
    yield Line(
        what="wire",
        name=name,
        unit="s",
        value=value,
        reference="the same over a TLS 1.3 socket by hand",
        reference_value=reference,
        better="lower",
        warmup_s=warmup_s,
        detail={"bytes": MODEL_BYTES, "hashed": "by the receiver, in both", "best_of": _BEST_OF},
    )


def _best(measure: Callable[[], float]) -> Callable[[], float]:
    return lambda: min(measure() for _ in range(_BEST_OF))


def certificates(folder: Path, names: Sequence[str]) -> None:
    """Make an authority and the keys of some parties, where they are missing."""
    check_installed()
    from dystop.testbed.security import authority

    if not (folder / "ca.crt").exists():
        authority.init(folder)
        for name in names:
            authority.issue(folder, name)


@contextmanager
def _sender(folder: Path, floats: int) -> Iterator[dict[str, Any]]:
    """Start the sending process. It ends when its standard input closes."""
    places = os.pathsep.join(os.path.abspath(place) for place in sys.path)
    child = subprocess.Popen(
        [sys.executable, "-m", "dystop_benchmarks.testbed.wire_sender", str(folder), str(floats)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": places},
    )
    assert child.stdout is not None
    try:
        said = child.stdout.readline()
        if not said:
            raise DystopError(f"the sending process ended with code {child.wait()}")
        yield json.loads(said)
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.communicate(timeout=10)
        child.kill()
        child.wait()


@contextmanager
def _puller(folder: Path, places: dict[str, Any], floats: int) -> Iterator[Callable[[], float]]:
    """Yield a function that pulls as a worker does (schema, digest) and returns the seconds."""
    from dystop.testbed.protocol.payload import PayloadReceiver
    from dystop.testbed.protocol.pulls import PullRequest
    from dystop.testbed.security.authority import load_identity
    from dystop.testbed.transport.admission import anyone
    from dystop.testbed.transport.grpc import GrpcTransport
    from dystop.testbed.transport.interface import PullTimeouts
    from dystop_benchmarks.testbed.wire_sender import schema_of

    transport = GrpcTransport(load_identity(folder, "w01"), anyone)
    schema, request = schema_of(floats), PullRequest("", round=1)
    never, timeouts = threading.Event(), PullTimeouts()

    def pull() -> float:
        began = time.perf_counter()
        receiver = PayloadReceiver(schema)
        transport.pull("w00", places["grpc"], request, receiver, timeouts, never)
        vector = receiver.finish()
        seconds = time.perf_counter() - began
        _check(vector, floats)
        return seconds

    try:
        yield pull
    finally:
        transport.close()


@contextmanager
def _plain_puller(
    folder: Path, places: dict[str, Any], floats: int
) -> Iterator[Callable[[], float]]:
    """Yield a function that reads and hashes the same bytes from a socket."""
    from dystop_benchmarks.testbed.wire_sender import schema_of, tls_context

    context = tls_context(folder, "w01", ssl.Purpose.SERVER_AUTH)
    head = len(schema_of(floats).header_bytes())
    with (
        socket.create_connection(("127.0.0.1", places["port"])) as raw,
        context.wrap_socket(raw, server_hostname="w00") as line,
    ):
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def pull() -> float:
            began = time.perf_counter()
            buffer = np.empty(head + 4 * floats, np.uint8)
            line.sendall(b"?")
            _receive(line, buffer.data)
            seconds = time.perf_counter() - began
            _check(buffer[head:].view(np.float32), floats)
            return seconds

        yield pull


def _receive(line: ssl.SSLSocket, view: memoryview) -> str:
    """Fill a buffer and hash it megabyte by megabyte."""
    done = hashed = 0
    digest = hashlib.sha256()
    while done < len(view):
        done += line.recv_into(view[done : done + _CHUNK])
        if done - hashed >= _CHUNK or done == len(view):
            digest.update(view[hashed:done])
            hashed = done
    return digest.hexdigest()


def _check(vector: Any, floats: int) -> None:
    """Check the pulled model. This is not part of the measured time."""
    if len(vector) != floats or vector[-1] != np.float32(floats - 1):
        raise DystopError("the pulled model differs from the one that was sent")
