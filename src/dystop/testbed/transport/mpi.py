"""All parties of an MPI job: sessions and pulls over the ranks of one communicator.

For clusters on which a scheduler starts the processes and MPI is the network. Its limits:

- A rank that dies ends the whole job. There is no fault tolerance: nothing can be restarted or
  joined later, and a run that broke off is gone on with by a new job.
- There is no TLS and no certificate. The network of the job is trusted, as MPI itself trusts it.
- Names are ranks: rank 0 holds the coordinator and the observer, ranks 1.. a node each. `allowed`
  and the roster work as elsewhere, but against mistakes, not against an attacker.
- Frames are polled for, so a quiet line answers about two milliseconds late.

`mpi4py` is needed (the extra `mpi`) and is imported only when a job is joined.
"""

import threading

from dystop.testbed.params import Limits
from dystop.testbed.protocol.interface import (
    ClientHandler,
    ModelListener,
    ModelSink,
    ModelSource,
    PullBroken,
    PullTimeouts,
    SessionHandler,
    TransportError,
)
from dystop.testbed.protocol.messages import PullRequest
from dystop.testbed.transport.admission import Allowed, anyone, check_size
from dystop.testbed.transport.mpi_frames import MpiLine, join_job, seats
from dystop.testbed.transport.mpi_pulls import Shop, pull_once
from dystop.testbed.transport.mpi_switch import NOBODY, Frame, Kind, Switch, place_of
from dystop.testbed.transport.switchboard import SwitchedTransport

__all__ = ["MpiLine", "MpiTransport", "Switch", "join_job", "seats"]

_AGAIN_S = 0.05  # pause before a session is asked for again


class _Session:
    """A session at the counter; changed by the dispatcher's thread alone."""

    def __init__(self, counter: "_Counter", opening: Frame) -> None:
        self.counter, self.opening, self.over = counter, opening, False

    def send(self, message: bytes) -> None:
        check_size(message)
        if not self.over:
            self.counter.switch.reply(Kind.DOWN, self.opening, message)

    def close(self) -> None:
        self.counter.switch.dispatcher.post(lambda: self.end("closed"))

    def end(self, reason: str) -> None:
        if not self.over:
            self.over = True
            self.counter.forget(self)
            self.counter.switch.reply(Kind.CLOSED, self.opening, reason.encode())
            self.counter.desk.closed(self.opening.name, self)


class _Counter:
    """Where the coordinator listens."""

    def __init__(self, switch: Switch, desk: SessionHandler, allowed: Allowed) -> None:
        self.switch, self.desk, self.allowed = switch, desk, allowed
        self.address = ""
        self._sessions: dict[tuple[int, int], _Session] = {}  # by rank and conversation
        self._names: dict[str, _Session] = {}

    def heard(self, frame: Frame) -> None:
        self.switch.dispatcher.post(lambda: self._handle(frame))

    def _handle(self, frame: Frame) -> None:
        session = self._sessions.get((frame.rank, frame.talk))
        if frame.kind is Kind.OPEN:
            self._open(frame)
        elif session is None:
            return
        elif frame.kind is Kind.UP:
            self.desk.said(frame.name, session, bytes(frame.body))
        elif frame.kind is Kind.BYE:
            session.end("closed")

    def _open(self, frame: Frame) -> None:
        """Begin a session; an older one of that name ends."""
        if not self.allowed(frame.name, ""):
            self.switch.reply(Kind.CLOSED, frame, b"not authorised")
            return
        self._end(frame.name, "replaced by a newer session")
        session = _Session(self, frame)
        self._sessions[frame.rank, frame.talk] = self._names[frame.name] = session
        self.switch.reply(Kind.OPENED, frame)
        self.desk.opened(frame.name, session)

    def forget(self, session: _Session) -> None:
        frame = session.opening
        self._sessions.pop((frame.rank, frame.talk), None)
        if self._names.get(frame.name) is session:
            del self._names[frame.name]

    def _end(self, name: str, reason: str) -> None:
        if name in self._names:
            self._names[name].end(reason)

    def drop(self, name: str) -> None:
        self.switch.dispatcher.post(lambda: self._end(name, "cut by the coordinator"))

    def stop(self) -> None:
        self.switch.release(self.address)
        self.switch.dispatcher.post(self._end_all)
        self.switch.dispatcher.flush()

    def _end_all(self) -> None:
        for name in list(self._names):
            self._end(name, "the coordinator has stopped")


