"""What the memory and the MPI transport share: they listen and dial at a switchboard."""

from typing import Any, Protocol, TypeVar

from dystop.testbed.params import Limits
from dystop.testbed.protocol.interface import ModelListener
from dystop.testbed.transport.admission import Allowed
from dystop.testbed.transport.memory_hub import Dispatcher


class Board(Protocol):
    """Addresses, and a thread that carries out everything in order."""

    dispatcher: Dispatcher

    def claim(self, address: str, listener: Any) -> str:
        """Let someone listen; returns the address, with a port where none was asked for."""
        ...


class Listener(Protocol):
    """Something that listens, and is told where."""

    address: str

    def drop(self, name: str) -> None:
        """Cut all that is open with this peer."""
        ...

    def stop(self) -> None:
        """Stop listening and cut everything."""
        ...


class Caller(ModelListener, Protocol):
    """Something that opens a session by itself."""

    def dial(self) -> None:
        """Ask for the session, in the board's thread."""
        ...


L = TypeVar("L", bound=Listener)


class SwitchedTransport:
    """A party at a switchboard: whatever it has opened is stopped when it is closed."""

    def __init__(self, board: Board, name: str, limits: Limits | None, allowed: Allowed) -> None:
        self.name, self.limits, self.allowed = name, limits or Limits(), allowed
        self._board = board
        self._served: list[ModelListener] = []

    def _listen(self, address: str, listener: L) -> L:
        listener.address = self._board.claim(address, listener)
        self._served.append(listener)
        return listener

    def _dial(self, caller: Caller) -> Caller:
        self._board.dispatcher.post(caller.dial)
        self._served.append(caller)
        return caller

    def close(self) -> None:
        """Stop all that was started here; the board stays open for others."""
        while self._served:
            self._served.pop().stop()
