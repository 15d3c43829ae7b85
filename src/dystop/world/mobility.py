"""Random waypoint: every worker walks to a random spot, rests, and walks on."""

import numpy as np

from dystop.rng import uniform
from dystop.sparse import Floats, Ints
from dystop.world.params import Mobility
from dystop.world.timeline import Timeline


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
