"""MATCHA: a base graph is split into matchings; each round activates some of them at random."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le

from dystop.control.aggregation import with_self
from dystop.control.topology import default_degree
from dystop.mechanisms.graphs.in_reach import geometric_in_reach
from dystop.mechanisms.graphs.matching_weights import (
    best_mixing_weight,
    best_probabilities,
    nonnegative_mixing_weight,
    partners,
)
from dystop.mechanisms.graphs.pairs import fastest_pairs
from dystop.mechanisms.graphs.undirected import (
    both_ways,
    components,
    edge_colouring,
    two_way_pairs,
)
from dystop.params import param
from dystop.plan import Plan, links
from dystop.sparse import Bools, Floats, Ints
from dystop.types import Capabilities, Mechanism, Memory, View


@dataclass(frozen=True)
class Matcha(Mechanism):
    """All workers train; each matching of the base graph is activated with its own probability.

    The matchings and the probabilities follow the authors' code. The probabilities maximise the
    connectivity of the expected graph under the budget. The mixing matrix is
    W = I - a * (sum of the activated Laplacians). The authors' a contracts fastest in expectation
    (`weights = "optimal"`), and a worker with many active links may then keep a negative share of
    its own model: with long local training models explode. By default, a is at most one over the
    largest degree, and no share is negative.

    Our choices: the base graph, and a new set-up when the reach graph has changed. The authors use
    sparse connected graphs of 8 and 16 nodes: geometric, Erdos-Renyi and a ring. The components
    of a disconnected network are optimised separately with the same budget. A worker that is absent
    at set-up trains alone until the next set-up. A round omits links out of reach; their weight
    stays with both ends.
    """

    name: ClassVar[str] = "matcha"
    provenance: ClassVar[str] = "authors' code"
    summary: ClassVar[str] = "synchronous averaging over matchings that fire at random"

    budget: Annotated[float, Gt(0), Le(1)] = param(
        0.5, "CB: largest mean share of the matchings that are active in a round"
    )
    base: Literal["geometric", "fastest", "reach"] = param(
        "geometric",
        "base graph: geometric: all links up to the shortest radius that connects the workers; "
        "fastest: the fastest links of each worker; reach: all links (our choice)",
    )
    degree: Annotated[int, Ge(1)] | None = param(
        None,
        "geometric: mean links of a worker (unset: as the radius gives); fastest: links that a "
        "worker asks for (unset: ceil(log2 N)) (our choice)",
    )
    weights: Literal["nonnegative", "optimal"] = param(
        "nonnegative",
        "a of W = I - aL: optimal: the authors', which contracts fastest, with shares that may be "
        "negative; nonnegative: the same, at most one over the largest degree (our choice)",
    )
    refresh: Annotated[int, Ge(1)] = param(
        50, "smallest number of rounds between two set-ups if the reach graph changes (our choice)"
    )

    def capabilities(self) -> Capabilities:
        """Return what the mechanism needs and guarantees."""
        return Capabilities(
            mode="sync", signed_rows=self.weights == "optimal", doubly_stochastic=True
        )

    def our_parts(self) -> tuple[str, ...]:
        """Return what the authors' code does not give: the base graph, and safe weights."""
        return ("base graph", "weights") if self.weights == "nonnegative" else ("base graph",)

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Activate matchings at random and exchange over their links in reach."""
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
        """Return the set-up; renew it if the reach graph changed and `refresh` rounds passed."""
        if memory and view.t - memory["since"] < self.refresh:
            return memory
        i, j, link_s = two_way_pairs(view.reach, view.link_s)
        pairs = i * view.reach.n + j
        if memory and np.array_equal(pairs, memory["pairs"]):
            return memory
        keep = self._base(view, i, j, link_s)
        return {"since": view.t, "pairs": pairs, **self._set_up(view.reach.n, i[keep], j[keep])}

    def _base(self, view: View, i: Ints, j: Ints, link_s: Floats) -> Bools:
        """Return which pairs in reach form the base graph."""
        n = view.reach.n
        if self.base == "reach":
            return np.ones(len(i), bool)
        if self.base == "fastest":
            degree = default_degree(view.fleet.workers) if self.degree is None else self.degree
            return fastest_pairs(n, i, j, link_s, degree)
        _, _, metres = two_way_pairs(view.reach, view.distance_m)
        return geometric_in_reach(n, i, j, metres, self.degree)

    @property
    def _mixing_weight(self) -> Callable[[Ints, Floats], tuple[float, float]]:
        return best_mixing_weight if self.weights == "optimal" else nonnegative_mixing_weight

    def _set_up(self, n: int, i: Ints, j: Ints) -> dict[str, Ints | Floats]:
        """Return the matchings of the base graph, with probabilities and weights per component."""
        component = components(n, i, j)[i]
        matching = np.zeros(len(i), np.int64)
        probability, weight = [np.zeros(0)], [np.zeros(0)]
        for number in np.unique(component):
            edge = np.flatnonzero(component == number)
            nodes, ends = np.unique(np.concatenate([i[edge], j[edge]]), return_inverse=True)
            a, b = ends[: len(edge)], ends[len(edge) :]
            colour = edge_colouring(len(nodes), a, b)
            partner = partners(len(nodes), a, b, colour)
            p = best_probabilities(partner, self.budget).probability
            matching[edge] = colour + sum(map(len, probability))
            probability.append(p)
            weight.append(np.full(len(p), self._mixing_weight(partner, p)[0]))
        return {
            "i": i,
            "j": j,
            "matching": matching,
            "probability": np.concatenate(probability),
            "weight": np.concatenate(weight),
        }


def _usable(view: View, i: Ints, j: Ints) -> Bools:
    """Return which pairs are in reach in both directions."""
    usable: Bools = (view.reach.find(i, j) >= 0) & (view.reach.find(j, i) >= 0)
    return usable
