"""Radio channel: rates, fading and link times."""

import doctest
import importlib

import numpy as np
import pytest
from scipy.integrate import quad

from dystop.config import read_experiment
from dystop.rng import exponential
from dystop.world import Channel, World
from dystop.world.channel import (
    dbm_to_w,
    expected_rate_bps,
    mean_snr,
    nominal_power_w,
    power_factor,
    rate_bps,
    realised_rate_bps,
    transfer_s,
)

PLAIN = Channel()


def mean_gain_mbps(dbm, metres, noise_w=1e-13):
    knobs = Channel(noise_w=noise_w)
    return float(rate_bps(mean_snr(dbm_to_w(dbm), np.asarray(metres), knobs), knobs)) / 1e6


@pytest.mark.parametrize(
    ("metres", "weakest", "strongest"), [(50.0, 0.85, 3.2), (100.0, 0.07, 0.6)]
)
def test_mean_gain_rates_with_the_noise_as_a_power(metres, weakest, strongest):
    assert mean_gain_mbps(10.0, metres) == pytest.approx(weakest, abs=0.03)
    assert mean_gain_mbps(20.0, metres) == pytest.approx(strongest, abs=0.03)


def test_squared_noise_makes_distance_almost_irrelevant():
    assert mean_gain_mbps(10.0, 100.0, 1e-26) == pytest.approx(39, abs=0.5)
    assert mean_gain_mbps(20.0, 10.0, 1e-26) == pytest.approx(55, abs=0.5)


def test_noise_as_printed_divides_by_gamma_squared():
    watts, metres = np.array([0.01, 0.1]), np.array([10.0, 40.0])
    printed, as_power = Channel(noise="squared"), Channel(noise_w=1e-26)
    np.testing.assert_allclose(
        mean_snr(watts, metres, printed), mean_snr(watts, metres, as_power), rtol=1e-14
    )
    # By hand: 0.1 W at 40 m has the mean gain 10^-4.3 / 40^4 = 1.9578e-11.
    assert mean_snr(watts, metres, printed)[1] == pytest.approx(0.1 * 1.9578e-11 / 1e-26, rel=1e-4)


def test_noise_as_printed_reaches_the_links_of_a_world():
    def link_s(**channel):
        words = [f"world.channel.{key}={value}" for key, value in channel.items()]
        params = read_experiment(None, words).world
        return World(params, 30, 400_000, seed=0).observe(1, 0.0).link_s

    as_power, printed = link_s(), link_s(noise="squared")
    assert printed.max() < 0.1 < as_power.max()
    np.testing.assert_allclose(printed, link_s(noise_w="1e-26"), rtol=1e-14)


@pytest.mark.parametrize("links", [1, 2, 9, 100])
@pytest.mark.parametrize("blocks", [1, 8, 130])
def test_realised_rates_equal_their_definition_to_the_last_bit(links, blocks):
    knobs, rng = Channel(coherence_blocks=blocks), np.random.default_rng(links)
    snr, link = rng.random(links) * 1e3, (rng.integers(0, 99, links), rng.integers(0, 99, links))
    total = np.zeros(links)
    for number in range(blocks):
        total += rate_bps(snr * exponential(3, "fading", 7, *link, number), knobs)
    assert np.array_equal(realised_rate_bps(snr, knobs, 3, 7, link), total / blocks)


@pytest.mark.parametrize("snr", [1e-3, 0.1, 1.0, 30.0, 1e4])
def test_expected_rate_equals_monte_carlo(snr):
    draws = exponential(5, "test", np.arange(400_000))
    sampled = rate_bps(snr * draws, PLAIN)
    error = 5 * sampled.std() / np.sqrt(len(draws))
    assert abs(expected_rate_bps(np.asarray(snr), PLAIN) - sampled.mean()) < error


