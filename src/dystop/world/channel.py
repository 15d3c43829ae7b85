"""The radio channel of subsec:setup: powers, gains, Shannon rates, transfer times and losses.

The paper gives the rate r_t^{i,j} = b log2(1 + p_j g_t^{i,j} / gamma^2) and calls gamma the noise
power; `noise` chooses between the formula and the word (ADR 0005). The gain g is exponentially
distributed around G_0 d^-4. Taken literally, one draw of g decides a whole transfer.
Then the *expected* transfer time is infinite: near g = 0 the rate is proportional to g, and 1/g is
not integrable against an exponential density. A transfer of seconds spans many coherence times, so
this module averages the rate over `coherence_blocks` independent draws. From two blocks on the
expected time is finite; with eight it is close to the time at the expected rate.
`coherence_blocks = 1` is the literal reading.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from dystop.acceleration import accelerated
from dystop.rng import Words, bits, fold_in, normal, uniform, unit
from dystop.sparse import Bools, Floats, Ints
from dystop.world.params import Channel, WorldParams

Link = tuple[Ints, Ints]  # (dst, src) of each link
SecondsOf = Callable[[Link, Floats, Floats], Floats]
"""Gives the seconds that so many bytes take over each link: (links, distance_m, bytes)."""

_SERIES_FROM = 100.0  # ten terms of the asymptotic series are exact to 1e-13 from here on


def dbm_to_w(dbm: float | Floats) -> Floats:
    """Convert decibel-milliwatts to watts.

    >>> float(dbm_to_w(30.0))
    1.0
    """
    return np.asarray(10.0 ** ((np.asarray(dbm, np.float64) - 30.0) / 10.0))


def path_gain(distance_m: Floats, channel: Channel) -> Floats:
    """Return the mean channel gain G_0 d^-4 (subsec:setup)."""
    reference = 10.0 ** (channel.reference_gain_db / 10.0)
    far = np.maximum(distance_m, channel.min_distance_m)
    return np.asarray(reference * far**-channel.path_loss_exponent)


def mean_snr(power_w: Floats, distance_m: Floats, channel: Channel) -> Floats:
    """Return the signal-to-noise ratio p_j E[g] / noise at the mean gain.

    >>> watts, metres = np.array([0.1]), np.array([40.0])
    >>> mean_snr(watts, metres, Channel()).round(2).tolist()
    [19.58]
    >>> mean_snr(watts, metres, Channel(noise="squared")).round(-10).tolist()
    [195780000000000.0]
    """
    return np.asarray(power_w * path_gain(distance_m, channel) / noise_power_w(channel))


def noise_power_w(channel: Channel) -> float:
    """Return the noise by which a signal is divided, as `noise` reads the formula."""
    return channel.noise_w if channel.noise == "power" else channel.noise_w**2


def rate_bps(snr: Floats, channel: Channel) -> Floats:
    """Return the Shannon rate b log2(1 + snr), the r_t^{i,j} of subsec:setup."""
    return np.asarray(channel.bandwidth_hz * np.log1p(snr) / math.log(2.0))


def expected_rate_bps(snr: Floats, channel: Channel) -> Floats:
    """Return the mean Shannon rate: over fading if it is on, else at the mean gain.

    With X exponential of mean 1, E[log2(1 + c X)] = exp(1/c) E_1(1/c) / ln 2.
    """
    if not channel.fading:
        return rate_bps(snr, channel)
    inverse = 1.0 / np.maximum(snr, np.finfo(np.float64).tiny * 4)
    return np.asarray(channel.bandwidth_hz * _scaled_exp1(inverse) / math.log(2.0))


def _scaled_exp1(x: Floats) -> Floats:
    """Return exp(x) E_1(x) for x > 0, also where one factor overflows and the other underflows."""
    from scipy.special import exp1  # slow to import; reading a configuration needs no scipy

    near = np.minimum(x, _SERIES_FROM)
    out, large = np.asarray(np.exp(near) * exp1(near)), ~np.asarray(x < _SERIES_FROM)
    if large.any():
        out[large] = _series(1.0 / x[large])
    return out


def _series(inverse: Floats) -> Floats:
    """Return exp(x) E_1(x) for large x from 1/x: 1/x (1 - 1!/x + 2!/x^2 - ...)."""
    series = np.ones_like(inverse)
    for k in range(10, 0, -1):
        series = 1.0 - k * inverse * series
    return inverse * series


def nominal_power_w(channel: Channel, workers: int, server: bool, seed: int) -> Floats:
    """Return the transmit power of every node, uniform in dBm (subsec:setup), [nodes]."""
    low, high = channel.power_dbm
    dbm = low + (high - low) * uniform(seed, "power", np.arange(workers))
    if server:
        dbm = np.append(dbm, channel.server_power_dbm)
    return dbm_to_w(dbm)


def power_factor(channel: Channel, seed: int, t: int, src: Ints) -> Floats:
    """Return the factor on each sender's power in round t: normal, clipped to [0.1, 1.9]."""
    swing = channel.power_fluctuation * normal(seed, "power/fluctuation", t, src)
    return np.asarray(np.clip(1.0 + swing, 0.1, 1.9))