class _Caller:
    """A worker that keeps a session open; changed by the dispatcher's thread alone."""

    def __init__(self, switch: Switch, who: int, address: str, ear: ClientHandler) -> None:
        self.switch, self.who, self.address, self.ear = switch, who, address, ear
        self._talk = 0  # conversation that is open or being opened
        self._open = self._stopped = False

    def dial(self) -> None:
        """Ask for a session."""
        if not self._stopped and not self._talk:
            self._talk = self.switch.begin(self)
            self.switch.call(Kind.OPEN, self.who, self.address, self._talk)

    def heard(self, frame: Frame) -> None:
        self.switch.dispatcher.post(lambda: self._handle(frame))

    def _handle(self, frame: Frame) -> None:
        if frame.talk != self._talk:
            return
        if frame.kind is Kind.OPENED:
            self._open = True
            self.ear.opened(_CallersLink(self, self._talk))
        elif frame.kind is Kind.DOWN:
            self.ear.said(bytes(frame.body))
        elif frame.kind is Kind.CLOSED:
            self._ended(bytes(frame.body), told=self._open or frame.body != NOBODY)

    def _ended(self, reason: bytes, *, told: bool) -> None:
        self.switch.end(self._talk)
        self._talk, self._open = 0, False
        if told:
            self.ear.closed(reason.decode(errors="replace"))
        if not self._stopped:
            self.switch.dispatcher.post_later(_AGAIN_S, self.dial)

    def say(self, talk: int, message: bytes) -> None:
        """A message of the worker; nothing once that session is over."""
        if talk == self._talk:
            self.switch.call(Kind.UP, self.who, self.address, talk, message)

    def hang_up(self, talk: int, reason: bytes) -> None:
        """End the session from this side."""
        if talk and talk == self._talk:
            self.switch.call(Kind.BYE, self.who, self.address, talk)
            self._ended(reason, told=self._open)

    def drop(self, name: str) -> None:
        self.switch.dispatcher.post(lambda: self.hang_up(self._talk, b"cut"))

    def stop(self) -> None:
        self._stopped = True
        self.switch.dispatcher.post(lambda: self.hang_up(self._talk, b"stopped"))
        self.switch.dispatcher.flush()


class _CallersLink:
    """The worker's end of one session."""

    def __init__(self, caller: _Caller, talk: int) -> None:
        self._caller, self._talk = caller, talk

    def send(self, message: bytes) -> None:
        check_size(message)
        self._caller.say(self._talk, message)

    def close(self) -> None:
        self._caller.switch.dispatcher.post(lambda: self._caller.hang_up(self._talk, b"closed"))


class MpiTransport(SwitchedTransport):
    """A party's way to the others of its job; its name is one of those that sit at this rank."""

    def __init__(
        self, switch: Switch, name: str, limits: Limits | None = None, allowed: Allowed = anyone
    ) -> None:
        here = switch.names[switch.line.rank]
        if name not in here:
            raise TransportError(f"{name!r} does not sit at rank {switch.line.rank}: {here}")
        super().__init__(switch, name, limits, allowed)
        self.switch, self._who = switch, here.index(name)

    def serve_control(self, address: str, desk: SessionHandler) -> ModelListener:
        """Listen for sessions; of the address only the port counts."""
        return self._listen(address, _Counter(self.switch, desk, self.allowed))

    def open_session(self, address: str, ear: ClientHandler) -> ModelListener:
        """Keep a session to the coordinator open until stopped."""
        return self._dial(_Caller(self.switch, self._who, address, ear))

    def serve_models(self, address: str, store: ModelSource) -> ModelListener:
        """Listen for pulls; of the address only the port counts."""
        shop = Shop(self.switch, self.name, store, self.limits, self.allowed)
        return self._listen(address, shop)

    def pull(
        self,
        name: str,
        address: str,
        request: PullRequest,
        parcel: ModelSink,
        patience: PullTimeouts,
        cancelled: threading.Event,
    ) -> None:
        """Pull once, in this thread."""
        rank, _ = place_of(address)
        if not 0 <= rank < self.switch.line.size or name not in self.switch.names[rank]:
            raise PullBroken("unreachable")
        pull_once(self.switch, self._who, (name, address), request, parcel, patience, cancelled)
