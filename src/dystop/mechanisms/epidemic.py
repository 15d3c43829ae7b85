"""Epidemic Learning: a new random graph in every round."""

import itertools
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import networkx as nx
import numpy as np
from annotated_types import Ge

from dystop.control.aggregation import metropolis, size_weights
from dystop.control.topology import default_degree
from dystop.mechanisms._graphs import both_ways, regular_pairs
from dystop.params import param
from dystop.plan import Plan, links
from dystop.sparse import Graph, Ints, graph_of, ints
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View


@dataclass(frozen=True)
class EpidemicLearning(Mechanism):
    """In every round all workers train, then send their model to a few random others.

    Both variants follow the authors' code. `oracle`: one connected random s-regular graph, drawn
    from a shared seed; uniform averages over closed neighbourhoods keep the mean model. `local`:
    each worker pushes to s random receivers, and a receiver averages what arrives.

    Our choices: if workers times s is odd, no s-regular graph exists, and the oracle uses s + 1.
    With s = 1 the graph consists of pairs and is not connected. A round omits oracle edges out of
    reach; with all edges in reach, the Metropolis weights are uniform averages. A local worker
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

    def _oracle(self, active: Ints, view: View) -> Graph:
        """Return a regular graph among the present workers, without edges out of reach."""
        a, b = random_regular(len(active), self._fan_out(view.fleet), view.rng("graph"))
        dst, src = both_ways(active[a], active[b])
        usable = (view.reach.find(dst, src) >= 0) & (view.reach.find(src, dst) >= 0)
        return graph_of(view.fleet.workers, dst[usable], src[usable])

    def _local(self, active: Ints, view: View) -> Plan:
        """Let each sender push to the s receivers with the smallest random numbers."""
        reach = view.reach
        order = np.lexsort((view.rng("receivers").random(reach.edges), reach.src))
        first = np.searchsorted(reach.src[order], reach.src[order])
        chosen = order[np.arange(reach.edges) - first < self._fan_out(view.fleet)]
        dst, src = reach.dst[chosen], reach.src[chosen]
        rows = size_weights(active, dst, src, np.ones(view.fleet.workers, np.int64))
        return Plan(active, links(dst, src, pushed=True), (rows,), synchronous=True)


def random_regular(n: int, degree: int, rng: np.random.Generator) -> tuple[Ints, Ints]:
    """Return the pairs of a connected random regular graph on 0..n-1; the degree may grow by one.

    >>> a, b = random_regular(6, 2, np.random.default_rng(0))
    >>> np.bincount(np.append(a, b)).tolist()
    [2, 2, 2, 2, 2, 2]
    """
    degree = min(degree, n - 1)
    degree += n * degree % 2  # then n is odd, n - 1 is even, and the degree stays below n
    if degree == 2:  # a connected one is a cycle; rejection sampling would take long
        cycle = ints(rng.permutation(n))
        return cycle, np.roll(cycle, -1)
    for _ in itertools.count():
        pair = regular_pairs(n, degree, int(rng.integers(2**31)))
        if degree < 2 or nx.is_connected(nx.Graph(pair.tolist())):
            break
    return pair[:, 0], pair[:, 1]
