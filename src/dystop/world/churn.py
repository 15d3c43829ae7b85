"""Workers that leave and come back: present for an exponential time, then away for another."""

import numpy as np

from dystop.rng import exponential
from dystop.sparse import Bools, Floats, Ints
from dystop.world.params import Churn
from dystop.world.timeline import Timeline


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
