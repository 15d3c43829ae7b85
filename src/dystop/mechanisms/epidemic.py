"""Epidemic Learning: a new random graph in every round."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge

from dystop.control.aggregation import metropolis, size_weights
from dystop.control.topology import default_degree
from dystop.mechanisms.graphs.in_reach import (
    DrawnFrom,
    in_reach,
    random_regular,
    regular_in_reach,
)
from dystop.mechanisms.graphs.undirected import both_ways, two_way_pairs
from dystop.params import param
from dystop.plan import Plan, links
from dystop.sparse import Graph, Ints
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View


@dataclass(frozen=True)
class EpidemicLearning(Mechanism):
    """In every round all workers train, then send their model to a few random others.

    Both variants follow the authors' code. `oracle`: one connected random s-regular graph, drawn
    from a shared seed; uniform averages over closed neighbourhoods keep the mean model. `local`:
    each worker pushes to s random receivers, and a receiver averages what arrives.

    Our choices: the authors let everybody reach everybody. Where that is not so, the oracle draws
    its graph among the pairs in reach (`pairs`): a random cycle and further random pairs, until
    nearly all workers have s. Weights are Metropolis weights, which are uniform averages where all
    have s. If all are in reach and workers times s is odd, no s-regular graph exists, and the
    oracle uses s + 1. With s = 1 the graph consists of pairs and is not connected. A local worker
    draws its receivers among those in reach.
    """

    name: ClassVar[str] = "epidemic"
    provenance: ClassVar[str] = "authors' code"
    summary: ClassVar[str] = "synchronous averaging on a new random graph every round"

    variant: Literal["oracle", "local"] = param(
        "oracle",
        "oracle: one random regular graph for all; local: each worker draws its own receivers",
    )
    neighbours: Annotated[int, Ge(1)] | None = param(
        None, "s: models that a worker sends per round; unset: ceil(log2 N)"
    )
    pairs: DrawnFrom = param(
        "reach",
        "pairs that the oracle draws from: reach: those in reach of each other; all: all pairs, of "
        "which a round omits those out of reach",
    )

    def capabilities(self) -> Capabilities:
        """Return the capabilities; a shared graph keeps the mean model, random pushes do not."""
        return Capabilities(mode="sync", doubly_stochastic=self.variant == "oracle")

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Draw the graph of this round."""
        active = np.flatnonzero(view.alive)
        if self.variant == "local":
            return self._local(active, view), memory
        graph = self._oracle(active, view)
        rows = metropolis(graph, active)
        return Plan(active, links(graph.dst, graph.src), (rows,), synchronous=True), memory

    def _fan_out(self, fleet: Fleet) -> int:
        if self.neighbours is not None:
            return self.neighbours
        return default_degree(fleet.workers)

    def base_graph(self, memory: Memory, view: View) -> Graph | None:
        """Return the oracle's graph of this round; None if it consists of pairs in any case."""
        if self.variant == "local" or self._fan_out(view.fleet) == 1:
            return None
        return self._oracle(np.flatnonzero(view.alive), view)

    def _oracle(self, active: Ints, view: View) -> Graph:
        """Return a random graph among the present workers, regular as far as reach allows."""
        n, degree, rng = len(active), self._fan_out(view.fleet), view.rng("graph")
        if self.pairs == "all":
            a, b = random_regular(n, degree, rng)
        else:
            i, j, _ = two_way_pairs(view.reach, view.link_s)
            a, b = regular_in_reach(
                n, np.searchsorted(active, i), np.searchsorted(active, j), degree, rng
            )
        return in_reach(view, *both_ways(active[a], active[b]))

    def _local(self, active: Ints, view: View) -> Plan:
        """Let each sender push to the s receivers with the smallest random numbers."""
        reach = view.reach
        order = np.lexsort((view.rng("receivers").random(reach.edges), reach.src))
        first = np.searchsorted(reach.src[order], reach.src[order])
        chosen = order[np.arange(reach.edges) - first < self._fan_out(view.fleet)]
        dst, src = reach.dst[chosen], reach.src[chosen]
        rows = size_weights(active, dst, src, np.ones(view.fleet.workers, np.int64))
        return Plan(active, links(dst, src, pushed=True), (rows,), synchronous=True)
