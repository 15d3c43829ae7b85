"""A peer that serves or fetches one model over the real transport, in a process of its own.

    python peer.py serve PKI NAME HOST:PORT MEGABYTES [endless|drip]
    python peer.py fetch PKI NAME PEER HOST:PORT MEGABYTES SECONDS

`serve` says where it listens and goes on until its standard input ends. `pull` says what came of
it as JSON. `endless` sends more than it announced and never stops, `drip` one byte at a time.
"""

import json
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from dystop.testbed.events import PullFinished, StartPull
from dystop.testbed.params import Timeouts
from dystop.testbed.protocol.messages import ModelHeader, PullRequest
from dystop.testbed.protocol.payload import PayloadReceiver, Schema, digest
from dystop.testbed.security import authority
from dystop.testbed.transport import grpc_server
from dystop.testbed.transport.admission import anyone
from dystop.testbed.transport.grpc import GrpcTransport
from dystop.testbed.transport.interface import ServedModel
from dystop.testbed.worker.pulls import pull

RUN = "ab"


def schema_of(megabytes: str) -> Schema:
    return Schema((("w", (int(float(megabytes) * 250_000),)),))


class Counter:
    """Serves one model to whoever asks."""

    def __init__(self, schema: Schema) -> None:
        self.parts = schema.pack(np.ones(schema.width, np.float32))
        size = sum(len(part) for part in self.parts)
        self.header = ModelHeader(1, 0, 0, size, digest(self.parts), schema.hash)

    def requested(self, name: str, request: PullRequest) -> "Future[ServedModel]":
        answer: Future[ServedModel] = Future()
        offset = request.offset if request.version == 1 else 0
        header = ModelHeader(**{**self.header.__dict__, "offset": offset})
        answer.set_result(ServedModel(header, self.parts, request.bytes_per_s))
        return answer


def endless(shipment: ServedModel, over: threading.Event):
    while not over.is_set():
        yield bytes(65536)


def drip(shipment: ServedModel, over: threading.Event):
    while not over.wait(0.05):
        yield b"\0"


def serve(folder: str, name: str, listen: str, megabytes: str, manner: str = "") -> None:
    if manner:
        grpc_server.paced = {"endless": endless, "drip": drip}[manner]
    transport = GrpcTransport(authority.load_identity(Path(folder), name), anyone)
    served = transport.serve_models(listen, Counter(schema_of(megabytes)))
    say(served.address)
    sys.stdin.read()
    transport.close()


def take(
    folder: str, name: str, peer: str, address: str, megabytes: str, seconds: str, away_s: str = "4"
) -> None:
    transport = GrpcTransport(authority.load_identity(Path(folder), name), anyone)
    schema = schema_of(megabytes)
    began = time.monotonic()
    action = StartPull(1, 0, peer, address, PullRequest(RUN, 1), began + float(seconds))
    parcels = lambda: PayloadReceiver(schema)  # noqa: E731
    timeouts = Timeouts(away_s=float(away_s))
    came = pull(transport, action, parcels, timeouts, threading.Event())
    say(
        json.dumps(
            {
                "code": "" if isinstance(came, PullFinished) else came.code,
                "bytes": came.bytes,
                "seconds": time.monotonic() - began,
                "resumes": came.resumes if isinstance(came, PullFinished) else 0,
                "rss": int(Path("/proc/self/statm").read_text().split()[1]) * 4096,
            }
        )
    )
    transport.close()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"serve": serve, "fetch": take}[sys.argv[1]](*sys.argv[2:])
