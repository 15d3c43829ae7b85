"""FedHP: synchronous rounds; hardware and model distance set local steps and topology."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra

from dystop.control.aggregation import metropolis, size_weights
from dystop.control.priority import emd, label_shares
from dystop.control.topology import default_degree
from dystop.mechanisms.graphs.pairs import (
    Store,
    fastest_pairs,
    measured,
    no_values,
    note,
    pair_key,
    recall,
    spanning_forest,
)
from dystop.mechanisms.graphs.undirected import both_ways, two_way_pairs
from dystop.params import param
from dystop.plan import Plan, links
from dystop.sparse import Bools, Floats, Graph, Ints, graph_of, ints
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View

_SMOOTHING = 0.5  # of measured distances
_SHRINK, _ALARM = 0.9, 1.2  # tau_max shrinks when distances exceed this multiple of their median
_SOURCES = 256  # rows of shortest paths held at once
_TINY = 1e-150  # in place of a distance of zero
_ROUNDING = 1e-9  # a whole quotient may come out slightly below


@dataclass(frozen=True)
class FedHP(Mechanism):
    """All workers train equally long; slow links between similar models are dropped.

    The abstract states the idea: local update frequency and topology are adapted jointly, to
    compute power and consensus distance. The full text was not available. Our choices: how `kappa`
    thins the graph, the distances of pairs without a measurement, the frequency rule (from a
    related paper), and when `tau_max` shrinks. A pair without a measurement gets the length of the
    shortest path over measured pairs, the largest known distance if there is no path, and the label
    distance before any measurement. Bandwidth budgets are ignored.

    Memory holds the pairs that ever exchanged models. The shortest paths take O(N E log N) time per
    round, in blocks of rows; fleets beyond a few thousand workers are slow but fit in memory.
    """

    name: ClassVar[str] = "fedhp"
    provenance: ClassVar[str] = "reconstruction"
    summary: ClassVar[str] = "local steps by hardware, links by consensus distance and speed"

    tau_max: Annotated[int, Ge(1)] = param(
        20, "largest number of mini-batches of a training (our choice)"
    )
    tau_min: Annotated[int, Ge(1)] = param(
        5, "smallest value to which tau_max can fall (our choice)"
    )
    kappa: Annotated[float, Ge(0), Le(1)] = param(
        0.6, "share of the total model distance that the kept links cover; 1: all (our choice)"
    )
    degree: Annotated[int, Ge(1)] | None = param(
        None, "links per worker in the base graph, fastest first; unset: ceil(log2 N) (our choice)"
    )
    weights: Literal["metropolis", "uniform"] = param(
        "metropolis",
        "metropolis: 1/(1 + larger degree); uniform: 1/(1 + own degree), not doubly stochastic",
    )

    def capabilities(self) -> Capabilities:
        """Return the capabilities; only Metropolis weights keep the mean model."""
        return Capabilities(
            mode="sync",
            needs=frozenset({"distance"}),
            doubly_stochastic=self.weights == "metropolis",
        )

    def init(self, fleet: Fleet) -> Memory:
        """Return no known distances and the largest tau_max."""
        return {"gap": no_values(), "tau_max": float(self.tau_max), "means": np.zeros(0)}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Thin the base graph, then fit the local steps of each worker to its slowest link."""
        memory = self._learn(memory, view)
        n = view.fleet.workers
        i, j, cost = two_way_pairs(view.reach, view.link_s)
        base = fastest_pairs(n, i, j, cost, self._degree(view.fleet))
        i, j, cost = i[base], j[base], cost[base]
        kept = thin(n, i, j, cost, self._distance(memory["gap"], view, i, j), self.kappa)
        graph = graph_of(n, *both_ways(i[kept], j[kept]))
        active = np.flatnonzero(view.alive)
        slowest_s = _slowest_link_s(view, graph)[active]
        steps = local_steps(view.step_s[active], slowest_s, int(memory["tau_max"]))
        rows = (
            metropolis(graph, active)
            if self.weights == "metropolis"
            else size_weights(active, graph.dst, graph.src, np.ones(n, np.int64))
        )
        pulls = links(graph.dst, graph.src)
        notes = {"tau_max": float(memory["tau_max"]), "steps_mean": float(steps.mean())}
        return Plan(active, pulls, (rows,), steps, synchronous=True, notes=notes), memory

    def _degree(self, fleet: Fleet) -> int:
        return self.degree or default_degree(fleet.workers)

    def _learn(self, memory: Memory, view: View) -> Memory:
        """Smooth the last round's distances into the known ones; shrink tau_max if they grow."""
        keys, now = measured(view.fleet.workers, view.last)
        if not len(keys):
            return memory
        before = recall(memory["gap"], keys)
        smooth = (1 - _SMOOTHING) * np.where(np.isnan(before), now, before) + _SMOOTHING * now
        mean, tau = float(now.mean()), memory["tau_max"]
        if len(memory["means"]) and mean > _ALARM * np.median(memory["means"]):
            tau = max(_SHRINK * tau, float(min(self.tau_min, self.tau_max)))
        means = np.append(memory["means"], mean)
        return {"gap": note(memory["gap"], keys, smooth), "tau_max": tau, "means": means}

    def _distance(self, gap: Store, view: View, i: Ints, j: Ints) -> Floats:
        """Return the model distance of each pair: measured, by shortest path, or from labels."""
        n = view.fleet.workers
        if len(gap["keys"]):
            known = recall(gap, pair_key(n, i, j))
            missing = np.isnan(known)
            known[missing] = detour(n, gap, i[missing], j[missing])
            top = max(gap["values"].max(), known[np.isfinite(known)].max(initial=0.0))
            known = np.minimum(known, top)
        else:
            known = emd(label_shares(view.fleet.label_counts), i, j)
        return known if known.any() else np.ones(len(known))  # all zero: every link counts equally