def realised_rate_bps(
    snr: Floats, channel: Channel, seed: int, t: int, link: tuple[Ints, Ints]
) -> Floats:
    """Return the rate of each link (dst, src) in round t: the mean over its coherence blocks.

    The docstring of the module explains why one block has an infinite expected transfer time.
    """
    if not channel.fading:
        return rate_bps(snr, channel)
    address = bits(seed, "fading", t, *link)
    return faded_rate_bps(snr, address, channel.bandwidth_hz, channel.coherence_blocks)


@accelerated("dystop.kernels.random_bits:faded_rate_bps")
def faded_rate_bps(snr: Floats, address: Words, bandwidth_hz: float, blocks: int) -> Floats:
    """Return the mean rate of each link over coherence blocks with exponential gains.

    Args:
        snr: at the mean gain, [L].
        address: random bits of each link, [L]; each block folds in its number.
        bandwidth_hz: b.
        blocks: independent draws of the gain.
    """
    total = np.zeros(len(snr))
    for block in range(blocks):
        gain = -np.log(unit(fold_in(address, block)))  # exponential of mean 1
        total += bandwidth_hz * np.log1p(snr * gain) / math.log(2.0)
    return np.asarray(total / blocks)


def transfer_s(size_bytes: float | Floats, bps: Floats) -> Floats:
    """Return the seconds to move so many bytes at so many bits per second."""
    return np.asarray(8.0 * np.asarray(size_bytes, np.float64) / bps)


@accelerated("dystop.kernels.random_bits:link_seconds")
def link_seconds(
    channel: Channel,
    power_w: Floats,
    address: tuple[int, int],
    link: tuple[Ints, Ints],
    distance_m: Floats,
    bytes_: Floats,
) -> Floats:
    """Return the seconds that so many bytes take over each link: power, gain, rate, time.

    Args:
        channel: The radio's parameters.
        power_w: Nominal power of every node, [nodes].
        address: (seed, round) of all draws.
        link: (dst, src) of each link.
        distance_m: Between its ends, [L].
        bytes_: What it carries, [L].
    """
    sending_w = power_w[link[1]] * power_factor(channel, *address, link[1])
    snr = mean_snr(sending_w, distance_m, channel)
    return transfer_s(bytes_, realised_rate_bps(snr, channel, *address, link))


@dataclass(frozen=True)
class RadioChannel:
    """The radio channel in every round: fluctuating powers, fading, lost transfers, links down.

    Every draw has an address, so no answer depends on an earlier call.
    """

    params: WorldParams
    power_w: Floats  # nominal, [nodes]
    seed: int

    def seconds_of(self, t: int, links: int) -> SecondsOf:
        """Return a function that gives the seconds of some of so many links in round t.

        Where there are at least as many links as nodes, the power of every node is drawn once.
        """
        channel, address = self.params.channel, (self.seed, t)
        if links < len(self.power_w):
            return partial(link_seconds, channel, self.power_w, address)
        everyone = np.arange(len(self.power_w))
        power_w = self.power_w * power_factor(channel, *address, everyone)

        def seconds(link: Link, distance_m: Floats, bytes_: Floats) -> Floats:
            snr = mean_snr(power_w[link[1]], distance_m, channel)
            return transfer_s(bytes_, realised_rate_bps(snr, channel, *address, link))

        return seconds

    def lost(self, t: int, link: tuple[Ints, Ints]) -> Bools:
        """Return which transfers fail at random (`outages.loss`)."""
        if not self.params.outages.loss:
            return np.zeros(len(link[0]), bool)
        out: Bools = uniform(self.seed, "loss", t, *link) < self.params.outages.loss
        return out

    def down(self, t: int, link: tuple[Ints, Ints]) -> Bools:
        """Return which links are down for the whole of round t, always in both directions."""
        if not self.params.outages.drop:
            return np.zeros(len(link[0]), bool)
        ends = np.minimum(*link), np.maximum(*link)
        out: Bools = uniform(self.seed, "drop", t, *ends) < self.params.outages.drop
        return out
