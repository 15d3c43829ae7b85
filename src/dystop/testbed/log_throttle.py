"""Logs that a peer cannot fill: an equal line passes at most five times a minute."""

import logging
import time
from collections.abc import Callable

from dystop.testbed.protocol.codec import shown

MOST, WINDOW_S = 5, 60.0
REMEMBERED = 1000  # different lines


class LogThrottle(logging.Filter):
    """Passes a line five times a minute; the next one contains the number of dropped lines.

    >>> throttle = LogThrottle(clock=lambda: 0.0)
    >>> line = logging.makeLogRecord({"msg": "again"})
    >>> [throttle.filter(line) for _ in range(7)]
    [True, True, True, True, True, False, False]
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start to count."""
        super().__init__()
        self._clock = clock
        self._lines: dict[str, tuple[float, int]] = {}  # since when, how often

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line may be written; append how many equal ones were dropped."""
        key, now = f"{record.levelno} {record.getMessage()}", self._clock()
        since, count = self._lines.pop(key, (now, 0))
        if now - since >= WINDOW_S:
            if count > MOST:
                record.msg = f"{record.getMessage()} (and {count - MOST} times more)"
                record.args = ()
            since, count = now, 0
        self._lines[key] = (since, count + 1)
        while len(self._lines) > REMEMBERED:
            del self._lines[next(iter(self._lines))]
        return count < MOST


def throttled_logger(name: str) -> logging.Logger:
    """Return a logger with a throttle. Pass text of a peer through `shown` first."""
    log = logging.getLogger(name)
    if not any(isinstance(f, LogThrottle) for f in log.filters):
        log.addFilter(LogThrottle())
    return log


__all__ = ["LogThrottle", "shown", "throttled_logger"]
