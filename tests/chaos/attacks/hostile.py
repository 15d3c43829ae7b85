"""Attacks by an enrolled member: a real worker process that misbehaves when it is told to.

    python hostile_member.py ATTACK worker FILE.toml --name w03 ...

The process is an ordinary worker with a valid certificate until it gets SIGUSR1. Then the attack
begins. An attack is a function of `HostileWorker`, registered under its name with `@attack`. It is
called once, before the worker starts. It replaces methods of the worker, or starts a thread that
waits for `hostile.began`. `burn` is the control: the worker stays honest, and the process burns as
many seconds of processor time per second as an attack took.
"""

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dystop.testbed.protocol.messages import Peer
from dystop.testbed.protocol.pulls import PullRequest
from dystop.testbed.security import authority
from dystop.testbed.security.identity import Identity
from dystop.testbed.transport.interface import ServedModel
from dystop.testbed.worker.model_server import PublishedModelServer
from dystop.testbed.worker.process import WorkerProcess
from dystop.testbed.worker.session_client import SessionClient


@dataclass
class HostileWorker:
    """What an attack knows: its certificate, its worker, and whether it has begun."""

    argument: str = ""  # what follows the colon of ATTACK:ARGUMENT
    began: threading.Event = field(default_factory=threading.Event)
    worker: WorkerProcess | None = None

    @property
    def identity(self) -> Identity:
        """The certificate of this member."""
        return authority.load_identity(Path(_option("--pki")), self.name)

    @property
    def name(self) -> str:
        """The name of this member."""
        return _option("--name")

    @property
    def coordinator(self) -> str:
        """The address of the coordinator."""
        return _option("--coordinator")

    def peers(self) -> list[Peer]:
        """Return the other workers of the roster that have an address."""
        assert self.worker is not None
        known = list(self.worker.machine.pulls.peers.values())
        return [peer for peer in known if peer.address and peer.name != self.name]

    @property
    def run(self) -> str:
        """The identifier of the run."""
        assert self.worker is not None
        return self.worker.machine.state.run

    def send(self, message: Any) -> None:
        """Send a message to the coordinator in the worker's own session."""
        assert self.worker is not None
        self.worker._session.send(message)

    def thread(self, call: Callable[[], None]) -> None:
        """Run a function in a thread once the attack has begun."""

        def run() -> None:
            self.began.wait()
            call()

        threading.Thread(target=run, name="attack", daemon=True).start()


def _option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


Attack = Callable[[HostileWorker], None]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    """Register an attack under the name of its function."""
    ATTACKS[function.__name__] = function
    return function


def change_messages(hostile: HostileWorker, change: Callable[[Any], Any]) -> None:
    """Change every message to the coordinator once the attack has begun; None: do not send it."""
    send = SessionClient.send

    def changed(self: SessionClient, message: Any) -> None:
        message = change(message) if hostile.began.is_set() else message
        if message is not None:
            send(self, message)

    SessionClient.send = changed  # type: ignore[method-assign]


def change_served(
    hostile: HostileWorker,
    change: Callable[[PublishedModelServer, ServedModel], ServedModel],
    spared: str = "",
    keeps_version: bool = False,
) -> None:
    """Change every model that is served once the attack has begun.

    Args:
        hostile: The hostile worker.
        change: Returns what is served in place of a model.
        spared: A party that is served well.
        keeps_version: Whether a request for the false version is answered as well.
    """
    requested = PublishedModelServer.requested

    def lie(self: PublishedModelServer, name: str, request: PullRequest) -> Any:
        if not hostile.began.is_set() or name == spared:
            return requested(self, name, request)
        if keeps_version:
            request = replace(request, version=0, offset=0)
        answer: Future[Any] = Future()

        def pass_on(honest: Future[Any]) -> None:
            with suppress(InvalidStateError):  # the peer is gone
                served = honest.result()
                is_model = isinstance(served, ServedModel)
                answer.set_result(change(self, served) if is_model else served)

        requested(self, name, request).add_done_callback(pass_on)
        return answer

    PublishedModelServer.requested = lie  # type: ignore[method-assign]
