"""Ctrl-C (SIGINT) and SIGTERM.

Outside the blocks of this module a signal raises an exception, as usual in Python. Work that must
not stop half-way, such as a round that changes models in place or the start of many processes, runs
inside `with Interrupts()`. There the first signal only sets a flag, which the work checks at points
where it can stop. A second signal raises at once.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

Handler = Callable[[int, FrameType | None], Any]
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM. Whatever handles Ctrl-C handles it as well."""


def _raise_terminated(number: int, frame: FrameType | None) -> None:
    raise Terminated


@contextmanager
def sigterm_raises() -> Iterator[None]:
    """Raise `Terminated` on SIGTERM; without this Python ends the process at once.

    Ctrl-C raises KeyboardInterrupt from here on, also where it ended the process so far.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    before = signal.signal(signal.SIGTERM, _raise_terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def signals_kill() -> Iterator[None]:
    """Let a signal end the process, during a call in which Python cannot run a handler."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number, handler in before.items():
        if callable(handler):  # an ignored signal stays ignored
            signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Interrupts:
    """Defer signals: the first one sets `pending`, a second one raises at once.

    A signal that nobody has checked is raised when the block ends, also in place of an error that
    it may have caused. Blocks can be nested: an inner block hands its signal to the outer one.
    Only the main thread receives signals; in another thread the block does nothing.

    >>> with Interrupts() as interrupts:
    ...     interrupts.check()  # raises if a signal has arrived
    """

    def __init__(self, *, raise_at_exit: bool = True) -> None:
        """`raise_at_exit=False` drops a signal that nobody has checked."""
        self.pending: int | None = None
        self._arrived_s = 0.0
        self._raise_at_exit = raise_at_exit
        self._before: dict[int, Handler | int] = {}  # handlers to put back

    @property
    def pending_s(self) -> float:
        """Seconds since the signal has arrived; 0 if none has."""
        return 0.0 if self.pending is None else time.monotonic() - self._arrived_s

    def check(self) -> None:
        """Raise the exception of a pending signal."""
        if self.pending is not None:
            self._raise(self.pending)

    def _raise(self, number: int) -> None:
        handler = self._before[number]
        if callable(handler):
            handler(number, None)  # raises, or sets the flag of an outer block
        else:  # the process runs with the system's own handler
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.pending is not None:
            self._raise(number)
        self.pending, self._arrived_s = number, time.monotonic()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                handler = signal.getsignal(number)
                if handler is not None and handler is not signal.SIG_IGN:
                    self._before[number] = handler
                    signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        is_interrupted = kind is not None and issubclass(kind, KeyboardInterrupt)
        if self._raise_at_exit and not is_interrupted:
            self.check()
