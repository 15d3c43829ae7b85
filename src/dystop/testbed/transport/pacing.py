"""Sending no faster than an emulated link: a token bucket that counts in time, not in tokens."""

import threading
import time
from collections.abc import Callable, Iterator

from dystop.testbed.protocol.interface import CHUNK_BYTES, ServedModel

QUANTUM_S = 0.05  # a paced sender hands out what this much time is worth, and then waits
LEAST_BYTES = 1024
FIRST_BYTES, SMALL_BYTES = 64 * 2**10, 16 * 2**10  # of a sender that is not paced
QUICK_S, SLOW_S = 0.03, 0.3  # chunks that leave faster grow, those that leave slower shrink
MOST_S, MOST_SHARE = 0.5, 8  # a chunk is this long at most, and this part of what has left


class TokenBucket:
    """Tells a sender how long to wait so that its average rate is the one that was set.

    A sleep that lasts too long is made up for by the next one, up to `burst` bytes, so that errors
    do not add up. Several threads may share one bucket: together they keep the rate.

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
        """A bucket that starts empty: the first byte has to be waited for like any other.

        Args:
            bytes_per_s: The rate; must be above 0.
            burst: Most bytes that may be caught up with at once; None: a tenth of a second's.
            clock: Monotonic seconds.
            sleep: Waits; may come back early if it is interrupted.
            full: Start with a whole burst to spend.
        """
        self._rate = bytes_per_s
        self._slack_s = (bytes_per_s / 10 if burst is None else burst) / bytes_per_s
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._free_at = clock() - (
            self._slack_s if full else 0.0
        )  # when all that was promised so far has been sent

    def reserve(self, count: int) -> float:
        """Promise to send `count` bytes; returns the seconds until they may be gone."""
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now - self._slack_s) + count / self._rate
            return max(0.0, self._free_at - now)

    def take(self, count: int) -> None:
        """Wait until `count` bytes fit into the rate."""
        wait_s = self.reserve(count)
        if wait_s > 0:
            self._sleep(wait_s)


def portion(bytes_per_s: float, most: int) -> int:
    """How many bytes to send at a time: few enough for an even flow, not too few to be slow.

    >>> portion(0.0, 2**20), portion(125_000.0, 2**20), portion(100.0, 2**20)
    (1048576, 6250, 1024)
    """
    if bytes_per_s <= 0:
        return most
    return min(most, max(LEAST_BYTES, int(bytes_per_s * QUANTUM_S)))


def paced(
    shipment: ServedModel, over: threading.Event, sleep: Callable[[float], object] | None = None
) -> Iterator[memoryview]:
    """The bytes of a shipment as its rate allows; ends early once `over` is set.

    Args:
        shipment: What to send, and how fast.
        over: Set by whoever cuts the transfer; a pause ends at once.
        sleep: Waits instead of `over.wait`.
    """
    rate = shipment.bytes_per_s
    if rate <= 0:
        yield from _as_it_goes(shipment, over)
        return
    bucket = TokenBucket(rate, sleep=sleep or over.wait)
    size = portion(rate, CHUNK_BYTES)
    for part in _rest(shipment):
        for lo in range(0, len(part), size):
            chunk = part[lo : lo + size]
            bucket.take(len(chunk))
            if over.is_set():
                return
            yield chunk


def _as_it_goes(shipment: ServedModel, over: threading.Event) -> Iterator[memoryview]:
    """Chunks that suit the line: large ones save work, but one must never take seconds to arrive.

    The receiver sees whole chunks only, so on a slow line a large one looks like a standstill.
    """
    size, sent, began = FIRST_BYTES, 0, time.monotonic()
    before = began
    for part in _rest(shipment):
        lo = 0
        while lo < len(part) and not over.is_set():
            yield part[lo : lo + size]
            lo, sent, now = lo + size, sent + size, time.monotonic()
            size = max(SMALL_BYTES, min(_suited(size, now - before), _most(sent, now - began)))
            before = now


def _suited(size: int, took_s: float) -> int:
    if took_s < QUICK_S:
        return size * 2
    return size // 2 if took_s > SLOW_S else size


def _most(sent: int, elapsed_s: float) -> int:
    """What a line may be trusted with that has taken so much in this time.

    Buffers take the first bytes at any speed, so a line must earn large chunks by bytes, not by
    haste alone.

    >>> _most(2**18, 0.001), _most(2**22, 0.01), _most(2**22, 40.0), _most(2**18, 60.0)
    (65536, 524288, 52428, 2184)
    """
    worth = int(MOST_S * sent / max(elapsed_s, 1e-3))
    earned = max(FIRST_BYTES, sent // MOST_SHARE)
    return min(CHUNK_BYTES, earned, worth)


def _rest(shipment: ServedModel) -> Iterator[memoryview]:
    """The parts of a shipment from its offset on."""
    skip = shipment.header.offset
    for part in shipment.parts:
        if skip < len(part):
            yield part[skip:]
        skip = max(0, skip - len(part))