def thin(n: int, i: Ints, j: Ints, cost: Floats, distance: Floats, kappa: float) -> Bools:
    """Return the links that remain after dropping slow links between similar models.

    Links are visited in decreasing cost / distance. A link is dropped if its ends stay connected
    and the remaining links hold at least `kappa` of the total distance. A link is needed for
    connectivity exactly if it lies in the spanning forest that prefers settled links, then those
    visited last. The forest is computed again only after a link was kept for its distance.
    """
    order = np.argsort(-cost / np.maximum(distance, _TINY), kind="stable")
    kept, settled = np.ones(len(i), bool), np.zeros(len(i), bool)
    slack, fresh = (1.0 - kappa) * float(distance.sum()), True
    needed = spanning_forest(n, i, j, order[::-1])
    for k in order.tolist():
        if slack <= 0 or distance[k] > slack:
            settled[k], fresh = True, False
            continue
        if needed[k] and not fresh:
            needed, fresh = _needed(n, i, j, order, (kept, settled)), True
        if not needed[k]:
            kept[k] = False
            slack -= distance[k]
    return kept


def _needed(n: int, i: Ints, j: Ints, order: Ints, now: tuple[Bools, Bools]) -> Bools:
    """Return the forest of the kept links that prefers settled links, then those visited last."""
    kept, settled = now
    last = order[::-1]
    last = last[kept[last]]
    last = np.concatenate([last[settled[last]], last[~settled[last]]])
    inside = np.zeros(len(i), bool)
    inside[last] = spanning_forest(n, i[last], j[last], np.arange(len(last)))
    return inside


def detour(n: int, gap: Store, i: Ints, j: Ints) -> Floats:
    """Return the shortest path length of each pair over known distances; inf if there is none."""
    keys = gap["keys"]
    values = np.maximum(gap["values"], _TINY)
    graph: Any = coo_array((values, (keys // n, keys % n)), shape=(n, n)).tocsr()
    sources, row = np.unique(i, return_inverse=True)
    out = np.empty(len(i))
    for lo in range(0, len(sources), _SOURCES):
        way = dijkstra(graph, directed=False, indices=sources[lo : lo + _SOURCES])
        here = np.flatnonzero((row >= lo) & (row < lo + _SOURCES))
        out[here] = way[row[here] - lo, j[here]]
    return out


def local_steps(step_s: Floats, exchange_s: Floats, tau_max: int) -> Ints:
    """Return local steps for which all workers finish together; the fastest does `tau_max`.

    >>> local_steps(np.array([.1, .2, .4]), np.array([1., 2, 1]), 20).tolist()
    [20, 5, 5]
    """
    fastest = int(np.argmin(step_s))
    reference_s = tau_max * step_s[fastest] + exchange_s[fastest]
    fitting = np.floor((reference_s - exchange_s) / step_s + _ROUNDING)
    return ints(np.clip(fitting, 1, tau_max))


def _slowest_link_s(view: View, graph: Graph) -> Floats:
    """Return the expected time of the slowest incoming link of each worker, [N]."""
    slowest = np.zeros(graph.n)
    np.maximum.at(slowest, graph.dst, view.link_s[view.reach.find(graph.dst, graph.src)])
    return slowest
