"""A peer that serves or pulls one model over the real transport, in a process of its own.

    python peer.py serve PKI NAME HOST:PORT MEGABYTES [endless|drip]
    python peer.py fetch PKI NAME PEER HOST:PORT MEGABYTES SECONDS

`serve` prints its address and runs until its standard input ends. `fetch` prints the result of the
pull as JSON. With `endless` the server sends more than it announced and never stops; with `drip` it
sends one byte at a time.
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
from dystop.testbed.protocol.payload import PayloadReceiver, Schema, digest
from dystop.testbed.protocol.pulls import ModelHeader, PullRequest
from dystop.testbed.security import authority
from dystop.testbed.transport import grpc_server
from dystop.testbed.transport.admission import anyone
from dystop.testbed.transport.grpc import GrpcTransport
from dystop.testbed.transport.interface import ServedModel
from dystop.testbed.worker.pulls import pull

RUN = "ab"


def schema_of(megabytes: str) -> Schema:
    return Schema((("w", (int(float(megabytes) * 250_000),)),))


class OneModelServer:
    """Serves one model to every peer."""

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


def endless(model: ServedModel, ended: threading.Event):
    while not ended.is_set():
        yield bytes(65536)


def drip(model: ServedModel, ended: threading.Event):
    while not ended.wait(0.05):
        yield b"\0"


def serve(folder: str, name: str, listen: str, megabytes: str, behaviour: str = "") -> None:
    if behaviour:
        grpc_server.paced = {"endless": endless, "drip": drip}[behaviour]
    transport = GrpcTransport(authority.load_identity(Path(folder), name), anyone)
    served = transport.serve_models(listen, OneModelServer(schema_of(megabytes)))
    print_line(served.address)
    sys.stdin.read()
    transport.close()


def fetch(
    folder: str, name: str, peer: str, address: str, megabytes: str, seconds: str, away_s: str = "4"
) -> None:
    transport = GrpcTransport(authority.load_identity(Path(folder), name), anyone)
    schema = schema_of(megabytes)
    began = time.monotonic()
    action = StartPull(1, 0, peer, address, PullRequest(RUN, 1), began + float(seconds))
    timeouts = Timeouts(away_s=float(away_s))
    result = pull(transport, action, lambda: PayloadReceiver(schema), timeouts, threading.Event())
    print_line(
        json.dumps(
            {
                "code": "" if isinstance(result, PullFinished) else result.code,
                "bytes": result.bytes,
                "seconds": time.monotonic() - began,
                "resumes": result.resumes if isinstance(result, PullFinished) else 0,
                "rss": int(Path("/proc/self/statm").read_text().split()[1]) * 4096,
            }
        )
    )
    transport.close()


def print_line(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    {"serve": serve, "fetch": fetch}[sys.argv[1]](*sys.argv[2:])
