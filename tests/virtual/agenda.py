"""Virtual time: a heap of things to do, in an order that depends on nothing but the seed."""

import heapq
from collections.abc import Callable
from itertools import count

Deed = Callable[[], None]


class Agenda:
    """What will happen when. Ties are settled by the order in which they were put in."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, int, Deed]] = []
        self._sequence = count()

    def after(self, delay_s: float, deed: Deed) -> None:
        heapq.heappush(self._heap, (self.now_s + delay_s, next(self._sequence), deed))

    def step(self) -> bool:
        """Do the next thing; False if there is nothing left."""
        if not self._heap:
            return False
        self.now_s, _, deed = heapq.heappop(self._heap)
        deed()
        return True
