"""Phases that follow each other in every worker's life: legs of a walk, presence and absence.

The length of phase k of a worker has an address, so what holds at a time is a pure function of
that time. The phases found last are remembered only to make increasing times cheap.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dystop.rng import exponential, uniform
from dystop.sparse import Bools, Floats, Ints
from dystop.world.params import Churn, Mobility


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


# MERGED: Random waypoint: every worker walks to a random spot, rests, and walks on.


class Walk:
    """Where everybody is at any time. Leg k leads from waypoint k to waypoint k + 1."""

    def __init__(
        self, home: Floats, area_m: tuple[float, float], mobility: Mobility, seed: int
    ) -> None:
        """Start everybody at home, which is waypoint 0, [N, 2]."""
        self._home = home
        self._area_m = np.asarray(area_m, np.float64)
        self._mobility = mobility
        self._seed = seed
        self._legs = Timeline(len(home), self._leg_s)

    def position(self, now_s: float) -> Floats:
        """Metres at a time, [N, 2]."""
        legs = self._legs.at(now_s)
        who = np.arange(len(self._home))
        start, walk_s = self._waypoint(who, legs.number), self._walk_s(who, legs.number)
        elapsed_s = now_s - legs.begin_s
        share = np.divide(elapsed_s, walk_s, out=np.ones_like(walk_s), where=elapsed_s < walk_s)
        return start + share[:, None] * (self._waypoint(who, legs.number + 1) - start)

    def _waypoint(self, who: Ints, number: Ints) -> Floats:
        spot = [uniform(self._seed, f"waypoint/{axis}", who, number) for axis in "xy"]
        return np.where((number == 0)[:, None], self._home[who], np.stack(spot, 1) * self._area_m)

    def _walk_s(self, who: Ints, leg: Ints) -> Floats:
        way = self._waypoint(who, leg + 1) - self._waypoint(who, leg)
        low, high = self._mobility.speed_mps
        speed_mps = low + (high - low) * uniform(self._seed, "speed", who, leg)
        return np.asarray(np.hypot(way[:, 0], way[:, 1]) / speed_mps)

    def _leg_s(self, who: Ints, leg: Ints) -> Floats:
        low, high = self._mobility.pause_s
        rest_s = low + (high - low) * uniform(self._seed, "pause", who, leg)
        return self._walk_s(who, leg) + rest_s


# MERGED: Workers that leave and come back: present for an exponential time, then away for another.


class Presence:
    """Who is there at any time. Everybody is at time 0; even phases are present, odd ones away."""

    def __init__(self, workers: int, churn: Churn, seed: int) -> None:
        """Without `churn.enabled` everybody stays for ever."""
        self._churn = churn
        self._seed = seed
        self._workers = workers
        self._stays = Timeline(workers, self._stay_s) if churn.enabled else None

    def alive(self, now_s: float) -> Bools:
        """Whether each worker is there, [N]."""
        if self._stays is None:
            return np.ones(self._workers, bool)
        here: Bools = self._stays.at(now_s).number % 2 == 0
        return here

    def next_return_s(self, now_s: float) -> float:
        """Earliest time after `now_s` at which an absent worker is back; inf if none is absent."""
        if self._stays is None:
            return float("inf")
        stays = self._stays.at(now_s)
        return float(np.min(stays.end_s, initial=np.inf, where=stays.number % 2 == 1))

    def _stay_s(self, who: Ints, phase: Ints) -> Floats:
        mean_s = np.where(phase % 2 == 0, self._churn.mean_up_s, self._churn.mean_down_s)
        return mean_s * exponential(self._seed, "churn", who, phase)
