"""GossipFL: sparse models exchanged in pairs that are chosen for bandwidth."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import networkx as nx
import numpy as np
from annotated_types import Ge, Gt, Le

from dystop.control.aggregation import with_self
from dystop.mechanisms.graphs.undirected import both_ways, components, two_way_pairs
from dystop.params import param
from dystop.plan import Mix, Plan, links, mix_of
from dystop.sparse import Bools, Floats, Ints, ints
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View


@dataclass(frozen=True)
class GossipFL(Mechanism):
    """In every round each worker trains and exchanges a share of its model with one peer.

    The pairing, the window and the share follow the authors' code. While the pairs of the last
    rounds connect all workers, fast pairs are matched; otherwise unused pairs, which restores the
    connection. The remaining workers are matched over all pairs in reach; with an odd number, one
    worker keeps its model. Both ends derive the exchanged coordinates from a shared seed, so that
    no indices are sent.

    Our choices: "connected" means as connected as the reach graph of the round allows. Shuffled
    pairs, not weighted ones, make the maximum matching random. A worker trains one local epoch, not
    one mini-batch, unless `steps` is set.
    """

    name: ClassVar[str] = "gossipfl"
    provenance: ClassVar[str] = "authors' code"
    summary: ClassVar[str] = "pairs exchange a random share of their models, fast links first"

    keep: Annotated[float, Gt(0), Le(1)] = param(0.1, "share of the model that is exchanged")
    window: Annotated[int, Ge(1)] = param(
        3,
        "T_thres: the pairs of the last window - 1 rounds must connect all workers; below 5 they "
        "rarely do, and bandwidth has little effect",
    )
    bandwidth_quantile: Annotated[float, Ge(0), Le(1)] = param(
        0.6, "B_thres: share of the pairs in reach that count as too slow (our choice)"
    )
    steps: Annotated[int, Ge(1)] | None = param(
        None, "mini-batches between two exchanges; unset: one local epoch (our choice)"
    )

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="sync", doubly_stochastic=True)

    def init(self, fleet: Fleet) -> Memory:
        """Return the recently used pairs and their rounds; none at first."""
        return {"i": ints([]), "j": ints([]), "round": ints([])}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Match the workers and exchange the masked share in both directions."""
        recent = self._recent(memory, view)
        a, b, slower_s = two_way_pairs(view.reach, view.link_s)
        united = _connects(recent, a, b, view)
        wanted = self._fast(slower_s) if united else ~_used(recent, a, b, view)
        i, j = _matching(a, b, wanted, view)
        active = np.flatnonzero(view.alive)
        dst, src = both_ways(i, j)
        plan = Plan(
            active,
            links(dst, src, fraction=self.keep),
            (self._rows(dst, src, active, view),),
            steps=None if self.steps is None else np.full(len(active), self.steps),
            synchronous=True,
            notes={"united": float(united)},
        )
        return plan, _remember(recent, i, j, view.t)

    def _recent(self, memory: Memory, view: View) -> dict[str, Ints]:
        """Return the pairs inside the window; the authors' test is round > t - window."""
        inside = memory["round"] > view.t - self.window
        return {key: memory[key][inside] for key in ("i", "j", "round")}

    def _fast(self, slower_s: Floats) -> Bools:
        """Return the pairs whose bandwidth, in the slower direction, exceeds the threshold."""
        if not len(slower_s):
            return np.zeros(0, bool)
        bandwidth = 1.0 / slower_s
        fast: Bools = bandwidth > np.quantile(bandwidth, self.bandwidth_quantile)
        return fast

    def _rows(self, dst: Ints, src: Ints, active: Ints, view: View) -> Mix:
        seed = int(view.rng("mask").integers(2**62))
        rows = with_self(dst, src, np.full(len(dst), 0.5), active)
        return mix_of(rows.dst, rows.source, rows.weight, kind="masked", mask=(seed, self.keep))


def _connects(recent: Memory, a: Ints, b: Ints, view: View) -> bool:
    """Return whether recent pairs of present workers connect all pairs in reach."""
    i, j = recent["i"], recent["j"]
    both = view.alive[i] & view.alive[j]
    component = components(view.fleet.workers, i[both], j[both])
    return bool((component[a] == component[b]).all())


def _used(recent: Memory, a: Ints, b: Ints, view: View) -> Bools:
    n = view.fleet.workers
    return np.isin(a * n + b, recent["i"] * n + recent["j"])


def _matching(a: Ints, b: Ints, wanted: Bools, view: View) -> tuple[Ints, Ints]:
    """Return a maximum matching of the wanted pairs, completed by other pairs among the rest."""
    first = _maximum_matching(a[wanted], b[wanted], view.rng("wanted"))
    free = ~np.isin(a, first) & ~np.isin(b, first)
    second = _maximum_matching(a[free], b[free], view.rng("others"))
    both = np.concatenate([first, second])
    return both[:, 0], both[:, 1]


def _maximum_matching(a: Ints, b: Ints, rng: np.random.Generator) -> Ints:
    """Return a random maximum matching, [M, 2], the lower id first.

    The blossom algorithm visits nodes and edges in the order of the input, which is shuffled.
    """
    pair = np.stack([a, b], axis=1)
    graph = nx.Graph(rng.permutation(pair).tolist())
    matched = ints(sorted(nx.max_weight_matching(graph, maxcardinality=True))).reshape(-1, 2)
    return np.sort(matched, axis=1)


def _remember(recent: dict[str, Ints], i: Ints, j: Ints, t: int) -> Memory:
    return {
        "i": np.concatenate([recent["i"], i]),
        "j": np.concatenate([recent["j"], j]),
        "round": np.concatenate([recent["round"], np.full(len(i), t)]),
    }
