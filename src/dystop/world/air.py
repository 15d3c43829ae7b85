"""What a transfer really takes: the sender's power fluctuates, the gain fades, luck runs out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dystop.rng import uniform
from dystop.sparse import Bools, Floats, Ints
from dystop.world.channel import mean_snr, power_factor, realised_rate_bps, transfer_s
from dystop.world.geometry import distance, stations, ways_of
from dystop.world.params import WorldParams


@dataclass(frozen=True)
class Air:
    """The radio channel of one round after the other; every draw has its address."""

    params: WorldParams
    power_w: Floats  # nominal, [nodes]
    seed: int

    def ways(
        self, t: int, position: Floats, links: int
    ) -> Callable[[Ints, Ints], tuple[Floats, Floats]]:
        """A function that gives metres and the sender's power in round t for some links.

        Powers are drawn for everybody at once where there are more links than nodes.
        """
        if links >= len(self.power_w):
            everyone = self.power_w * self._swing(t, np.arange(len(self.power_w)))
            return partial(ways_of, stations(position, everyone))

        def few(dst: Ints, src: Ints) -> tuple[Floats, Floats]:
            return distance(position, dst, src), self.power_w[src] * self._swing(t, src)

        return few

    def seconds(
        self, t: int, link: tuple[Ints, Ints], power_w: Floats, distance_m: Floats, bytes_: Floats
    ) -> Floats:
        """Seconds to move so many bytes over each link (dst, src)."""
        snr = mean_snr(power_w, distance_m, self.params.channel)
        rate = realised_rate_bps(snr, self.params.channel, self.seed, t, link)
        return transfer_s(bytes_, rate)

    def unlucky(self, t: int, link: tuple[Ints, Ints]) -> Bools:
        """Which transfers fail for no reason that could be known."""
        if not self.params.outages.loss:
            return np.zeros(len(link[0]), bool)
        out: Bools = uniform(self.seed, "loss", t, *link) < self.params.outages.loss
        return out

    def down(self, t: int, link: tuple[Ints, Ints]) -> Bools:
        """Which links are down for the whole of round t, always in both directions."""
        if not self.params.outages.drop:
            return np.zeros(len(link[0]), bool)
        ends = np.minimum(*link), np.maximum(*link)
        out: Bools = uniform(self.seed, "drop", t, *ends) < self.params.outages.drop
        return out

    def _swing(self, t: int, src: Ints) -> Floats:
        return power_factor(self.params.channel, self.seed, t, src)
