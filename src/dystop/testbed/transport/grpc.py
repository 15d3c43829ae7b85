"""Processes on one or many machines: gRPC without protobuf, mutual TLS 1.3 always."""

import threading

from dystop.testbed.params import Limits
from dystop.testbed.protocol.interface import (
    ClientHandler,
    ModelListener,
    ModelSink,
    ModelSource,
    PullTimeouts,
    SessionHandler,
)
from dystop.testbed.protocol.messages import PullRequest
from dystop.testbed.security.identity import Identity
from dystop.testbed.transport.admission import Allowed
from dystop.testbed.transport.grpc_client import Channels, SessionCaller, Watchdog, pull_once
from dystop.testbed.transport.grpc_server import ControlServer, ModelServer
from dystop.testbed.transport.grpc_settings import split_address

COORDINATOR = "coordinator"


class GrpcTransport:
    """A party's way to the others; who it is, and who they are, is in the certificates."""

    def __init__(
        self,
        identity: Identity,
        allowed: Allowed,
        limits: Limits | None = None,
        coordinator: str = COORDINATOR,
    ) -> None:
        """Nothing is opened yet.

        Args:
            identity: From `pki.identity.load_identity`.
            allowed: Whether a peer of this name may come in with a certificate of this
                fingerprint; asked for every session and every pull.
            limits: What one peer may take.
            coordinator: The name that the coordinator's certificate must bear.
        """
        self._identity, self._allowed, self._coordinator = identity, allowed, coordinator
        self._limits = limits or Limits()
        self._channels, self._dog = Channels(identity), Watchdog()
        self._served: list[ModelListener] = []

    def serve_control(self, address: str, desk: SessionHandler) -> ModelListener:
        """Listen for sessions."""
        server = ControlServer(self._identity, self._allowed, self._limits, desk)
        self._served.append(server.start(address))
        return server

    def open_session(self, address: str, ear: ClientHandler) -> ModelListener:
        """Keep a session to the coordinator open until stopped."""
        split_address(address)
        caller = SessionCaller(self._identity, self._coordinator, address, ear)
        self._served.append(caller)
        return caller

    def serve_models(self, address: str, store: ModelSource) -> ModelListener:
        """Listen for pulls."""
        server = ModelServer(self._identity, self._allowed, self._limits, store)
        self._served.append(server.start(address))
        return server

    def pull(
        self,
        name: str,
        address: str,
        request: PullRequest,
        parcel: ModelSink,
        patience: PullTimeouts,
        cancelled: threading.Event,
    ) -> None:
        """Pull once; blocks this thread, which another one watches."""
        with self._channels.to(name, address, patience.connect_s) as channel:
            pull_once(channel, self._dog, request, parcel, patience, cancelled)

    def close(self) -> None:
        """Stop all that was started here and close all connections."""
        while self._served:
            self._served.pop().stop()
        self._dog.close()
        self._channels.close()
