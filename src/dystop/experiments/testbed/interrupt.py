"""Ctrl-C and SIGTERM in the middle of starting and stopping things: noted, and raised in order.

An exception that comes out of nowhere may hit a process that is half started, or a place where it
gets lost. Whoever starts and stops many things therefore lets a signal wait until it looks.
"""

import _thread
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from dystop.signals import Raising

INTERRUPTED = 130  # exit code by convention
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Signals wait here until `check`; a second one is raised at once.

    >>> with Interrupts() as interrupts:
    ...     interrupts.check()  # nothing has come
    """

    def __init__(self) -> None:
        """Nothing is caught yet."""
        self._before: dict[int, Callable[[int, FrameType | None], Any]] = {}
        self._noted: int | None = None
        self._at_s = 0.0
        self._grace_s: float | None = None

    @property
    def noted(self) -> bool:
        """Whether a signal has come."""
        return self._noted is not None

    @property
    def noted_s(self) -> float:
        """Seconds since a signal has come; 0 if none has."""
        return time.monotonic() - self._at_s if self.noted else 0.0

    def check(self) -> None:
        """Raise what has come, if anything has: nothing is half done here."""
        if self._noted is not None:
            self._raise(self._noted)

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Let a signal end the process: for calls that may wait for ever and let no handler run."""
        for number in self._before:
            signal.signal(number, signal.SIG_DFL)
        try:
            self.check()  # what came before the lines above
            yield
        finally:
            for number in self._before:
                signal.signal(number, self._heard)

    def leave_it_to_others(self, grace_s: float) -> None:
        """Do not raise what comes: somebody else ends us; by ourselves only after `grace_s`."""
        self._grace_s = grace_s
        if self.noted:
            self._set_off()

    def _set_off(self) -> None:
        assert self._grace_s is not None
        _thread.start_new_thread(_end_after, (self._grace_s,))

    def _raise(self, number: int) -> None:
        self._before[number](number, None)  # which raises it, or notes it for a larger block

    def _heard(self, number: int, frame: FrameType | None) -> None:
        if self.noted:
            self._raise(number)
        self._noted, self._at_s = number, time.monotonic()
        if self._grace_s is not None:
            self._set_off()

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                before = signal.getsignal(number)
                if callable(before):  # else it ends the process at once, or is ignored, as asked
                    self._before[number] = before
                    signal.signal(number, self._heard)
                if isinstance(before, Raising) and before.held:
                    before.held = False
                    self._heard(number, None)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """What has not been raised yet is raised now, also instead of an error that it caused."""
        for number, before in self._before.items():
            signal.signal(number, before)
        if self._grace_s is None and (kind is None or not issubclass(kind, KeyboardInterrupt)):
            self.check()


def _end_after(grace_s: float) -> None:
    """In a thread without the locks of `threading`, which the interrupted code may hold."""
    time.sleep(grace_s)
    os._exit(INTERRUPTED)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Let a signal wait until the block is done."""
    with Interrupts():
        yield
