"""Processes on one or many machines: gRPC without protobuf, always under mutual TLS 1.3."""

import threading

from dystop.testbed.params import Limits
from dystop.testbed.protocol.pulls import PullRequest
from dystop.testbed.security.identity import Identity
from dystop.testbed.transport.admission import Allowed
from dystop.testbed.transport.grpc_client import Channels, GrpcSessionClient, pull_once
from dystop.testbed.transport.grpc_server import ControlServer, ModelServer
from dystop.testbed.transport.grpc_settings import split_address
from dystop.testbed.transport.interface import (
    ClientHandler,
    Listener,
    ModelSink,
    ModelSource,
    PullTimeouts,
    SessionHandler,
)
from dystop.testbed.transport.watchdog import Watchdog

COORDINATOR = "coordinator"


class GrpcTransport:
    """The transport of one party; its own name and the names of its peers are in certificates."""

    def __init__(
        self,
        identity: Identity,
        allowed: Allowed,
        limits: Limits | None = None,
        coordinator: str = COORDINATOR,
    ) -> None:
        """Open nothing yet.

        Args:
            identity: From `security.authority.load_identity`.
            allowed: Whether a peer of this name may connect with a certificate of this fingerprint;
                called for every session and every pull.
            limits: What one peer may take.
            coordinator: The name that the coordinator's certificate must have.
        """
        self._identity, self._allowed, self._coordinator = identity, allowed, coordinator
        self._limits = limits or Limits()
        self._channels, self._watchdog = Channels(identity), Watchdog()
        self._opened: list[Listener] = []

    def serve_control(self, address: str, handler: SessionHandler) -> Listener:
        """Listen for sessions."""
        server = ControlServer(self._identity, self._allowed, self._limits, handler)
        self._opened.append(server.start(address))
        return server

    def open_session(self, address: str, handler: ClientHandler) -> Listener:
        """Keep a session to the coordinator open until stopped."""
        split_address(address)
        client = GrpcSessionClient(self._identity, self._coordinator, address, handler)
        self._opened.append(client)
        return client

    def serve_models(self, address: str, source: ModelSource) -> Listener:
        """Listen for pulls."""
        server = ModelServer(self._identity, self._allowed, self._limits, source)
        self._opened.append(server.start(address))
        return server

    def pull(
        self,
        name: str,
        address: str,
        request: PullRequest,
        sink: ModelSink,
        timeouts: PullTimeouts,
        cancelled: threading.Event,
    ) -> None:
        """Pull once; blocks this thread, while a watchdog thread detects stalls."""
        with self._channels.to(name, address, timeouts.connect_s) as channel:
            pull_once(channel, self._watchdog, request, sink, timeouts, cancelled)

    def close(self) -> None:
        """Stop everything that was opened here and close all connections."""
        while self._opened:
            self._opened.pop().stop()
        self._watchdog.close()
        self._channels.close()
