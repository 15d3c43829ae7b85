"""The client side of a session: bytes become events, messages become bytes.

Workers and the observer use it. It implements `transport.interface.ClientHandler`.
"""

import threading
from collections.abc import Callable

from dystop.testbed.events import MessageFromCoordinator, SessionLost, SessionOpened
from dystop.testbed.log_throttle import shown, throttled_logger
from dystop.testbed.protocol.codec import BadMessage, decode, encode
from dystop.testbed.protocol.messages import Complaint, ToCoordinator
from dystop.testbed.transport.interface import Link

_LOG = throttled_logger(__name__)
SessionEvent = SessionOpened | SessionLost | MessageFromCoordinator


class SessionClient:
    """One session to the coordinator; it passes events to `put`, from any thread."""

    def __init__(self, put: Callable[[SessionEvent], None]) -> None:
        self._put = put
        self._link: Link | None = None
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def opened(self, link: Link) -> None:
        """Register an open session."""
        with self._lock:
            self._link = link
        self._closed.clear()
        self._put(SessionOpened())

    def received(self, message: bytes) -> None:
        """Pass a message on; answer bytes that are no message with a complaint."""
        try:
            event = MessageFromCoordinator(decode(message, "worker"))
        except BadMessage as error:
            _LOG.warning("the coordinator sent bytes that are not a message: %s", error)
            self.send(Complaint(error.code, error.text))
            return
        self._put(event)

    def closed(self, reason: str) -> None:
        """Register that the session is closed."""
        with self._lock:
            self._link = None
        self._closed.set()
        _LOG.info("session closed: %s", shown(reason))
        self._put(SessionLost())

    def send(self, message: ToCoordinator) -> None:
        """Send a message if there is a session."""
        with self._lock:
            link = self._link
        if link is None:
            return
        try:
            link.send(encode(message))
        except BadMessage as error:  # a defect of this program, but no reason to end
            _LOG.error("%s cannot be sent: %s", type(message).__name__, error)

    def close(self, timeout_s: float = 1.0) -> None:
        """Close the session after the sent messages; wait up to `timeout_s` for them."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()
            self._closed.wait(timeout_s)
