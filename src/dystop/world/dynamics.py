"""Workers that move, leave and come back: random waypoint mobility and churn.

Both are sequences of phases: legs of a walk, or presence and absence. The length of phase k of a
worker has an address, so the state at a time is a pure function of that time. The last phases are
cached, which makes increasing times cheap.
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
    """The current phase of each worker."""

    number: Ints  # [N], from 0
    begin_s: Floats  # [N]
    end_s: Floats  # [N], exclusive


class Timeline:
    """The phase of every worker at any time."""

    def __init__(self, workers: int, length_s: Callable[[Ints, Ints], Floats]) -> None:
        """Take `length_s(worker, phase)`, which returns the length of a phase in seconds."""
        everyone = np.arange(workers)
        zero = np.zeros(workers, np.int64)
        self._length_s = length_s
        self._first_end_s = length_s(everyone, zero)
        self._last = Phases(zero, np.zeros(workers), self._first_end_s)

    def at(self, now_s: float) -> Phases:
        """Return the phases at a time; a time before that of the last call is slower."""
        if not (math.isfinite(now_s) and now_s >= 0):
            raise ValueError(f"now_s = {now_s!r}: expected a finite time >= 0")
        self._last = self._forward(self._rewound(now_s), now_s)
        return self._last

    def _rewound(self, now_s: float) -> Phases:
        """Return the last phases, with workers already beyond `now_s` set back to their first."""
        past = self._last.begin_s > now_s
        return Phases(
            np.where(past, 0, self._last.number),
            np.where(past, 0.0, self._last.begin_s),
            np.where(past, self._first_end_s, self._last.end_s),
        )

    def _forward(self, phases: Phases, now_s: float) -> Phases:
        """Advance all workers whose phase is over, until none is."""
        number, begin_s, end_s = phases.number, phases.begin_s, phases.end_s
        over = np.flatnonzero(end_s <= now_s)
        while len(over):
            number[over] += 1
            begin_s[over] = end_s[over]
            end_s[over] += self._length_s(over, number[over])
            over = over[end_s[over] <= now_s]
        return phases


class Walk:
    """Random waypoint mobility. A worker walks leg k from waypoint k to k + 1, then pauses."""

    def __init__(
        self, home: Floats, area_m: tuple[float, float], mobility: Mobility, seed: int
    ) -> None:
        """Start every worker at its `home`, which is waypoint 0, [N, 2]."""
        self._home = home
        self._area_m = np.asarray(area_m, np.float64)
        self._mobility = mobility
        self._seed = seed
        self._legs = Timeline(len(home), self._leg_s)

    def position(self, now_s: float) -> Floats:
        """Return the positions at a time in metres, [N, 2]."""
        legs = self._legs.at(now_s)
        who = np.arange(len(self._home))
        start, walk_s = self._waypoint(who, legs.number), self._walk_s(who, legs.number)
        elapsed_s = now_s - legs.begin_s
        share = np.divide(elapsed_s, walk_s, out=np.ones_like(walk_s), where=elapsed_s < walk_s)
        return start + share[:, None] * (self._waypoint(who, legs.number + 1) - start)

    def _waypoint(self, who: Ints, number: Ints) -> Floats:
        point = [uniform(self._seed, f"waypoint/{axis}", who, number) for axis in "xy"]
        return np.where((number == 0)[:, None], self._home[who], np.stack(point, 1) * self._area_m)

    def _walk_s(self, who: Ints, leg: Ints) -> Floats:
        step = self._waypoint(who, leg + 1) - self._waypoint(who, leg)
        low, high = self._mobility.speed_mps
        speed_mps = low + (high - low) * uniform(self._seed, "speed", who, leg)
        return np.asarray(np.hypot(step[:, 0], step[:, 1]) / speed_mps)

    def _leg_s(self, who: Ints, leg: Ints) -> Floats:
        low, high = self._mobility.pause_s
        pause_s = low + (high - low) * uniform(self._seed, "pause", who, leg)
        return self._walk_s(who, leg) + pause_s


class Presence:
    """Churn: workers are present and absent in turn, for exponential times, all present at time 0.

    Even phases are present, odd phases absent.
    """

    def __init__(self, workers: int, churn: Churn, seed: int) -> None:
        """Draw phases if `churn.enabled`; else every worker stays."""
        self._churn = churn
        self._seed = seed
        self._everyone: Bools = np.ones(workers, bool)
        self._everyone.flags.writeable = False  # rounds share it
        self._stays = Timeline(workers, self._stay_s) if churn.enabled else None

    @property
    def changes(self) -> bool:
        """Whether workers leave and come back."""
        return self._stays is not None

    def alive(self, now_s: float) -> Bools:
        """Return whether each worker is present, [N]; read-only where nobody leaves."""
        if self._stays is None:
            return self._everyone
        present: Bools = self._stays.at(now_s).number % 2 == 0
        return present

    def next_return_s(self, now_s: float) -> float:
        """Return when the first absent worker comes back after `now_s`; inf if none is absent."""
        if self._stays is None:
            return float("inf")
        stays = self._stays.at(now_s)
        return float(np.min(stays.end_s, initial=np.inf, where=stays.number % 2 == 1))

    def _stay_s(self, who: Ints, phase: Ints) -> Floats:
        mean_s = np.where(phase % 2 == 0, self._churn.mean_up_s, self._churn.mean_down_s)
        return mean_s * exponential(self._seed, "churn", who, phase)
