"""Compiled random bits (SplitMix64), and the fading of many links that is drawn from them.

Integer arithmetic wraps around and a division by a power of two is exact, so kernels and references
agree to the last bit. Logarithms stay NumPy's own for the same reason: what is compiled is the work
between them, in two passes over memory instead of a dozen.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dystop import rng
from dystop.compiled import FLOAT, FLOATS, INT, INTS, POINTS, WORD, WORDS, compiled, compiled_for
from dystop.parallel import as_readonly
from dystop.sparse import Floats, Ints
from dystop.world.channel import noise_power_w, path_gain
from dystop.world.params import Channel

Words = NDArray[np.uint64]
Table = NDArray[np.float64]  # [blocks, links]

_GOLDEN, _M1, _M2 = np.uint64(rng.GOLDEN), np.uint64(rng.M1), np.uint64(rng.M2)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_DRAWS = 1 << 16  # gains that are drawn at a time: they fit a processor's cache


def fold_words(words: Words, part: Words) -> Words:
    """Return the next words of SplitMix64; see `dystop.rng.fold_words`."""
    if words.ndim == 0:
        out = np.empty(part.shape, np.uint64)
        _fold_one(np.uint64(words), as_readonly(part).reshape(-1), out.reshape(-1))
        return out
    if words.shape != part.shape:
        shape = np.broadcast_shapes(words.shape, part.shape)
        words, part = np.broadcast_to(words, shape), np.broadcast_to(part, shape)
    out = np.empty(part.shape, np.uint64)
    _fold_each(as_readonly(words).reshape(-1), as_readonly(part).reshape(-1), out.reshape(-1))
    return out


def to_unit(words: Words) -> Floats:
    """Return numbers in the open interval (0, 1); see `dystop.rng.to_unit`."""
    out = np.empty(words.shape)
    _to_unit(as_readonly(words).reshape(-1), out.reshape(-1))
    return out


def units_after(word: np.uint64, part: Ints) -> Floats:
    """Return numbers in (0, 1) of addresses; see `dystop.rng.units_after`."""
    return _units_after(word, part.reshape(-1)).reshape(part.shape)


def faded_rate_bps(snr: Floats, address: Words, bandwidth_hz: float, blocks: int) -> Floats:
    """Return the mean rate over coherence blocks; see `dystop.world.channel.faded_rate_bps`."""
    out = np.empty(len(snr))
    size = max(1, _DRAWS // blocks)
    for lo in range(0, len(snr), size):
        part = slice(lo, lo + size)
        table = np.empty((blocks, len(snr[part])))
        _draw_blocks(address[part], table)
        np.log(table, out=table)
        np.log1p(np.multiply(-snr[part], table, out=table), out=table)
        _mean_rate(table, bandwidth_hz, math.log(2.0), out[part])
    return out


def link_seconds(
    channel: Channel,
    power_w: Floats,
    address: tuple[int, int],
    link: tuple[Ints, Ints],
    distance_m: Floats,
    bytes_: Floats,
) -> Floats:
    """Return the seconds of each link; see `dystop.world.channel.link_seconds`."""
    blocks = channel.coherence_blocks if channel.fading else 0
    logs, angle = _draw_links(_link_words(address[0]), address[1], *link, blocks)
    np.log(logs, out=logs)
    np.cos(angle, out=angle)
    gain, noise_w = path_gain(distance_m, channel), noise_power_w(channel)
    power = power_w, link[1], channel.power_fluctuation
    terms = _snr_terms(logs, angle, *power, gain, noise_w)
    np.log1p(terms, out=terms)
    return _link_seconds(terms, channel.bandwidth_hz, math.log(2.0), bytes_)


@lru_cache
def _link_words(seed: int) -> Words:
    """Return the first words of what is drawn for a link: two numbers for its power, its fading."""
    names = "power/fluctuation/radius", "power/fluctuation/angle", "fading"
    return np.array([rng.bits(seed, name) for name in names], np.uint64)


@compiled
def _mix(x: np.uint64) -> np.uint64:
    """Return the output function of SplitMix64 for one word."""
    x = (x ^ (x >> _S30)) * _M1
    x = (x ^ (x >> _S27)) * _M2
    return x ^ (x >> _S31)


@compiled
def _fold_one(word: np.uint64, part: Words, out: Words) -> None:
    """Write the next words after one word, for each part of an address."""
    start = word + _GOLDEN
    for k in range(len(part)):
        out[k] = _mix(start + part[k] * _GOLDEN)


@compiled
def _fold_each(words: Words, part: Words, out: Words) -> None:
    """Write the next word after each word."""
    for k in range(len(words)):
        out[k] = _mix(words[k] + (part[k] * _GOLDEN + _GOLDEN))


@compiled
def _unit(word: np.uint64) -> float:
    """Return a number in the open interval (0, 1) from the upper 53 bits of a word."""
    return (np.float64(word >> _S11) + 0.5) * 2.0**-53


@compiled
def _to_unit(words: Words, out: Floats) -> None:
    """Write one number in the open interval (0, 1) for every word."""
    for k in range(len(words)):
        out[k] = _unit(words[k])


@compiled
def _draw_blocks(address: Words, out: Table) -> None:
    """Write a number in (0, 1) for each coherence block of each link (`fold_in`, then `unit`)."""
    for block in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[block, k] = _unit(_mix(address[k] + (np.uint64(block) * _GOLDEN + _GOLDEN)))


@compiled
def _folded(word: np.uint64, part: int) -> np.uint64:
    """Return the next word after one, for one more part of an address."""
    return _mix(word + (np.uint64(part) * _GOLDEN + _GOLDEN))


@compiled_for(WORD, INTS)
def _units_after(word: np.uint64, part: Ints) -> Floats:
    """Return a number in (0, 1) for each last part of an address."""
    out = np.empty(len(part))
    for k in range(len(part)):
        out[k] = _unit(_folded(word, part[k]))
    return out


@compiled_for(WORDS, INT, INTS, INTS, INT)
def _draw_links(words: Words, t: int, dst: Ints, src: Ints, blocks: int) -> tuple[Table, Floats]:
    """Return numbers in (0, 1), [1 + blocks, L]: radii, then fading; and angles in radians, [L]."""
    radius, angle, fading = _folded(words[0], t), _folded(words[1], t), _folded(words[2], t)
    table, turned = np.empty((1 + blocks, len(dst))), np.empty(len(dst))
    for k in range(len(dst)):
        table[0, k] = _unit(_folded(radius, src[k]))
        turned[k] = 2.0 * np.pi * _unit(_folded(angle, src[k]))
        address = _folded(_folded(fading, dst[k]), src[k])
        for block in range(blocks):
            table[1 + block, k] = _unit(_folded(address, block))
    return table, turned


@compiled_for(POINTS, FLOATS, FLOATS, INTS, FLOAT, FLOATS, FLOAT)
def _snr_terms(
    logs: Table,
    cosine: Floats,
    power_w: Floats,
    src: Ints,
    fluctuation: float,
    gain: Floats,
    noise_w: float,
) -> Table:
    """Return the signal-to-noise ratio of each coherence block of each link, [blocks, L].

    Without fading it is one block at the mean gain.
    """
    blocks, links = len(logs) - 1, len(src)
    out = np.empty((max(blocks, 1), links))
    for k in range(links):
        swing = fluctuation * (math.sqrt(-2.0 * logs[0, k]) * cosine[k])
        factor = min(max(1.0 + swing, 0.1), 1.9)
        snr = power_w[src[k]] * factor * gain[k] / noise_w
        out[0, k] = snr
        for block in range(blocks):
            out[block, k] = -snr * logs[1 + block, k]
    return out


@compiled_for(POINTS, FLOAT, FLOAT, FLOATS)
def _link_seconds(log_term: Table, bandwidth_hz: float, log_2: float, bytes_: Floats) -> Floats:
    """Return the seconds of each link at its mean rate, from the logarithms of all blocks."""
    out = np.empty(log_term.shape[1])
    _mean_rate(log_term, bandwidth_hz, log_2, out)
    for k in range(len(out)):
        out[k] = 8.0 * bytes_[k] / out[k]
    return out


@compiled
def _mean_rate(log_term: Table, bandwidth_hz: float, log_2: float, out: Floats) -> None:
    """Write the mean over the blocks of b log(1 + snr) / log(2), from the natural logarithms."""
    blocks, links = log_term.shape
    for k in range(links):
        out[k] = 0.0
    for block in range(blocks):
        for k in range(links):
            out[k] += bandwidth_hz * log_term[block, k] / log_2
    for k in range(links):
        out[k] /= blocks
