"""Phases that follow each other in every worker's life: legs of a walk, presence and absence.

The length of phase k of a worker has an address, so what holds at a time is a pure function of
that time. The phases found last are remembered only to make increasing times cheap.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dystop.sparse import Floats, Ints


@dataclass(frozen=True, slots=True)
class Phases:
    """The phase each worker is in."""

    number: Ints  # [N], from 0
    begin_s: Floats  # [N]
    end_s: Floats  # [N], exclusive


class Timeline:
    """Which phase every worker is in at any time."""

    def __init__(self, workers: int, length_s: Callable[[Ints, Ints], Floats]) -> None:
        """Take the rule `length_s(worker, phase)` that says how long a phase lasts."""
        everyone = np.arange(workers)
        zero = np.zeros(workers, np.int64)
        self._length_s = length_s
        self._first_end_s = length_s(everyone, zero)
        self._last = Phases(zero, np.zeros(workers), self._first_end_s)

    def at(self, now_s: float) -> Phases:
        """The phases at a time; a time before the last one asked for is as right, only slower."""
        if not (math.isfinite(now_s) and now_s >= 0):
            raise ValueError(f"now_s = {now_s!r}: expected a finite time >= 0")
        self._last = self._forward(self._rewound(now_s), now_s)
        return self._last

    def _rewound(self, now_s: float) -> Phases:
        """Those who are already past `now_s` start again from their first phase."""
        past = self._last.begin_s > now_s
        return Phases(
            np.where(past, 0, self._last.number),
            np.where(past, 0.0, self._last.begin_s),
            np.where(past, self._first_end_s, self._last.end_s),
        )

    def _forward(self, phases: Phases, now_s: float) -> Phases:
        """Step those whose phase is over, all at once, until nobody's is."""
        number, begin_s, end_s = phases.number, phases.begin_s, phases.end_s
        over = np.flatnonzero(end_s <= now_s)
        while len(over):
            number[over] += 1
            begin_s[over] = end_s[over]
            end_s[over] += self._length_s(over, number[over])
            over = over[end_s[over] <= now_s]
        return phases
