"""The switchboard of the memory transport: one thread that delivers everything in order."""

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from dystop.testbed.protocol.interface import TransportError

_LOG = logging.getLogger(__name__)
Call = Callable[[], None]


class Dispatcher:
    """Carries out calls one after another, or later, in a thread of its own.

    The sender of a message never runs the receiver's code: two parties that hold their locks while
    they talk to each other cannot block each other.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._later: list[tuple[float, int, Call]] = []  # touched by the thread alone
        self._count = itertools.count()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._over = False

    def post(self, call: Call) -> None:
        """Carry out a call after all that was posted before."""
        if self._thread is None:
            self._start()
        self._calls.put(call)

    def post_later(self, delay_s: float, call: Call) -> None:
        """Carry out a call after some time."""
        due = (time.monotonic() + delay_s, next(self._count), call)
        self.post(lambda: heapq.heappush(self._later, due))

    def flush(self, at_most_s: float = 5.0) -> None:
        """Return when all that was posted before has been carried out."""
        if self._thread is None or threading.current_thread() is self._thread:
            return
        done = threading.Event()
        self.post(done.set)
        done.wait(at_most_s)

    def close(self) -> None:
        """End the thread; whatever is posted later is never carried out."""
        with self._lock:
            self._over, thread = True, self._thread
        self._calls.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        with self._lock:
            if self._thread is None and not self._over:
                self._thread = threading.Thread(target=self._run, name="memory-hub", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                call = self._calls.get(timeout=self._pause())
            except queue.Empty:
                call = heapq.heappop(self._later)[2]
            if call is None:
                return
            try:
                call()
            except Exception:  # a receiver's mistake must not stop everybody's mail
                _LOG.exception("a receiver raised an error")

    def _pause(self) -> float | None:
        if not self._later:
            return None
        return max(0.0, self._later[0][0] - time.monotonic())


class MemoryHub:
    """Everything that listens in this process, by address.

    >>> with MemoryHub() as hub:
    ...     hub.claim("127.0.0.1:0", "somebody")
    '127.0.0.1:1'
    """

    def __init__(self) -> None:
        self.dispatcher = Dispatcher()
        self._listeners: dict[str, Any] = {}
        self._waiting: dict[str, list[Call]] = {}
        self._ports = itertools.count(1)
        self._lock = threading.Lock()

    def claim(self, address: str, listener: object) -> str:
        """Let someone listen at an address; returns it, with a port where none was asked for."""
        host, _, port = address.rpartition(":")
        with self._lock:
            if port in ("", "0"):
                address = f"{host or 'memory'}:{next(self._ports)}"
            if address in self._listeners:
                raise TransportError(
                    f"cannot listen on {address}: it is taken; stop what listens there or choose "
                    "port 0 for any free one"
                )
            self._listeners[address] = listener
            waiting = self._waiting.pop(address, [])
        for call in waiting:
            self.dispatcher.post(call)
        return address

    def release(self, address: str) -> None:
        """Stop listening there."""
        with self._lock:
            self._listeners.pop(address, None)

    def find(self, address: str) -> Any:
        """Who listens there, or None."""
        with self._lock:
            return self._listeners.get(address)

    def call_when_there(self, address: str, call: Call) -> None:
        """Carry out a call once someone listens at the address."""
        with self._lock:
            if address not in self._listeners:
                self._waiting.setdefault(address, []).append(call)
                return
        self.dispatcher.post(call)

    def close(self) -> None:
        """End the hub's thread."""
        self.dispatcher.close()

    def __enter__(self) -> "MemoryHub":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
