"""DySTop, the paper's mechanism: WAA chooses the active workers, PTCA whom they pull from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt

from dystop.control.activation import Drift, activate
from dystop.control.aggregation import size_rows
from dystop.control.laws import cost_s, expected_exchange_s
from dystop.control.priority import (
    Extremes,
    emd,
    first_phase_priority,
    label_shares,
    second_phase_of_links,
)
from dystop.control.topology import connect, default_degree, ranked_candidates
from dystop.params import param
from dystop.plan import Plan, links
from dystop.sparse import Edges, Floats, ints
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View

_SMOOTHING = 0.5  # of the "last" estimate
_FIRST_PHASE = 0.25  # share of the planned run, in rounds or seconds


@dataclass(frozen=True)
class DySTop(Mechanism):
    """Dynamic staleness control and topology construction (alg:dystop).

    The paper defines WAA, PTCA, both priorities and the aggregation. It leaves open how H_t^i is
    estimated before the topology is known (`estimate`), where the cap of the evaluation applies
    (`neighbours`), when the second phase begins (`phase_threshold`) and how V is scaled to the size
    of the fleet (`drift`). docs/adr gives the reasons for the defaults.
    """

    name: ClassVar[str] = "dystop"
    provenance: ClassVar[str] = "paper"
    summary: ClassVar[str] = "WAA wakes workers by Lyapunov queues, PTCA picks whom they pull from"

    V: Annotated[float, Ge(0)] = param(10.0, "weight of round time against staleness")
    staleness_bound: Annotated[float, Ge(0)] = param(
        2.0, "tau_bound: largest mean staleness in the long run; 0: nearly synchronous rounds"
    )
    neighbours: Annotated[int, Ge(0)] | None = param(
        None, "s: largest number of in-neighbours of a worker; unset: ceil(log2 N)"
    )
    phase_threshold: Annotated[int, Ge(0)] | None = param(
        None, "t_thre: last round of phase 1; unset: a quarter of the horizon"
    )
    phases: Literal["combined", "first", "second"] = param(
        "combined",
        "priority that ranks candidates: combined: p1, then p2; first: only p1; second: only p2",
    )
    estimate: Literal["kth", "max", "last", "ranked"] = param(
        "kth",
        "link time that WAA expects: kth: s-th fastest candidate; max: slowest one; last: last "
        "observed; ranked: slowest of the s candidates that PTCA ranks first",
    )
    distance_max_m: Annotated[float, Gt(0)] | None = param(
        None, "Dist_max of phase 1's priority, in metres; unset: the longest link in reach"
    )
    drift: Drift = param(
        "sum",
        "drift that V weighs against: sum: over the workers (eq:lya); mean: divided by N, so that "
        "the effect of V does not shrink with the fleet",
    )

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="async", budgeted=True, queue_bound=self.staleness_bound)

    def init(self, fleet: Fleet) -> Memory:
        """Return the realised exchange times, all unknown; only the "last" estimate needs them."""
        if self.estimate != "last":
            return {}
        return {"exchange_s": np.full(fleet.workers, np.nan)}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Activate workers (WAA), connect them (PTCA), and weight models by data size."""
        memory = self._learn(memory, view)
        cap = self._cap(view.fleet)
        cost = cost_s(view.remaining_s, self._expected_exchange_s(memory, view, cap))
        alive = np.flatnonzero(view.alive)
        active = activate(alive, cost, view.queue, view.staleness, self.V, self.drift)
        bounds, ranked = ranked_candidates(active, view.reach, self._priority(view))
        pulls = links(*connect(active, bounds, ranked, view.budget, cap))
        rows = size_rows(active, pulls.by_receiver, view.fleet.data_size)
        notes = {"phase": float(self._phase(view))}
        return Plan(active, pulls, (rows,), notes=notes), memory

    def _cap(self, fleet: Fleet) -> int:
        if self.neighbours is not None:
            return self.neighbours
        return default_degree(fleet.workers)

    def _phase(self, view: View) -> int:
        if self.phases != "combined":
            return 1 if self.phases == "first" else 2
        if self.phase_threshold is not None:
            return 1 if view.t <= self.phase_threshold else 2
        return 1 if view.progress < _FIRST_PHASE else 2

    def _priority(self, view: View) -> Callable[[Edges], Floats]:
        """Return the priority of links in reach in the phase of this round."""
        dst, src = view.reach.dst, view.reach.src
        if self._phase(view) == 1:
            different = emd(label_shares(view.fleet.label_counts), dst, src)
            farthest = self.distance_max_m or view.distance_m.max(initial=0.0)
            top = Extremes(different.max(initial=0.0), farthest)
            return lambda e: first_phase_priority(different[e], view.distance_m[e], top)
        second = second_phase_of_links(view.pulls, view.t, view.staleness)
        return lambda e: second(dst[e], src[e])

    def _expected_exchange_s(self, memory: Memory, view: View, cap: int) -> Floats:
        if cap == 0:
            return np.zeros(view.fleet.workers)  # no worker pulls
        if self.estimate == "ranked":
            return self._ranked_exchange_s(view, cap)
        rank = view.fleet.nodes if self.estimate == "max" else cap
        expected = expected_exchange_s(view.reach, view.link_s, rank)
        if self.estimate == "last":
            seen: Floats = memory["exchange_s"]
            return np.where(np.isnan(seen), expected, seen)
        return expected

    def _ranked_exchange_s(self, view: View, cap: int) -> Floats:
        """Return the exchange time over the links that PTCA would choose without budgets, [N]."""
        everyone = np.arange(view.fleet.workers)
        bounds, ranked = ranked_candidates(everyone, view.reach, self._priority(view))
        count = np.diff(bounds)
        first = np.arange(bounds[-1]) - np.repeat(bounds[:-1], count) < cap
        dst, src = np.repeat(everyone, count)[first], ints(ranked)[first]
        slowest = np.zeros(view.fleet.workers)
        np.maximum.at(slowest, dst, view.link_s[view.reach.find(dst, src)])
        return slowest

    def _learn(self, memory: Memory, view: View) -> Memory:
        """Smooth the exchange times of the last round into the stored ones."""
        if self.estimate != "last" or view.last is None:
            return memory
        seen: Floats = memory["exchange_s"].copy()
        who, now = view.last.active, view.last.comm_s
        before = np.where(np.isnan(seen[who]), now, seen[who])
        seen[who] = (1 - _SMOOTHING) * before + _SMOOTHING * now
        return {"exchange_s": seen}
