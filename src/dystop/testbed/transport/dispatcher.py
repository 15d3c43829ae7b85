"""What the memory and the MPI transport share: one thread that runs callbacks in order."""

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from dystop.testbed.params import Limits
from dystop.testbed.transport.admission import Allowed
from dystop.testbed.transport.interface import Listener

_LOG = logging.getLogger(__name__)
Call = Callable[[], None]


class Dispatcher:
    """A thread that runs calls one after another, at once or after a delay.

    The sender of a message never runs the receiver's code. So two parties that hold their own locks
    while they talk to each other cannot deadlock.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._delayed: list[tuple[float, int, Call]] = []  # used by the thread only
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False

    def post(self, call: Call) -> None:
        """Run a call after all calls posted before it."""
        if self._thread is None:
            self._start()
        self._calls.put(call)

    def post_later(self, delay_s: float, call: Call) -> None:
        """Run a call after a delay."""
        due = (time.monotonic() + delay_s, next(self._count), call)
        self.post(lambda: heapq.heappush(self._delayed, due))

    def flush(self, at_most_s: float = 5.0) -> None:
        """Wait until all calls posted before have run."""
        if self._thread is None or threading.current_thread() is self._thread:
            return
        done = threading.Event()
        self.post(done.set)
        done.wait(at_most_s)

    def close(self) -> None:
        """End the thread; calls posted later never run."""
        with self._lock:
            self._closed, thread = True, self._thread
        self._calls.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=self._wait_s())
            except queue.Empty:
                call = heapq.heappop(self._delayed)[2]
            if call is None:
                return
            try:
                call()
            except Exception:  # a fault in one receiver must not stop delivery to the others
                _LOG.exception("a receiver raised an error")

    def _wait_s(self) -> float | None:
        if not self._delayed:
            return None
        return max(0.0, self._delayed[0][0] - time.monotonic())


class AddressRegistry(Protocol):
    """Which listener has which address, and the thread that runs the callbacks."""

    dispatcher: Dispatcher

    def claim(self, address: str, listener: Any) -> str:
        """Register a listener and return its address, with a port if none was given."""
        ...


class AddressedListener(Protocol):
    """A listener whose address is set when it is registered."""

    address: str

    def drop(self, name: str) -> None:
        """Close everything that is open with this peer."""
        ...

    def stop(self) -> None:
        """Stop listening and close everything."""
        ...


class SessionOpener(Listener, Protocol):
    """A client that opens its own session."""

    def dial(self) -> None:
        """Request the session; runs in the dispatcher's thread."""
        ...


L = TypeVar("L", bound=AddressedListener)


class DispatchedTransport:
    """Base of transports with an address registry; `close` stops everything that was opened."""

    def __init__(
        self, registry: AddressRegistry, name: str, limits: Limits | None, allowed: Allowed
    ) -> None:
        self.name, self.limits, self.allowed = name, limits or Limits(), allowed
        self._registry = registry
        self._opened: list[Listener] = []

    def _listen(self, address: str, listener: L) -> L:
        listener.address = self._registry.claim(address, listener)
        self._opened.append(listener)
        return listener

    def _dial(self, client: SessionOpener) -> SessionOpener:
        self._registry.dispatcher.post(client.dial)
        self._opened.append(client)
        return client

    def close(self) -> None:
        """Stop everything that was opened here; the registry stays open for other parties."""
        while self._opened:
            self._opened.pop().stop()
