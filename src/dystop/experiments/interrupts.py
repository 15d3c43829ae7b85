"""Stopping between rounds: a signal waits until the models are whole again."""

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class DeferredInterrupt:
    """Hold back Ctrl-C and SIGTERM while a round changes models in place.

    The first signal is remembered; `pending` tells the loop to save and then `give_in`. A second
    signal is passed on at once: the last checkpoint is then what a resumed run starts from.
    """

    def __init__(self) -> None:
        self.pending: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                self._before[number] = signal.signal(number, self._hold)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self.pending is not None:
            self._pass_on(number)
        self.pending = number

    def give_in(self) -> None:
        """Do now what the signal would have done."""
        if self.pending is not None:
            self._pass_on(self.pending)

    def _pass_on(self, number: int) -> None:
        handler: Callable[[int, FrameType | None], Any] | int | None = self._before.get(number)
        if callable(handler):
            handler(number, None)
        raise KeyboardInterrupt
