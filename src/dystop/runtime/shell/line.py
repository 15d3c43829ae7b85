"""The worker's end of the telephone: bytes of a session become events, messages become bytes."""

import threading
from collections.abc import Callable

from dystop.runtime.events import SessionLost, SessionOpened, Told
from dystop.runtime.wire.codec import BadMessage, decode, encode
from dystop.runtime.wire.interface import Link
from dystop.runtime.wire.messages import Complaint, ToCoordinator
from dystop.runtime.wire.quiet import quiet_logger, shown

_LOG = quiet_logger(__name__)
Put = Callable[[SessionOpened | SessionLost | Told], None]


class Line:
    """Implements `wire.interface.Ear`; hands events to `put`, from whatever thread they come."""

    def __init__(self, put: Put) -> None:
        """Nobody is on the line yet."""
        self._put = put
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._free = threading.Event()  # no session is open

    def opened(self, link: Link) -> None:
        """The coordinator has answered."""
        with self._lock:
            self._link = link
        self._free.clear()
        self._put(SessionOpened())

    def said(self, message: bytes) -> None:
        """Pass on what the coordinator said; complain about what is not understood."""
        try:
            told = Told(decode(message, "worker"))
        except BadMessage as error:
            _LOG.warning("the coordinator sent something that is not a message: %s", error)
            self.say(Complaint(error.code, error.text))
            return
        self._put(told)

    def closed(self, reason: str) -> None:
        """The session is over."""
        with self._lock:
            self._link = None
        self._free.set()
        _LOG.info("session over: %s", shown(reason))
        self._put(SessionLost())

    def say(self, message: ToCoordinator) -> None:
        """Send, if there is a session."""
        with self._lock:
            link = self._link
        if link is None:
            return
        try:
            link.send(encode(message))
        except BadMessage as error:  # ours to mend, and no reason to die
            _LOG.error("%s cannot be sent: %s", type(message).__name__, error)

    def hang_up(self, patience_s: float = 1.0) -> None:
        """End the session after what was said; waits a little until the last word is through."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()
            self._free.wait(patience_s)
