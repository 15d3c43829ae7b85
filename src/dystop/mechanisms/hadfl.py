"""HADFL: all workers train for one hyperperiod, then a random ring of workers synchronises."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le, Lt

from dystop.params import param
from dystop.plan import Mix, Plan, join_links, links, mix_of, no_links
from dystop.sparse import Bools, Floats, Graph, Ints, ints
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View

_GRID = 4  # ticks of the hyperperiod in the fastest epoch
_LARGEST_RING = 2000  # the rows of a ring hold the square of its size
_ROUNDING = 1e-9  # a whole quotient may come out slightly below


@dataclass(frozen=True)
class HADFL(Mechanism):
    """Heterogeneity-aware local steps, and a ring of workers drawn by their forecast version.

    The abstract states heterogeneity-aware local steps and probabilistic partial synchronisation.
    The hyperperiod, double exponential smoothing, the normal density around the third quartile, the
    ring and the non-blocking broadcast come from the paper. Our choices: standardised forecasts
    (raw ones would give nearly all probability to one device), and all numbers.

    If not all workers reach each other, the ring grows in the order of the draw. It starts with the
    first drawn worker that reaches another in both directions. A worker joins between two
    consecutive members if the links exist; otherwise the next drawn worker takes its place. Without
    a ring, no worker synchronises in that round. The broadcast goes to the workers in reach of the
    sender. Bandwidth budgets are ignored. The rows of a ring are dense, so a ring has at most 2000
    members.
    """

    name: ClassVar[str] = "hadfl"
    provenance: ClassVar[str] = "reconstruction"
    summary: ClassVar[str] = "train a hyperperiod, ring all-reduce of newer models, broadcast"

    members: Annotated[int, Ge(2), Le(_LARGEST_RING)] | None = param(
        None, "k: workers in the ring; unset: half of the present ones, 2 to 2000 (our choice)"
    )
    smoothing: Annotated[float, Gt(0), Lt(1)] = param(
        0.5, "a: weight of the newest version in the forecast (our choice)"
    )
    beta: Annotated[float, Ge(0), Le(1)] = param(
        0.5, "weight of the broadcast model in models outside the ring (our choice)"
    )
    periods: Annotated[int, Ge(1)] = param(1, "hyperperiods between synchronisations (our choice)")
    cap: Annotated[float, Ge(1)] = param(
        4.0, "longest hyperperiod, in local epochs of the slowest worker (our choice)"
    )

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="async", collective=True)

    def init(self, fleet: Fleet) -> Memory:
        """Return versions in mini-batches; all workers start with one epoch in progress."""
        first = fleet.epoch_steps.astype(float)
        age = np.zeros(fleet.workers, np.int64)
        return {"version": first, "once": first.copy(), "twice": first.copy(), "age": age}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Forecast versions, draw a ring, average in it, broadcast the result."""
        active = np.flatnonzero(view.alive)
        memory = self._smooth(memory, active)
        period_s = self.periods * self._hyperperiod_s(view, active)
        steps = period_steps(period_s, view.step_s[active])
        ring = self._ring(memory, view, active)
        age = memory["age"] + 1
        age[ring] = 0
        notes = {
            "ring": float(len(ring)),
            "period_s": period_s,
            "sync_age_mean": float(age[active].mean()),
            "sync_age_max": float(age[active].max()),
        }
        version = memory["version"].copy()
        version[active] += steps
        memory = {**memory, "version": version, "age": age}
        return self._exchange(view, active, ring, steps, notes), memory

    def _smooth(self, memory: Memory, active: Ints) -> Memory:
        """Update both exponential averages of the versions of the present workers."""
        a, once, twice = self.smoothing, memory["once"].copy(), memory["twice"].copy()
        once[active] = a * memory["version"][active] + (1 - a) * once[active]
        twice[active] = a * once[active] + (1 - a) * twice[active]
        return {**memory, "once": once, "twice": twice}

    def _hyperperiod_s(self, view: View, active: Ints) -> float:
        epoch_s = view.step_s[active] * np.maximum(view.fleet.epoch_steps[active], 1)
        return hyperperiod_s(epoch_s, self.cap)

    def _ring(self, memory: Memory, view: View, active: Ints) -> Ints:
        """Return the members in sending order."""
        once, twice = memory["once"][active], memory["twice"][active]
        chance = log_density(forecast(once, twice, self.smoothing))
        draw = view.rng("select").gumbel(
            size=len(active)
        )  # sorting by it samples without replacement
        order = active[np.argsort(-(chance + draw), kind="stable")]
        half = min(max(2, len(active) // 2), _LARGEST_RING)
        return grow_ring(order, view.reach, self.members or half, view.rng("ring"))

    def _exchange(
        self, view: View, active: Ints, ring: Ints, steps: Ints, notes: dict[str, float]
    ) -> Plan:
        """Plan the ring in stage 0 and the broadcast in stage 1."""
        if not len(ring):
            alone = mix_of(active, active, np.ones(len(active)))
            return Plan(active, no_links(), (alone,), steps, synchronous=True, notes=notes)
        k = len(ring)
        around = links(np.roll(ring, -1), ring, fraction=2 * (k - 1) / k)
        gather = mix_of(
            np.repeat(ring, k), np.tile(ring, k), np.full(k * k, 1.0 / k), collective=True
        )
        sender = int(view.rng("broadcast").choice(ring))
        others = np.setdiff1d(active, ring)
        others = others[view.reach.find(others, np.full(len(others), sender)) >= 0]
        broadcast = links(others, np.full(len(others), sender), stage=1, background=True)
        spread = self._spread(active, others, sender)
        # Synchronous because the ring waits for its members; nothing waits for the broadcast.
        both = join_links([around, broadcast])
        return Plan(active, both, (gather, spread), steps, synchronous=True, notes=notes)

    def _spread(self, active: Ints, others: Ints, sender: int) -> Mix:
        own = np.where(np.isin(active, others), 1.0 - self.beta, 1.0)
        return mix_of(
            np.concatenate([active, others]),
            np.concatenate([active, np.full(len(others), sender)]),
            np.concatenate([own, np.full(len(others), self.beta)]),
        )


def hyperperiod_s(epoch_s: Floats, cap: float) -> float:
    """Return the least common multiple of the epoch times on a grid, at most `cap` of the longest.

    >>> hyperperiod_s(np.array([1.0, 1, 3, 3]), 4.0), hyperperiod_s(np.array([1.0, 2, 2, 4]), 4.0)
    (3.0, 4.0)
    """
    grid_s, longest_s = float(epoch_s.min()) / _GRID, cap * float(epoch_s.max())
    whole = 1
    for ticks in np.unique(np.rint(epoch_s / grid_s)).tolist():
        whole = math.lcm(whole, int(ticks))
        if whole * grid_s >= longest_s:
            return longest_s
    return whole * grid_s


def period_steps(period_s: float, step_s: Floats) -> Ints:
    """Return the mini-batches that fit into the period, at least one."""
    return ints(np.maximum(np.floor(period_s / step_s + _ROUNDING), 1))


def forecast(once: Floats, twice: Floats, smoothing: float) -> Floats:
    """Return the next version by Brown's double exponential smoothing.

    >>> forecast(np.array([22.5]), np.array([17.5]), 0.5).tolist()
    [32.5]
    """
    return 2 * once - twice + smoothing / (1 - smoothing) * (once - twice)


def log_density(version: Floats) -> Floats:
    """Return the logarithm of each worker's probability to be drawn, up to a constant.

    It is a normal density around the third quartile of the standardised versions, and uniform if
    all versions are equal.

    >>> weight = np.exp(log_density(np.array([12.0, 8, 4, 4])))
    >>> (weight / weight.sum()).round(3).tolist()
    [0.294, 0.422, 0.142, 0.142]
    """
    spread = float(version.std())
    if spread <= 1e-12 * max(1.0, float(np.abs(version).max())):
        return np.zeros(len(version))
    z = (version - version.mean()) / spread
    out: Floats = -0.5 * (z - np.quantile(z, 0.75)) ** 2
    return out


def grow_ring(order: Ints, reach: Graph, size: int, rng: np.random.Generator) -> Ints:
    """Return a directed ring of up to `size` workers, each in reach of its successor.

    Workers join in this order, each at a random position where the links exist. If all workers
    reach each other, this is a random ring of the first `size`. It is empty if no two reach each
    other.
    """
    keys = reach.dst * reach.n + reach.src
    after = _first_two(order, reach, keys)
    waiting = order[after[order] < 0]
    taken = int((after >= 0).sum())
    grown = taken > 0
    while grown and taken < size:
        grown = False
        for m in waiting.tolist():
            before = reach.row(m)
            before = before[after[before] >= 0]
            before = before[_holds(keys, after[before] * reach.n + m)]
            if len(before) and taken < size:
                u = before[rng.integers(len(before))]
                after[m], after[u] = after[u], m
                taken, grown = taken + 1, True
        waiting = waiting[after[waiting] < 0]
    return _walk(after)


def _first_two(order: Ints, reach: Graph, keys: Ints) -> Ints:
    """Return successors (-1 outside) in a ring of two: the first pair with links both ways."""
    after = np.full(reach.n, -1)
    place = np.full(reach.n, len(order))
    place[order] = np.arange(len(order))
    for a in order.tolist():
        near = reach.row(a)
        near = near[_holds(keys, near * reach.n + a) & (place[near] < len(order))]
        if len(near):
            b = near[np.argmin(place[near])]
            after[a], after[b] = b, a
            break
    return after


def _holds(keys: Ints, wanted: Ints) -> Bools:
    """Return which of the wanted links exist, by their sorted keys dst * n + src."""
    if not len(keys):
        return np.zeros(len(wanted), bool)
    found: Bools = keys[np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)] == wanted
    return found


def _walk(after: Ints) -> Ints:
    """Return the members of a ring in order, from the lowest id on."""
    members = np.flatnonzero(after >= 0)
    if not len(members):
        return members
    ring = [int(members[0])]
    for _ in range(len(members) - 1):
        ring.append(int(after[ring[-1]]))
    return ints(ring)
