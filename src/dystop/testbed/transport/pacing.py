"""Sending no faster than an emulated link: a token bucket that counts in time, not in tokens."""

import threading
import time
from collections.abc import Callable, Iterator

from dystop.testbed.transport.interface import CHUNK_BYTES, ServedModel

QUANTUM_S = 0.05  # a paced sender sends what the rate allows in this time, then waits
LEAST_BYTES = 1024
SLOWEST_RATE = 1.0  # bytes per second: a peer may ask for less, but a wait must be a number
FIRST_BYTES, SMALL_BYTES = 64 * 2**10, 16 * 2**10  # chunks of a sender without a rate
QUICK_S, SLOW_S = 0.03, 0.3  # chunks sent faster than this grow, slower ones shrink
MOST_S, MOST_SHARE = 0.5, 8  # a chunk takes at most this long, and 1/8 of all bytes sent


class TokenBucket:
    """Computes how long a sender must wait to keep its average rate.

    If a sleep lasts too long, the next one is shorter, up to `burst` bytes; so errors do not
    accumulate. Several threads may share one bucket: together they keep the rate.

    >>> now = [0.0]
    >>> bucket = TokenBucket(1000.0, clock=lambda: now[0])
    >>> bucket.reserve(500), bucket.reserve(500)
    (0.5, 1.0)
    """

    def __init__(
        self,
        bytes_per_s: float,
        burst: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        *,
        full: bool = False,
    ) -> None:
        """Start with an empty bucket: the first byte waits like any other.

        Args:
            bytes_per_s: The rate; must be above 0.
            burst: Most bytes that may be sent at once to catch up; None: those of 0.1 s.
            clock: Monotonic seconds.
            sleep: Waits; may return early.
            full: Start with a full bucket instead.
        """
        self._rate = bytes_per_s
        self._slack_s = (bytes_per_s / 10 if burst is None else burst) / bytes_per_s
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        # The time at which all bytes reserved so far are sent.
        self._free_at = clock() - (self._slack_s if full else 0.0)

    def reserve(self, count: int) -> float:
        """Reserve `count` bytes and return the seconds until they may be sent."""
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now - self._slack_s) + count / self._rate
            return max(0.0, self._free_at - now)

    def take(self, count: int) -> None:
        """Wait until `count` bytes may be sent."""
        wait_s = self.reserve(count)
        if wait_s > 0:
            self._sleep(wait_s)


def chunk_size(bytes_per_s: float, most: int) -> int:
    """Return the chunk size for a rate: small enough for a steady flow, large enough to be fast.

    >>> chunk_size(0.0, 2**20), chunk_size(125_000.0, 2**20), chunk_size(100.0, 2**20)
    (1048576, 6250, 1024)
    """
    if bytes_per_s <= 0:
        return most
    return min(most, max(LEAST_BYTES, int(bytes_per_s * QUANTUM_S)))


def paced(
    model: ServedModel, ended: threading.Event, sleep: Callable[[float], object] | None = None
) -> Iterator[memoryview]:
    """Yield the bytes of a model at its rate; end early once `ended` is set.

    Args:
        model: What to send, and how fast.
        ended: Set when the transfer is cancelled; it interrupts a wait.
        sleep: Waits instead of `ended.wait`.
    """
    rate = model.bytes_per_s
    if rate <= 0:
        yield from _unpaced(model, ended)
        return
    rate = max(rate, SLOWEST_RATE)
    bucket = TokenBucket(rate, sleep=sleep or ended.wait)
    size = chunk_size(rate, CHUNK_BYTES)
    for part in _parts_from_offset(model):
        for lo in range(0, len(part), size):
            chunk = part[lo : lo + size]
            bucket.take(len(chunk))
            if ended.is_set():
                return
            yield chunk


def _unpaced(model: ServedModel, ended: threading.Event) -> Iterator[memoryview]:
    """Yield chunks whose size suits the connection.

    Large chunks save work. But the receiver sees whole chunks only, so on a slow connection a
    large one looks like a stall.
    """
    size, sent, began = FIRST_BYTES, 0, time.monotonic()
    before = began
    for part in _parts_from_offset(model):
        lo = 0
        while lo < len(part) and not ended.is_set():
            yield part[lo : lo + size]
            lo, sent, now = lo + size, sent + size, time.monotonic()
            size = max(SMALL_BYTES, min(_adapted(size, now - before), _largest(sent, now - began)))
            before = now


def _adapted(size: int, took_s: float) -> int:
    if took_s < QUICK_S:
        return size * 2
    return size // 2 if took_s > SLOW_S else size


def _largest(sent: int, elapsed_s: float) -> int:
    """Return the largest chunk for a connection that has sent this many bytes in this time.

    Buffers accept the first bytes at any speed. So the size follows the bytes sent, not the speed
    alone.

    >>> _largest(2**18, 0.001), _largest(2**22, 0.01), _largest(2**22, 40.0), _largest(2**18, 60.0)
    (65536, 524288, 52428, 2184)
    """
    by_rate = int(MOST_S * sent / max(elapsed_s, 1e-3))
    by_volume = max(FIRST_BYTES, sent // MOST_SHARE)
    return min(CHUNK_BYTES, by_volume, by_rate)


def _parts_from_offset(model: ServedModel) -> Iterator[memoryview]:
    """Yield the parts of a model from its offset on."""
    skip = model.header.offset
    for part in model.parts:
        if skip < len(part):
            yield part[skip:]
        skip = max(0, skip - len(part))
