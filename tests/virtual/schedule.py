"""Virtual time: a heap of scheduled calls whose order depends on the seed only."""

import heapq
from collections.abc import Callable
from itertools import count

Call = Callable[[], None]


class Schedule:
    """Scheduled calls; those of the same time run in the order of scheduling."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Call]] = []
        self._sequence = count()

    def after(self, delay_s: float, call: Call) -> None:
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._sequence), call))

    def step(self) -> bool:
        """Run the next call; return False if none is left."""
        if not self._heap:
            return False
        self.now_s, _, call = heapq.heappop(self._heap)
        call()
        return True
