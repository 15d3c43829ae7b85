"""A second planner, written independently: one round in plain NumPy and lists.

It sorts all links, searches in sorted keys, and runs PTCA as a loop over lists. It compiles
nothing and uses no blocks. The product must decide exactly the same.
"""

import math
import time
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from dystop.sparse import Bools, Floats, Ints
from dystop.types import Fleet
from dystop.world.capacity import base_models
from dystop.world.channel import dbm_to_w, expected_rate_bps, mean_snr, rate_bps, transfer_s
from dystop.world.params import WorldParams

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class PlanningReference:
    """A world without motion and a coordinator, with the state of both."""

    def __init__(self, params: WorldParams, fleet: Fleet, V: float = 10.0) -> None:
        """Draw what is fixed for the run."""
        self.params, self.fleet, self.V = params, fleet, V
        n, seed, channel = fleet.workers, fleet.seed, params.channel
        who = np.arange(n)
        spot = [_uniform(seed, f"position/{axis}", who) for axis in "xy"]
        self.position = np.stack(spot, axis=1) * np.asarray(params.area_m)
        low, high = channel.power_dbm
        self.power_w = dbm_to_w(low + (high - low) * _uniform(seed, "power", who))
        slow = 1.0 + params.compute.spread * _normal(seed, "compute", who)
        slow = np.clip(slow, params.compute.fastest, params.compute.slowest)
        self.remaining_s = float(params.compute.batch_s) * slow * fleet.epoch_steps
        self.cap = max(1, math.ceil(math.log2(n)))
        self.keys, self.counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.staleness = np.zeros(n, np.int64)

    def rounds(self, queue: Floats, rounds: int) -> Iterator[tuple[float, int, Ints, Ints, Ints]]:
        """Seconds, links in reach, active workers, dst and src of one round after the other."""
        for t in range(1, rounds + 1):
            begin = time.perf_counter()
            if t == 1:
                self._observe()
            active, dst, src = self._plan(t, queue, first=t <= rounds // 2)
            _, lost = self._transfer(t, dst, src)
            self._settle(active, dst[~lost], src[~lost])
            yield time.perf_counter() - begin, len(self.src), active, dst, src

    def _observe(self) -> None:
        """Who is in range, how far, and how long a model is expected to take."""
        n, channel = self.fleet.workers, self.params.channel
        pair = cKDTree(self.position).query_pairs(self.params.range_m, output_type="ndarray")
        ends = np.concatenate([pair, pair[:, ::-1]]).astype(np.int64)
        self.reach = np.sort(ends[:, 0] * n + ends[:, 1])
        self.dst, self.src = self.reach // n, self.reach % n
        self.distance_m = self._metres(self.dst, self.src)
        snr = mean_snr(self.power_w[self.src], self.distance_m, channel)
        self.link_s = transfer_s(self.fleet.model_bytes, expected_rate_bps(snr, channel))

    def _metres(self, dst: Ints, src: Ints) -> Floats:
        apart = self.position[dst] - self.position[src]
        return np.asarray(np.hypot(apart[:, 0], apart[:, 1]))

    def _plan(self, t: int, queue: Floats, *, first: bool) -> tuple[Ints, Ints, Ints]:
        n, budget = self.fleet.workers, self.params.budget
        swing = 1.0 + budget.variation * _normal(self.fleet.seed, "budget", t, np.arange(n))
        purse = np.maximum(0.0, np.floor(base_models(budget, n) * swing))
        active = self._wake(queue)
        priority = self._first_phase() if first else self._second_phase(t)
        dst, src = self._connect(active, priority, purse)
        self._check(dst, src, *self._weights(active, dst, src))
        return active, dst, src

    def _wake(self, queue: Floats) -> Ints:
        """WAA (alg:device)."""
        n = self.fleet.workers
        indptr = np.searchsorted(self.dst, np.arange(n + 1))
        order, degree = np.lexsort((self.link_s, self.dst)), np.diff(indptr)
        at = indptr[:-1] + np.minimum(self.cap, np.maximum(degree, 1)) - 1
        exchange_s = np.zeros(n)
        exchange_s[degree > 0] = self.link_s[order[at[degree > 0]]]
        cost = self.remaining_s + exchange_s
        who = np.lexsort((np.arange(n), cost))
        score = self.V * cost[who] - np.cumsum(queue[who] * (self.staleness[who] + 1.0))
        return np.asarray(who[: int(np.argmin(score)) + 1])

    def _first_phase(self) -> Floats:
        """eq:priority1."""
        counts = self.fleet.label_counts
        shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
        emd = np.empty(len(self.src))
        for lo in range(0, len(emd), 1 << 16):  # all rows at once would not fit into memory
            part = slice(lo, lo + (1 << 16))
            emd[part] = np.abs(shares[self.dst[part]] - shares[self.src[part]]).sum(axis=1)
        return np.asarray(emd / emd.max() + (1.0 - self.distance_m / self.distance_m.max()))

    def _second_phase(self, t: int) -> Floats:
        """eq:priority2."""
        at, known = _search(self.keys, self.reach)
        pulls = np.where(known, self.counts[at], 0) if len(self.keys) else np.zeros(len(at))
        gap = self.staleness[self.dst] - self.staleness[self.src]
        return np.asarray((1.0 - pulls / t) / (1.0 + np.abs(gap)))

    def _connect(self, active: Ints, priority: Floats, purse: Floats) -> tuple[Ints, Ints]:
        """PTCA (alg:topology) over plain lists."""
        order = np.lexsort((self.src, -priority, self.dst))
        begin = np.searchsorted(self.dst, np.arange(self.fleet.workers + 1))
        choice, left = self.src[order].tolist(), purse.tolist()
        cursor, end = begin[:-1].tolist(), begin[1:].tolist()
        chosen: list[tuple[int, int]] = []
        turn = active.tolist()
        for _ in range(self.cap):
            again = []
            for i in turn:
                if left[i] < 1:
                    continue
                at = cursor[i]
                while at < end[i] and left[choice[at]] < 1:
                    at += 1
                cursor[i] = at + 1
                if at < end[i]:
                    left[i] -= 1
                    left[choice[at]] -= 1
                    chosen.append((i, choice[at]))
                    again.append(i)
            turn = again
        pair = np.array(chosen, np.int64).reshape(-1, 2)
        return pair[:, 0].copy(), pair[:, 1].copy()

    def _weights(self, active: Ints, dst: Ints, src: Ints) -> tuple[Ints, Ints, Floats]:
        """eq:aggregation: (dst, source, weight), in id order."""
        to, source = np.concatenate([active, dst]), np.concatenate([active, src])
        size = self.fleet.data_size[source].astype(float)
        total = np.bincount(to, weights=size, minlength=self.fleet.workers)
        order = np.lexsort((source, to))
        return to[order], source[order], (size / total[to])[order]

    def _check(self, dst: Ints, src: Ints, to: Ints, source: Ints, weight: Floats) -> None:
        """Every link is in reach, every row sums to one, every source has a link."""
        n = self.fleet.workers
        sums = np.bincount(to, weights=weight, minlength=n)
        backed = _search(np.sort(dst * n + src), to * n + source)[1] | (to == source)
        fine = _search(self.reach, dst * n + src)[1].all() and backed.all()
        if not (fine and (np.abs(sums[np.unique(to)] - 1.0) < 1e-9).all()):
            raise AssertionError("the twin made a plan that breaks the contract")

    def _transfer(self, t: int, dst: Ints, src: Ints) -> tuple[Floats, Bools]:
        """Realised seconds, and what is out of range."""
        channel, seed = self.params.channel, self.fleet.seed
        swing = channel.power_fluctuation * _normal(seed, "power/fluctuation", t, src)
        distance_m = self._metres(dst, src)
        power_w = self.power_w[src] * np.clip(1.0 + swing, 0.1, 1.9)
        snr, total = mean_snr(power_w, distance_m, channel), np.zeros(len(dst))
        for block in range(channel.coherence_blocks):
            total += rate_bps(snr * -np.log(_uniform(seed, "fading", t, dst, src, block)), channel)
        seconds = transfer_s(self.fleet.model_bytes, total / channel.coherence_blocks)
        return seconds, np.asarray(distance_m > self.params.range_m * (1.0 + 1e-9))

    def _settle(self, active: Ints, dst: Ints, src: Ints) -> None:
        """Staleness and pull counts."""
        self.staleness += 1
        self.staleness[active] = 0
        fresh, times = np.unique(dst * self.fleet.workers + src, return_counts=True)
        at, known = _search(self.keys, fresh)
        self.counts = self.counts.copy()
        self.counts[at[known]] += times[known]
        where = np.searchsorted(self.keys, fresh[~known])
        self.keys = np.insert(self.keys, where, fresh[~known])
        self.counts = np.insert(self.counts, where, times[~known])


def _search(keys: Ints, wanted: Ints) -> tuple[Ints, Bools]:
    """Position of each wanted key among sorted ones, and whether it is there."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return at, keys[at] == wanted


def _uniform(seed: int, name: str, *identity: Any) -> Floats:
    """The numbers of `dystop.rng.uniform`."""
    with np.errstate(over="ignore"):
        state = np.asarray([zlib.crc32(name.encode())], np.uint64)
        state = _scramble(state + np.uint64(seed % 2**64) * _GOLDEN)
        for part in identity:
            state = _scramble(state + _GOLDEN + np.asarray(part).astype(np.uint64) * _GOLDEN)
    return np.asarray(((state >> np.uint64(11)).astype(float) + 0.5) * 2.0**-53)


def _scramble(x: Any) -> Any:
    x = (x ^ (x >> np.uint64(30))) * _M1
    x = (x ^ (x >> np.uint64(27))) * _M2
    return x ^ (x >> np.uint64(31))


def _normal(seed: int, name: str, *identity: Any) -> Floats:
    radius = np.sqrt(-2.0 * np.log(_uniform(seed, name + "/radius", *identity)))
    return np.asarray(radius * np.cos(2.0 * np.pi * _uniform(seed, name + "/angle", *identity)))
