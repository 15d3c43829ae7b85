"""Ctrl-C and SIGTERM as exceptions that arrive: neither dropped nor renamed on their way."""

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

AGAIN_S = 0.005
"""How long a signal waits that comes at the wrong moment, before it comes again."""
PATIENCE_S = 20.0
"""The longest that a signal is held back in all; no import takes that long."""
IMPORTING, WRAPPING = "<frozen importlib._bootstrap", "pydantic."


class Terminated(KeyboardInterrupt):
    """SIGTERM; what saves on Ctrl-C saves on this as well."""


def is_unsafe(frame: FrameType | None) -> bool:
    """Whether what is raised here may get lost.

    Modules swallow what is raised while they are imported (many try one import after the other),
    and pydantic turns whatever is raised while it builds a model into an error of its own.
    """
    while frame is not None:
        name = frame.f_globals.get("__name__") or ""
        if frame.f_code.co_filename.startswith(IMPORTING) or name.startswith(WRAPPING):
            return True
        frame = frame.f_back
    return False


class Raising:
    """A signal's handler: raises it, but where it would get lost only after that.

    Until then the signal is held here; whoever is about to call what lets no handler run asks.
    """

    def __init__(self, kind: Callable[[], BaseException]) -> None:
        """`kind` is what to raise."""
        self.kind = kind
        self.held = False
        self._since_s = 0.0

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Raise it now, or have the signal come again."""
        now_s = time.monotonic()
        if not is_unsafe(frame) or (self.held and now_s > self._since_s + PATIENCE_S):
            self.held = False
            raise self.kind()
        if not self.held:
            self.held, self._since_s = True, now_s
            _thread.start_new_thread(self._insist, (number,))

    def _insist(self, number: int) -> None:
        while self.held:
            time.sleep(AGAIN_S)
            if self.held:
                self.held = signal.getsignal(number) is self  # another handler hears it once
                _press(number)


def _repeat(number: int) -> None:
    """Not by a `threading.Timer`: its locks may be held by what the signal has interrupted."""
    _thread.start_new_thread(_press_later, (number,))


def _press_later(number: int) -> None:
    time.sleep(AGAIN_S)
    _press(number)


def _press(number: int) -> None:
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, number)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM arrive as an exception, so that the run saves before it ends."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, Raising(Terminated))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def insistent() -> Iterator[None]:
    """Repeat an interrupt that hit a place where Python drops exceptions.

    Every import calls such places (callbacks of weak references), and commands import much.
    """
    usual = sys.unraisablehook

    def hear(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            _repeat(signal.SIGTERM if dropped.exc_type is Terminated else signal.SIGINT)
        else:
            usual(dropped)

    sys.unraisablehook = hear
    try:
        yield
    finally:
        sys.unraisablehook = usual
