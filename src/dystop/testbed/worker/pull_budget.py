"""How many models each peer may pull from a worker.

An order names each neighbour at most once per stage. So a peer that obeys the coordinator pulls at
most one model per stage and round from a worker. The worker learns the round from its own orders
and from the heartbeats of the coordinator. A reserve allows for pulls that are repeated after a
break and for rounds that the worker does not know yet.
"""

import threading
import time
from collections.abc import Callable

MAX_RESERVE = 64  # rounds whose models one peer may pull before the worker knows them
RESERVE_PER_S = 2.0


class PullBudget:
    """Counts models per peer. Safe for several threads.

    >>> budget = PullBudget(clock=lambda: 0.0)
    >>> sum(budget.take("w01") for _ in range(100)), budget.take("w02")
    (64, True)
    >>> budget.joined(5); budget.round_known(8, stages=2); budget.round_known(7)
    >>> sum(budget.take("w01") for _ in range(100))
    6
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._round = 0
        self._stages = 1
        self._ordered = 0.0  # models that the rounds so far can have ordered from one peer
        self._left: dict[str, tuple[float, float, float]] = {}  # models, `_ordered`, time

    def joined(self, round_: int) -> None:
        """Register the round at a join; it is an earlier one if the ledger was restored."""
        with self._lock:
            self._round = round_

    def round_known(self, round_: int, stages: int = 0) -> None:
        """Register a round of the coordinator, and the number of stages of an order."""
        with self._lock:
            self._stages = stages or self._stages
            self._ordered += self._stages * max(0, round_ - self._round)
            self._round = max(round_, self._round)

    def take(self, peer: str) -> bool:
        """Count a model for a peer; return whether the peer may have it."""
        with self._lock:
            now_s = self._clock()
            most = float(MAX_RESERVE * self._stages)
            left, ordered, since_s = self._left.get(peer, (most, self._ordered, now_s))
            left += self._ordered - ordered + RESERVE_PER_S * (now_s - since_s)
            left = min(left, most)
            is_enough = left >= 1.0
            self._left[peer] = (left - is_enough, self._ordered, now_s)
            return is_enough
