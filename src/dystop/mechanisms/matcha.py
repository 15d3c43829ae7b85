"""MATCHA: a base graph split into matchings, of which each round uses a random few."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from scipy.sparse import coo_array
from scipy.sparse.csgraph import minimum_spanning_tree

from dystop.control.aggregation import with_self
from dystop.mechanisms._graphs import both_ways, components, edge_colouring, two_way_pairs
from dystop.mechanisms.matcha_weights import best_mixing_weight, best_probabilities, partners
from dystop.params import param
from dystop.plan import Plan, links
from dystop.sparse import Bools, Floats, Ints, ints
from dystop.types import Capabilities, Mechanism, Memory, View


@dataclass(frozen=True)
class Matcha(Mechanism):
    """Everyone trains; each matching of the base graph fires with its own probability.

    The authors' code fixes the matchings, the probabilities that maximise the connectivity of the
    expected graph under the budget, and the mixing weight: W = I - a * (sum of the Laplacians that
    fired). Entries of W may be negative. We chose the base graph and that it is set up anew when
    the reach graph has changed. Pieces of a network that is not connected are optimised one by one,
    each with the same budget. A worker that is absent at set-up trains alone until the next one; a
    link that is out of reach in between is left out, its weight stays with both ends.
    """

    name: ClassVar[str] = "matcha"
    provenance: ClassVar[str] = "authors' code"
    summary: ClassVar[str] = "synchronous averaging over matchings that fire at random"

    budget: Annotated[float, Gt(0), Le(1)] = param(
        0.5, "CB: share of the matchings that fires in a round, on average at most"
    )
    base: Literal["fastest", "reach"] = param(
        "fastest", "base graph: each worker's fastest links, or all in reach (our choice)"
    )
    degree: Annotated[int, Ge(1)] | None = param(
        None, "links a worker asks for with base = 'fastest'; unset: ceil(log2 N) (our choice)"
    )
    refresh: Annotated[int, Ge(1)] = param(
        50, "rounds at least between two set-ups when the reach graph changes (our choice)"
    )

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(mode="sync", signed_rows=True, doubly_stochastic=True)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Let matchings fire, and exchange over those of their links that are in reach."""
        memory = self._remember(memory, view)
        fires = view.rng("matcha").random(len(memory["probability"])) < memory["probability"]
        here = fires[memory["matching"]] & _usable(view, memory["i"], memory["j"])
        dst, src = both_ways(memory["i"][here], memory["j"][here])
        weight = np.tile(memory["weight"][memory["matching"][here]], 2)
        active = np.flatnonzero(view.alive)
        rows = with_self(dst, src, weight, active)
        notes = {"matchings": float(len(fires)), "fired": float(fires.sum())}
        return Plan(active, links(dst, src), (rows,), synchronous=True, notes=notes), memory

    def _remember(self, memory: Memory, view: View) -> Memory:
        """The set-up in use: a new one where the reach graph has changed and the time has come."""
        i, j, link_s = two_way_pairs(view.reach, view.link_s)
        pairs = i * view.reach.n + j
        if memory:
            young = view.t - memory["since"] < self.refresh
            if young or np.array_equal(pairs, memory["pairs"]):
                return memory
        if self.base == "fastest":
            keep = fastest_links(view.reach.n, i, j, link_s, self._degree(view.fleet.workers))
            i, j = i[keep], j[keep]
        return {"since": view.t, "pairs": pairs, **self._set_up(view.reach.n, i, j)}

    def _degree(self, workers: int) -> int:
        if self.degree is not None:
            return self.degree
        return max(1, math.ceil(math.log2(workers)))

    def _set_up(self, n: int, i: Ints, j: Ints) -> dict[str, Ints | Floats]:
        """Matchings of the base graph, their probabilities and weights, piece by piece."""
        piece = components(n, i, j)[i]
        matching = np.zeros(len(i), np.int64)
        probability, weight = [np.zeros(0)], [np.zeros(0)]
        for number in np.unique(piece):
            edge = np.flatnonzero(piece == number)
            nodes, ends = np.unique(np.concatenate([i[edge], j[edge]]), return_inverse=True)
            a, b = ends[: len(edge)], ends[len(edge) :]
            colour = edge_colouring(len(nodes), a, b)
            partner = partners(len(nodes), a, b, colour)
            p = best_probabilities(partner, self.budget).probability
            matching[edge] = colour + sum(map(len, probability))
            probability.append(p)
            weight.append(np.full(len(p), best_mixing_weight(partner, p)[0]))
        return {
            "i": i,
            "j": j,
            "matching": matching,
            "probability": np.concatenate(probability),
            "weight": np.concatenate(weight),
        }


def _usable(view: View, i: Ints, j: Ints) -> Bools:
    """Which pairs hear each other in this round."""
    usable: Bools = (view.reach.find(i, j) >= 0) & (view.reach.find(j, i) >= 0)
    return usable


def fastest_links(n: int, i: Ints, j: Ints, link_s: Floats, degree: int) -> Bools:
    """Pairs among the `degree` fastest of either end, or needed to keep connected what was.

    >>> i, j = ints([0, 0, 1, 2]), ints([1, 2, 2, 3])
    >>> fastest_links(4, i, j, np.array([1.0, 2.0, 3.0, 4.0]), degree=1).tolist()
    [True, True, False, True]
    """
    rank = np.empty(len(i), np.int64)
    rank[np.lexsort((j, i, link_s))] = np.arange(len(i))
    node, edge = np.concatenate([i, j]), np.tile(np.arange(len(i)), 2)
    order = np.lexsort((rank[edge], node))
    first = np.searchsorted(node[order], np.arange(n + 1))
    place = np.arange(len(order)) - first[node[order]]
    keep = np.zeros(len(i), bool)
    keep[edge[order[place < degree]]] = True
    # Ranks instead of seconds: all distinct and none zero, which would mean no edge.
    tree = minimum_spanning_tree(coo_array((rank + 1.0, (i, j)), shape=(n, n)).tocsr())
    keep[np.isin(rank + 1, ints(tree.data))] = True
    return keep
