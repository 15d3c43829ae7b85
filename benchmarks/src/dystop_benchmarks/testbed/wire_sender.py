"""The sending side of `dystop bench wire`.

`python -m dystop_benchmarks.testbed.wire_sender FOLDER FLOATS` serves one model over gRPC and over
a plain TLS 1.3 socket, prints both addresses, and ends when its standard input closes.
"""

import json
import socket
import ssl
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np

from dystop.testbed.protocol.messages import IncidentKind
from dystop.testbed.protocol.payload import Schema, digest
from dystop.testbed.protocol.pulls import ModelHeader, PullRefused, PullRequest
from dystop.testbed.security.authority import load_identity
from dystop.testbed.transport.admission import anyone
from dystop.testbed.transport.grpc import GrpcTransport
from dystop.testbed.transport.interface import CHUNK_BYTES, ServedModel

ANY = "127.0.0.1:0"


def schema_of(floats: int) -> Schema:
    """Return the schema of a model with one tensor."""
    return Schema((("weight", (floats,)),))


class OneModel:
    """A model source with a single model."""

    def __init__(self, floats: int) -> None:
        schema = schema_of(floats)
        self.parts = schema.pack(np.arange(floats, dtype=np.float32))
        self.header = ModelHeader(1, 0, 0, schema.size(), digest(self.parts), schema.hash)

    def requested(self, name: str, request: PullRequest) -> "Future[ServedModel | PullRefused]":
        """Return the model."""
        answer: Future[ServedModel | PullRefused] = Future()
        answer.set_result(ServedModel(self.header, self.parts))
        return answer

    def incident(self, name: str, kind: IncidentKind, text: str) -> None:
        """Ignore what a peer did wrong."""


def tls_context(folder: Path, name: str, purpose: ssl.Purpose) -> ssl.SSLContext:
    """Return a context for mutual TLS 1.3, written by hand."""
    context = ssl.create_default_context(purpose, cafile=str(folder / "ca.crt"))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return context


def serve_plainly(listener: socket.socket, context: ssl.SSLContext, source: OneModel) -> None:
    """Answer every byte of one connection with a model, in chunks as gRPC gets them."""
    raw, _ = listener.accept()
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with raw, context.wrap_socket(raw, server_side=True) as line:
        while line.recv(1):
            for part in source.parts:
                for lo in range(0, len(part), CHUNK_BYTES):
                    line.sendall(part[lo : lo + CHUNK_BYTES])


def main(folder: Path, floats: int) -> None:
    """Serve until the input ends."""
    source = OneModel(floats)
    transport = GrpcTransport(load_identity(folder, "w00"), anyone)
    served = transport.serve_models(ANY, source)
    context = tls_context(folder, "w00", ssl.Purpose.CLIENT_AUTH)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        plain = threading.Thread(
            target=serve_plainly, args=(listener, context, source), daemon=True
        )
        plain.start()
        places = {"grpc": served.address, "port": listener.getsockname()[1]}
        sys.stdout.write(json.dumps(places) + "\n")
        sys.stdout.flush()
        sys.stdin.read()
    transport.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
