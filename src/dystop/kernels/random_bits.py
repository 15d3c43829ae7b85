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
from dystop.compiled import (
    FLOAT,
    FLOATS,
    INT,
    INTS,
    POINTS,
    TABLE,
    WORD,
    WORD_ARRAY,
    WORDS,
    compiled,
    compiled_for,
)
from dystop.parallel import as_readonly
from dystop.sparse import Floats, Ints
from dystop.world.channel import noise_power_w, path_gain
from dystop.world.params import Channel

Words = NDArray[np.uint64]
Table = NDArray[np.float64]  # [blocks, links]

_GOLDEN, _M1, _M2 = np.uint64(rng.GOLDEN), np.uint64(rng.M1), np.uint64(rng.M2)
_S30, _S27, _S31, _S11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)
_S16, _S32, _LOW = np.uint64(16), np.uint64(32), np.uint64(0xFFFFFFFF)
_POOL = 4  # words of the pool of NumPy's `SeedSequence`, whose constants follow
_INIT_A, _MULT_A = np.uint64(0x43B0D7E5), np.uint64(0x931E8875)
_INIT_B, _MULT_B = np.uint64(0x8B51F9DD), np.uint64(0x58F38DED)
_MIX_L, _MIX_R = np.uint64(0xCA01F9DD), np.uint64(0x4973F715)
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


def first_state(seed: int, words: tuple[int, ...]) -> Words:
    """Return the state from which PCG64 begins; see `dystop.rng.first_state`."""
    if seed < 0:
        raise ValueError(f"expected a seed of 0 or more, not {seed}")
    pool = np.array((*_seed_words(seed), *words), np.uint64)
    out = np.empty(4, np.uint64)
    _first_state(pool, out)
    return out


@lru_cache
def _seed_words(seed: int) -> tuple[int, ...]:
    """Return the 32-bit words of a seed, the lowest first; at least as many as NumPy's pool has."""
    count = max(_POOL, -(-seed.bit_length() // 32))
    return tuple(seed >> 32 * k & 0xFFFFFFFF for k in range(count))


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
    drawn = np.empty((2 + blocks, len(bytes_)))
    _draw_links(_link_words(address[0]), address[1], *link, drawn)
    np.log(drawn[:-1], out=drawn[:-1])
    np.cos(drawn[-1], out=drawn[-1])
    gain, noise_w = path_gain(distance_m, channel), noise_power_w(channel)
    power = power_w, link[1], channel.power_fluctuation
    terms = np.empty((1 + max(blocks, 1), len(bytes_)))  # the last row is the result
    _snr_terms(drawn, *power, gain, noise_w, terms)
    np.log1p(terms[:-1], out=terms[:-1])
    _link_seconds(channel.bandwidth_hz, math.log(2.0), bytes_, terms)
    seconds: Floats = terms[-1]
    return seconds


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


@compiled_for(WORDS, WORD_ARRAY)
def _first_state(words: Words, out: Words) -> None:
    """Write the first words of NumPy's `SeedSequence`, from 32-bit words of entropy."""
    pool, factor = np.empty(_POOL, np.uint64), _INIT_A
    for k in range(_POOL):
        pool[k], factor = _hashed(words[k], factor, _MULT_A)
    for source in range(_POOL):
        for k in range(_POOL):
            if k != source:
                value, factor = _hashed(pool[source], factor, _MULT_A)
                pool[k] = _mixed(pool[k], value)
    for source in range(_POOL, len(words)):
        for k in range(_POOL):
            value, factor = _hashed(words[source], factor, _MULT_A)
            pool[k] = _mixed(pool[k], value)
    factor = _INIT_B
    for k in range(len(out)):
        low, factor = _hashed(pool[2 * k % _POOL], factor, _MULT_B)
        high, factor = _hashed(pool[(2 * k + 1) % _POOL], factor, _MULT_B)
        out[k] = low | (high << _S32)


@compiled
def _hashed(value: np.uint64, factor: np.uint64, growth: np.uint64) -> tuple[np.uint64, np.uint64]:
    """Return a word after it was multiplied with the next factor, in 32 bits; and that factor."""
    following = factor * growth & _LOW
    value = (value ^ factor) * following & _LOW
    return value ^ (value >> _S16), following


@compiled
def _mixed(x: np.uint64, y: np.uint64) -> np.uint64:
    """Return a word of the pool, in 32 bits, after another one was mixed in."""
    value = (x * _MIX_L - y * _MIX_R) & _LOW
    return value ^ (value >> _S16)


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


@compiled_for(WORDS, INT, INTS, INTS, TABLE)
def _draw_links(words: Words, t: int, dst: Ints, src: Ints, out: Table) -> None:
    """Write numbers in (0, 1): radii, then fading of each block; the last row is angles."""
    radius, angle, fading = _folded(words[0], t), _folded(words[1], t), _folded(words[2], t)
    for k in range(len(dst)):
        out[0, k] = _unit(_folded(radius, src[k]))
        out[-1, k] = 2.0 * np.pi * _unit(_folded(angle, src[k]))
        address = _folded(_folded(fading, dst[k]), src[k])
        for block in range(len(out) - 2):
            out[1 + block, k] = _unit(_folded(address, block))


@compiled_for(POINTS, FLOATS, INTS, FLOAT, FLOATS, FLOAT, TABLE)
def _snr_terms(
    drawn: Table,
    power_w: Floats,
    src: Ints,
    fluctuation: float,
    gain: Floats,
    noise_w: float,
    out: Table,
) -> None:
    """Write the signal-to-noise ratio of each coherence block of each link, [blocks, L].

    Without fading it is one block at the mean gain. `drawn` holds logarithms and, last, cosines.
    """
    for k in range(len(src)):
        swing = fluctuation * (math.sqrt(-2.0 * drawn[0, k]) * drawn[-1, k])
        factor = min(max(1.0 + swing, 0.1), 1.9)
        snr = power_w[src[k]] * factor * gain[k] / noise_w
        out[0, k] = snr
        for block in range(len(drawn) - 2):
            out[block, k] = -snr * drawn[1 + block, k]


@compiled_for(FLOAT, FLOAT, FLOATS, TABLE)
def _link_seconds(bandwidth_hz: float, log_2: float, bytes_: Floats, table: Table) -> None:
    """Write the seconds of each link at its mean rate, after the logarithms of all blocks."""
    out = table[-1]
    _mean_rate(table[:-1], bandwidth_hz, log_2, out)
    for k in range(len(out)):
        out[k] = 8.0 * bytes_[k] / out[k]


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
