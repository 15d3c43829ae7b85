"""What a gRPC server does with a call before it reads the request.

gRPC starts the handler of a streaming method as soon as the headers of a call arrive. So all
methods here are streaming methods, also those with one request: the bytes on the wire are the same.
The handler learns who calls, counts the open calls of this caller, and only then waits for the
request, for a limited time. A caller that sends headers and nothing else occupies at most its own
share of the threads, and a caller that is refused again and again gets its refusals late.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from dystop.testbed.transport.watchdog import Watchdog

import grpc  # isort: skip

BODY_S = 5.0  # from the start of a call to its request
REFUSALS, REFUSALS_PER_S = 10, 2.0  # of one caller that are sent at once, and per second
LONGEST_HOLD_S = 1.0  # delay of a refusal
MAX_CALLERS = 10_000  # whose refusals are remembered


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
            free_s = max(self._free_s.pop(caller, 0.0), now_s - self._burst_s) + self._step_s
            self._free_s[caller] = min(free_s, now_s + self._longest_s)  # newest last
            while len(self._free_s) > MAX_CALLERS:
                del self._free_s[next(iter(self._free_s))]
            return max(0.0, self._free_s[caller] - now_s)


class OpenCalls:
    """Limits the open calls of each caller; waits for requests; delays refusals."""

    def __init__(self, most: int) -> None:
        """Allow each caller `most` open calls."""
        self._most = most
        self._count: dict[str, int] = {}
        self._lock = threading.Lock()
        self._watchdog = Watchdog()
        self._never = threading.Event()
        self._refusals = Pace(REFUSALS, REFUSALS_PER_S, LONGEST_HOLD_S)

    @contextmanager
    def counted(self, caller: str, context: Any) -> Iterator[None]:
        """Count a call while the block runs; abort it at once if the caller has too many."""
        with self._lock:
            count = self._count.get(caller, 0)
            if count < self._most:
                self._count[caller] = count + 1
        if count >= self._most:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many open calls; close some")
        try:
            yield
        finally:
            with self._lock:
                self._count[caller] -= 1
                if not self._count[caller]:
                    del self._count[caller]

    def request(self, requests: Iterator[bytes], context: Any) -> bytes | None:
        """Return the request of a call, empty if there is none; None if it came too late."""
        with self._watchdog.watching(context, self._never, BODY_S) as watched:
            raw = b""
            with suppress(Exception):  # gRPC raises a bare Exception for some ends of a call
                raw = next(requests, b"")
            return None if watched.cancelled_by_watchdog else raw

    def refuse(self, caller: str, context: Any, code: grpc.StatusCode, text: str) -> NoReturn:
        """Abort a call; a caller that is refused often waits for it."""
        self.hold(caller, context)
        context.abort(code, text)
        raise AssertionError("abort has raised")

    def hold(self, caller: str, context: Any) -> None:
        """Wait before a refusal, unless the caller goes away."""
        delay_s, gone = self._refusals.delay_s(caller), threading.Event()
        if delay_s > 0 and context.add_callback(gone.set):
            gone.wait(delay_s)

    def close(self) -> None:
        """End the thread that limits the wait for requests."""
        self._watchdog.close()