def test_expected_rate_is_stable_for_tiny_and_huge_ratios():
    snr = np.logspace(-300, 300, 4001)
    rate = expected_rate_bps(snr, PLAIN)
    assert np.isfinite(rate).all()
    assert (np.diff(rate) > 0).all()
    assert (rate <= rate_bps(snr, PLAIN) * (1 + 1e-12)).all()  # Jensen
    low = snr < 1e-8
    np.testing.assert_allclose(rate[low], 1e6 * snr[low] / np.log(2), rtol=1e-7)
    high = snr > 1e20
    np.testing.assert_allclose(
        rate[high], 1e6 * (np.log(snr[high]) - np.euler_gamma) / np.log(2), rtol=1e-12
    )


@pytest.mark.parametrize("snr", [0.001, 0.00999, 0.01, 0.01001, 0.1, 5.0])
def test_expected_rate_equals_its_integral_on_both_sides_of_the_series(snr):
    mean, _ = quad(lambda x: np.exp(-x) * np.log1p(snr * x), 0, 60, epsabs=0, epsrel=1e-12)
    assert float(expected_rate_bps(np.asarray(snr), PLAIN)) == pytest.approx(
        1e6 * mean / np.log(2), rel=1e-11
    )


def test_realised_rate_averages_over_coherence_blocks():
    link = (np.arange(20_000), np.arange(20_000) + 1)
    snr = np.full(20_000, 2.0)
    one = realised_rate_bps(snr, Channel(coherence_blocks=1), 0, 3, link)
    eight = realised_rate_bps(snr, PLAIN, 0, 3, link)
    np.testing.assert_array_equal(one, rate_bps(snr * exponential(0, "fading", 3, *link, 0), PLAIN))
    assert eight.mean() == pytest.approx(float(expected_rate_bps(snr[:1], PLAIN)[0]), rel=0.01)
    assert one.std() / eight.std() == pytest.approx(np.sqrt(8), rel=0.05)
    assert one.min() < 0.01 * eight.min()  # why the literal reading has an infinite mean time


def test_without_fading_the_rate_is_the_one_at_the_mean_gain():
    calm = Channel(fading=False)
    snr, link = np.array([0.1, 10.0]), (np.array([0, 1]), np.array([1, 0]))
    np.testing.assert_array_equal(realised_rate_bps(snr, calm, 0, 1, link), rate_bps(snr, calm))
    np.testing.assert_array_equal(expected_rate_bps(snr, calm), rate_bps(snr, calm))


def test_powers_lie_in_their_range_and_the_server_has_its_own():
    power = nominal_power_w(PLAIN, 1000, True, 0)
    assert (power[:-1] >= 0.01).all()
    assert (power[:-1] <= 0.1).all()
    assert power[-1] == 1.0
    assert np.log10(power[:-1]).mean() == pytest.approx(-1.5, abs=0.05)  # uniform in decibels


def test_fluctuation_is_per_round_and_sender_and_stays_positive():
    src = np.arange(5000)
    first, second = (power_factor(PLAIN, 0, t, src) for t in (1, 2))
    assert first.std() == pytest.approx(0.1, rel=0.05)
    assert (first != second).any()
    wild = power_factor(Channel(power_fluctuation=5.0), 0, 1, src)
    assert wild.min() == 0.1
    assert wild.max() == 1.9
    assert (power_factor(Channel(power_fluctuation=0.0), 0, 1, src) == 1.0).all()


def test_distances_are_kept_away_from_zero():
    snr = mean_snr(np.asarray(0.1), np.array([0.0, 0.5, 1.0]), PLAIN)
    assert snr[0] == snr[1] == snr[2] == pytest.approx(0.1 * 10**-4.3 / 1e-13)


def test_transfer_time_is_bits_over_rate():
    assert transfer_s(1000, np.asarray(4000.0)) == 2.0


@pytest.mark.parametrize("name", ["capacity", "channel", "describe"])
def test_examples_in_docstrings(name):
    module = importlib.import_module(f"dystop.world.{name}")
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0
