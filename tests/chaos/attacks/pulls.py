"""Members that misuse pulls: calls without a body, endless "busy", models in a loop."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from dystop.testbed.protocol.pulls import PullBroken, PullRefused, PullRequest
from dystop.testbed.security.tls import channel_credentials
from dystop.testbed.transport.admission import anyone
from dystop.testbed.transport.grpc import GrpcTransport
from dystop.testbed.transport.grpc_settings import PULL, client_options
from dystop.testbed.transport.interface import PullTimeouts, ServedModel
from dystop.testbed.worker.model_server import PublishedModelServer

from .hostile import HostileWorker, attack, change_served

import grpc  # isort: skip

CALLS_PER_CONNECTION = 16
CONNECTIONS = 5
LOOPS = 8


@attack
def half_open(hostile: HostileWorker) -> None:
    """Open 80 pulls at every other worker, with headers and without a body."""

    def hold(peer: Any) -> None:
        options = [*client_options(peer.name, 5.0), ("grpc.use_local_subchannel_pool", 1)]
        credentials = channel_credentials(hostile.identity)
        over = threading.Event()

        def no_body(over: threading.Event) -> Iterator[bytes]:
            over.wait()
            yield b""

        while True:
            over.set()  # ends the threads that wait for the bodies of the last calls
            over = threading.Event()
            with grpc.secure_channel(peer.address, credentials, options=options) as channel:
                pull = channel.stream_stream(PULL)
                calls = [pull(no_body(over)) for _ in range(CALLS_PER_CONNECTION)]
                while any(call.is_active() for call in calls):
                    time.sleep(0.05)

    def run() -> None:
        for peer in hostile.peers():
            for _ in range(CONNECTIONS):
                threading.Thread(target=hold, args=(peer,), daemon=True).start()

    hostile.thread(run)


@attack
def busy(hostile: HostileWorker) -> None:
    """Answer every pull with "busy", and ask to be tried again in 30 years."""
    requested = PublishedModelServer.requested

    def refuse(self: PublishedModelServer, name: str, request: PullRequest) -> Any:
        if not hostile.began.is_set():
            return requested(self, name, request)
        answer: Future[Any] = Future()
        answer.set_result(PullRefused("busy", 1e9))
        return answer

    PublishedModelServer.requested = refuse  # type: ignore[method-assign]


class _Discard:
    """A sink that keeps nothing."""

    def begin(self, header: Any) -> None:
        pass

    def write(self, chunk: Any) -> None:
        pass


@attack
def pull_loop(hostile: HostileWorker) -> None:
    """Pull from all other workers in a loop, with eight threads."""

    def pull_all(transport: GrpcTransport) -> None:
        while True:
            for peer in hostile.peers():
                request = PullRequest(hostile.run, 10**6)
                try:
                    transport.pull(
                        peer.name, peer.address, request, _Discard(), PullTimeouts(),
                        threading.Event(),
                    )  # fmt: skip
                except PullBroken:
                    continue

    def run() -> None:
        transport = GrpcTransport(hostile.identity, anyone)
        for _ in range(LOOPS):
            threading.Thread(target=pull_all, args=(transport,), daemon=True).start()

    hostile.thread(run)


@attack
def trickle(hostile: HostileWorker) -> None:
    """Serve models at 50 bytes a second."""

    def slowed(server: PublishedModelServer, served: ServedModel) -> ServedModel:
        return replace(served, bytes_per_s=50.0)

    change_served(hostile, slowed)
