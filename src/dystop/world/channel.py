"""The radio channel of subsec:setup: powers, gains, Shannon rates and transfer times.

The paper gives the rate r_t^{i,j} = b log2(1 + p_j g_t^{i,j} / noise) with a gain g that is
exponentially distributed around G_0 d^-4. Taken literally, one draw of g decides a whole transfer.
Then the *expected* transfer time is infinite: near g = 0 the rate is proportional to g, and 1/g is
not integrable against an exponential density. A transfer of seconds spans many coherence times, so
we average the rate over `coherence_blocks` independent draws; from two blocks on the expected time
is finite, and with eight it is close to what the expected rate suggests. `coherence_blocks = 1`
is the literal reading.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dystop.kernels.fading import draw_blocks, mean_rate
from dystop.rng import bits, normal, uniform
from dystop.sparse import Bools, Floats, Ints
from dystop.world.geometry import distance, stations, ways_of
from dystop.world.params import Channel, WorldParams

_DRAWS = 1 << 16  # gains drawn at a time: they fit a processor's cache
_SERIES_FROM = 100.0  # from here on, ten terms of the asymptotic series are exact to 1e-13


def dbm_to_w(dbm: float | Floats) -> Floats:
    """Decibel-milliwatts in watts.

    >>> float(dbm_to_w(30.0))
    1.0
    """
    return np.asarray(10.0 ** ((np.asarray(dbm, np.float64) - 30.0) / 10.0))


def path_gain(distance_m: Floats, channel: Channel) -> Floats:
    """Mean channel gain G_0 d^-4 (subsec:setup)."""
    reference = 10.0 ** (channel.reference_gain_db / 10.0)
    far = np.maximum(distance_m, channel.min_distance_m)
    return np.asarray(reference * far**-channel.path_loss_exponent)


def mean_snr(power_w: Floats, distance_m: Floats, channel: Channel) -> Floats:
    """Signal-to-noise ratio p_j E[g] / noise at the mean gain."""
    return np.asarray(power_w * path_gain(distance_m, channel) / channel.noise_w)


def rate_bps(snr: Floats, channel: Channel) -> Floats:
    """Shannon rate b log2(1 + snr), the r_t^{i,j} of subsec:setup."""
    return np.asarray(channel.bandwidth_hz * np.log1p(snr) / math.log(2.0))


def expected_rate_bps(snr: Floats, channel: Channel) -> Floats:
    """Mean Shannon rate: over fading where there is any, else at the mean gain.

    With X exponential of mean 1, E[log2(1 + c X)] = exp(1/c) E_1(1/c) / ln 2.
    """
    if not channel.fading:
        return rate_bps(snr, channel)
    inverse = 1.0 / np.maximum(snr, np.finfo(np.float64).tiny * 4)
    return np.asarray(channel.bandwidth_hz * _scaled_exp1(inverse) / math.log(2.0))


def _scaled_exp1(x: Floats) -> Floats:
    """exp(x) E_1(x) for x > 0; the product is tame where its factors over- and underflow."""
    from scipy.special import exp1  # slow to import; a configuration is read without

    near = np.minimum(x, _SERIES_FROM)
    out, large = np.asarray(np.exp(near) * exp1(near)), ~np.asarray(x < _SERIES_FROM)
    if large.any():
        out[large] = _series(1.0 / x[large])
    return out


def _series(inverse: Floats) -> Floats:
    """The same for large x, by its inverse: 1/x (1 - 1!/x + 2!/x^2 - ...), from the inside out."""
    series = np.ones_like(inverse)
    for k in range(10, 0, -1):
        series = 1.0 - k * inverse * series
    return inverse * series


def nominal_power_w(channel: Channel, workers: int, server: bool, seed: int) -> Floats:
    """Transmit power of every node, uniform in dBm over the workers (subsec:setup), [nodes]."""
    low, high = channel.power_dbm
    dbm = low + (high - low) * uniform(seed, "power", np.arange(workers))
    if server:
        dbm = np.append(dbm, channel.server_power_dbm)
    return dbm_to_w(dbm)


def power_factor(channel: Channel, seed: int, t: int, src: Ints) -> Floats:
    """Fluctuation of each sender's power in round t, a normal factor kept in [0.1, 1.9]."""
    swing = channel.power_fluctuation * normal(seed, "power/fluctuation", t, src)
    return np.asarray(np.clip(1.0 + swing, 0.1, 1.9))


def realised_rate_bps(
    snr: Floats, channel: Channel, seed: int, t: int, link: tuple[Ints, Ints]
) -> Floats:
    """Rate of each link (dst, src) in round t: the mean over its coherence blocks.

    The module's docstring says why one block alone has an infinite expected transfer time.
    """
    if not channel.fading:
        return rate_bps(snr, channel)
    out, address = np.empty(len(snr)), bits(seed, "fading", t, *link)
    size = max(1, _DRAWS // channel.coherence_blocks)
    for lo in range(0, len(snr), size):
        part = slice(lo, lo + size)
        table = np.empty((channel.coherence_blocks, len(snr[part])))
        draw_blocks(address[part], table)
        np.log(table, out=table)  # minus a gain that is exponential of mean 1
        np.log1p(np.multiply(-snr[part], table, out=table), out=table)
        mean_rate(table, channel.bandwidth_hz, math.log(2.0), out[part])
    return out


def transfer_s(size_bytes: float | Floats, bps: Floats) -> Floats:
    """Seconds to move so many bytes at so many bits per second."""
    return np.asarray(8.0 * np.asarray(size_bytes, np.float64) / bps)


# MERGED: What a transfer really takes: the sender's power fluctuates, the gain fades, luck runs
#   out.


@dataclass(frozen=True)
class RadioChannel:
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
