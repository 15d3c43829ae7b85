"""One thread that cancels calls which make no progress."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_POLL_S = 0.1  # how often the watchdog checks


@dataclass(eq=False)
class WatchedCall:
    """A call with a limit on the time without progress."""

    call: Any
    cancelled: threading.Event
    at_most_s: float
    progress_at: float
    cancelled_by_watchdog: bool = False

    def progressed(self, at_most_s: float) -> None:
        """Register progress; the next limit counts from now."""
        self.at_most_s, self.progress_at = at_most_s, time.monotonic()

    def check(self, now: float) -> None:
        """Cancel the call if its time is over."""
        if self.cancelled.is_set() or now - self.progress_at > self.at_most_s:
            self.cancelled_by_watchdog = True
            self.call.cancel()


class Watchdog:
    """One thread that cancels calls which stall or are no longer wanted."""

    def __init__(self) -> None:
        self._watched: set[WatchedCall] = set()
        self._changed = threading.Condition()
        self._closed = False
        self._thread: threading.Thread | None = None

    @contextmanager
    def watching(
        self, call: Any, cancelled: threading.Event, at_most_s: float
    ) -> Iterator[WatchedCall]:
        """Watch a call while the block runs."""
        watched = WatchedCall(call, cancelled, at_most_s, time.monotonic())
        with self._changed:
            self._watched.add(watched)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield watched
        finally:
            with self._changed:
                self._watched.discard(watched)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._watched)
                if self._closed:
                    return
                watched = list(self._watched)
            for one in watched:
                one.check(time.monotonic())
            time.sleep(_POLL_S)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closed, thread = True, self._thread
            self._changed.notify()
        if thread is not None:
            thread.join()
