"""What a gRPC server does with a call before it reads the request.

gRPC starts the handler of a streaming method as soon as the headers of a call arrive. So all
methods here are streaming methods, also those with one request: the bytes on the wire are the same.
The handler learns who calls, counts the open calls of this caller, and only then waits for the
request, for a limited time. A caller that sends headers and nothing else occupies at most its own
share of the threads, and a caller that is refused again and again gets its refusals late.
"""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent import futures
from contextlib import closing, suppress
from typing import Any

from dystop.testbed.transport.dispatcher import Dispatcher
from dystop.testbed.transport.watchdog import Watchdog

import grpc  # isort: skip

BODY_S = 5.0  # from the start of a call to its request
REFUSALS, REFUSALS_PER_S = 10, 2.0  # of one caller that are sent at once, and per second
LONGEST_HOLD_S = 1.0  # delay of a refusal
MAX_HELD = 256  # late refusals of one caller; any more are sent at once
MAX_CALLERS = 10_000  # whose refusals are remembered

Responses = Generator[bytes, None, None]
Handler = Callable[[Iterator[bytes], Any], Responses]


class ThreadPerCall(futures.Executor):
    """An executor with one daemon thread per open call, so that none delays the exit."""

    def __init__(self) -> None:
        self._open: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Run a call in a thread of its own."""
        future: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # the reader of the future gets it
                future.set_exception(error)
            with self._lock:
                self._open.discard(threading.current_thread())

        thread = threading.Thread(target=run, name="grpc-call", daemon=True)
        with self._lock:
            self._open.add(thread)
        thread.start()
        return future

    def join(self, at_most_s: float) -> None:
        """Wait for the calls to end."""
        with self._lock:
            threads = self._open - {threading.current_thread()}
        for thread in threads:
            thread.join(at_most_s)


class Pace:
    """Computes the delay of the next event of each caller; the first few have none.

    >>> now = [0.0]
    >>> pace = Pace(at_once=2, per_s=2.0, longest_s=1.0, clock=lambda: now[0])
    >>> [pace.delay_s("a") for _ in range(6)], pace.delay_s("b")
    ([0.0, 0.0, 0.5, 1.0, 1.0, 1.0], 0.0)
    >>> now[0] = 9.0
    >>> pace.delay_s("a")
    0.0
    """

    def __init__(
        self,
        at_once: int,
        per_s: float,
        longest_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._step_s, self._burst_s = 1.0 / per_s, at_once / per_s
        self._longest_s, self._clock = longest_s, clock
        self._free_s: dict[str, float] = {}
        self._lock = threading.Lock()

    def delay_s(self, caller: str) -> float:
        """Count an event of a caller and return its delay, at most `longest_s`."""
        now_s = self._clock()
        with self._lock:
            free_s = max(self._free_s.pop(caller, -math.inf), now_s - self._burst_s) + self._step_s
            self._free_s[caller] = min(free_s, now_s + self._longest_s)  # newest last
            while len(self._free_s) > MAX_CALLERS:
                del self._free_s[next(iter(self._free_s))]
            return max(0.0, self._free_s[caller] - now_s)


class Refused(Exception):
    """Ends a call with a status; a handler raises it."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text


_TOO_MANY = Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many open calls; close some")


class OpenCalls:
    """Runs the calls of one server: each caller has a bounded number of threads.

    A refusal that must wait occupies no thread: gRPC lets a handler return before its call ends.
    """

    def __init__(self, most: int) -> None:
        """Give each caller `most` threads."""
        self._most = most
        self._open: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._watchdog, self._dispatcher = Watchdog(), Dispatcher()
        self._never = threading.Event()
        self._refusals = Pace(REFUSALS, REFUSALS_PER_S, LONGEST_HOLD_S)

    def method(self, caller_of: Callable[[Any], str], handler: Handler) -> Any:
        """Return a gRPC method; `caller_of` names the caller of a call by its context."""

        def serve(requests: Iterator[bytes], context: Any, send: Callable[[Any], None]) -> None:
            caller = caller_of(context)
            if not self._enter(caller):
                self._refuse(_TOO_MANY, caller, context, send)
                return
            try:
                with closing(handler(requests, context)) as responses:
                    for response in responses:
                        send(response)
                        if not context.is_active():
                            return
                send(None)
            except Refused as refused:
                self._refuse(refused, caller, context, send)
            finally:
                self._leave(caller)

        setattr(serve, "experimental_non_blocking", True)  # noqa: B010 - a function's attribute
        return grpc.stream_stream_rpc_method_handler(serve)

    def request(self, requests: Iterator[bytes], context: Any) -> bytes | None:
        """Return the request of a call, empty if there is none; None if it came too late."""
        with self._watchdog.watching(context, self._never, BODY_S) as watched:
            raw = b""
            with suppress(Exception):  # gRPC raises a bare Exception for some ends of a call
                raw = next(requests, b"")
            return None if watched.cancelled_by_watchdog else raw

    def _enter(self, caller: str) -> bool:
        with self._lock:
            is_free = self._open[caller] < self._most
            self._open[caller] += is_free
            return is_free

    def _leave(self, caller: str) -> None:
        with self._lock:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]

    def _refuse(
        self, refused: Refused, caller: str, context: Any, send: Callable[[Any], None]
    ) -> None:
        """End a call; a caller that is refused often waits for it."""
        context.set_code(refused.code)
        context.set_details(refused.text)
        delay_s = self._refusals.delay_s(caller)
        with self._lock:
            is_held = delay_s > 0 and self._held[caller] < MAX_HELD
            self._held[caller] += is_held
        if not is_held:
            send(None)
            return

        def end() -> None:
            with self._lock:
                self._held[caller] -= 1
                if not self._held[caller]:
                    del self._held[caller]
            send(None)

        self._dispatcher.post_later(delay_s, end)

    def close(self) -> None:
        """End the threads that limit the wait for requests and send late refusals."""
        self._watchdog.close()
        self._dispatcher.close()
