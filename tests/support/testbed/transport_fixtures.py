"""Parties over each kind of transport, for the tests that all transports must pass."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dystop.rng import stream
from dystop.testbed.params import Limits
from dystop.testbed.protocol.pulls import PullRequest
from dystop.testbed.security import authority
from dystop.testbed.transport.memory import MemoryHub, MemoryTransport
from support.testbed.mpi_party import single_rank_router, single_rank_transport
from support.testbed.transport_parties import RUN, until

NOW = PullRequest(RUN, round=1)
ANY = "127.0.0.1:0"
NAMES = ("coordinator", "w00", "w01", "w02")
# MPI can be entered once in a process: `test_mpi.py` runs the contract under mpiexec.
KINDS = ["mpi"] if os.environ.get("DYSTOP_TEST_MPI") else ["memory", "grpc"]


def certificates(folder: Path) -> Path:
    """Make an authority and a certificate for every name; return the folder."""
    authority.init(folder)
    for name in NAMES:
        authority.issue(folder, name)
    return folder


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
            transport = single_rank_transport(NAMES, name, limits, self.allowed)
        else:
            from dystop.testbed.transport.grpc import GrpcTransport

            identity = authority.load_identity(self.folder, name)
            transport = GrpcTransport(identity, self.allowed, limits)
        self.made.append(transport)
        return transport

    def close(self) -> None:
        for transport in reversed(self.made):
            transport.close()
        self.hub.close()


@contextmanager
def open_parties(kind: str, folder: Path) -> Iterator[Parties]:
    """Yield parties; close them at the end and check that no thread is left."""
    if kind == "mpi":
        single_rank_router(NAMES)
    before = set(threading.enumerate())
    made = Parties(kind, folder)
    yield made
    made.close()
    assert until(lambda: not leftovers(before)), leftovers(before)


def leftovers(before) -> list[threading.Thread]:
    return [thread for thread in set(threading.enumerate()) - before if thread.is_alive()]


def payload(size: int = 3_000_001) -> bytes:
    return stream(0, "payload", size).bytes(size)


@contextmanager
def closing_all():
    """Yield a function that registers transports; close them at the end."""
    made = []

    def keep(transport):
        made.append(transport)
        return transport

    yield keep
    for transport in reversed(made):
        transport.close()
