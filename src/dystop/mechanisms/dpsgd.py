"""D-PSGD: the synchronous reference on a fixed graph."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge
from scipy.linalg import eigh

from dystop.control.aggregation import metropolis, size_weights, with_self
from dystop.errors import ConfigError
from dystop.mechanisms.graphs.in_reach import (
    DrawnFrom,
    cycle_in_reach,
    in_reach,
    regular_in_reach,
)
from dystop.mechanisms.graphs.undirected import (
    both_ways,
    is_connected,
    regular_pairs,
    two_way_pairs,
)
from dystop.params import param
from dystop.plan import Mix, Plan, links
from dystop.rng import stream
from dystop.sparse import Graph, Ints, graph_of
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View

_EXACT_SPECTRUM_LIMIT = 2000


@dataclass(frozen=True)
class DPSGD(Mechanism):
    """In every round all workers train and average with their neighbours on a fixed graph.

    The graph is drawn among workers in reach of each other (`pairs`): the ring is a cycle through
    all of them, the regular graph such a cycle and further random pairs. Where no cycle is found,
    paths take its place, and further links connect them. A round omits links that are out of reach.
    If the reach graph has changed after `refresh` rounds, the graph is drawn again.
    """

    name: ClassVar[str] = "d-psgd"
    provenance: ClassVar[str] = "reference"
    summary: ClassVar[str] = "synchronous averaging on a fixed ring, regular or complete graph"

    topology: Literal["ring", "random-regular", "complete"] = param("ring", "the fixed graph")
    degree: Annotated[int, Ge(1)] = param(4, "degree of the random regular graph")
    pairs: DrawnFrom = param(
        "reach",
        "pairs that the graph is drawn from: reach: those in reach of each other; all: all pairs, "
        "by their ids, of which a round omits those out of reach",
    )
    refresh: Annotated[int, Ge(1)] = param(
        50, "smallest number of rounds between two graphs if pairs = 'reach' and reach changes"
    )
    weights: Literal["metropolis", "optimal", "size"] = param(
        "metropolis",
        "metropolis: 1/(1 + larger degree); optimal: I - aL with the best a; size: by data size "
        "(not doubly stochastic)",
    )

    def capabilities(self) -> Capabilities:
        """Return the capabilities.

        Symmetric weights keep the mean model; weights by data size do not. The diagonal of I - aL
        may be negative.
        """
        return Capabilities(
            mode="sync",
            signed_rows=self.weights == "optimal",
            doubly_stochastic=self.weights != "size",
        )

    def init(self, fleet: Fleet) -> Memory:
        """Draw the fixed graph, unless it depends on who is in reach."""
        if self.pairs == "reach":
            return {}
        graph = graph_of(fleet.workers, *both_ways(*self._by_id(fleet)))
        return {"dst": graph.dst, "src": graph.src}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Use the edges of the fixed graph that are in reach."""
        memory = self._remember(memory, view)
        graph = in_reach(view, memory["dst"], memory["src"])
        active = np.flatnonzero(view.alive)
        rows = self._rows(graph, active, view.fleet)
        return Plan(active, links(graph.dst, graph.src), (rows,), synchronous=True), memory

    def base_graph(self, memory: Memory, view: View) -> Graph | None:
        """Return the edges of the fixed graph that are in reach."""
        memory = self._remember(memory, view)
        return in_reach(view, memory["dst"], memory["src"])

    def _remember(self, memory: Memory, view: View) -> Memory:
        """Return the graph; draw it anew if the reach graph changed and `refresh` rounds passed."""
        if self.pairs == "all" or (memory and view.t - memory["since"] < self.refresh):
            return memory
        i, j, _ = two_way_pairs(view.reach, view.link_s)
        pairs = i * view.reach.n + j
        if memory and np.array_equal(pairs, memory["pairs"]):
            return memory
        i, j = self._among(view, i, j)
        graph = graph_of(view.fleet.workers, *both_ways(i, j))
        return {"since": view.t, "pairs": pairs, "dst": graph.dst, "src": graph.src}

    def _among(self, view: View, i: Ints, j: Ints) -> tuple[Ints, Ints]:
        """Draw the graph from pairs in reach."""
        n, rng = view.fleet.workers, view.rng("d-psgd")
        if self.topology == "ring":
            chosen = cycle_in_reach(n, i, j, rng)
            return i[chosen], j[chosen]
        if self.topology == "random-regular":
            return regular_in_reach(n, i, j, self.degree, rng)
        return i, j

    def _by_id(self, fleet: Fleet) -> tuple[Ints, Ints]:
        """Draw the graph from all pairs."""
        n = fleet.workers
        if self.topology == "ring":
            return np.arange(n), np.roll(np.arange(n), -1)
        if self.topology == "complete":
            return np.triu_indices(n, 1)
        pair = self._regular(n, fleet.seed)
        return pair[:, 0], pair[:, 1]

    def _regular(self, n: int, seed: int) -> Ints:
        """Return a connected random regular graph; degree times workers must be even."""
        if self.degree >= n or self.degree * n % 2:
            raise ConfigError(
                f"mechanism.degree = {self.degree}: no regular graph of that degree on {n} workers;"
                f" allowed is a degree below {n} whose product with {n} is even"
            )
        for attempt in range(100):
            draw = int(stream(seed, "d-psgd", attempt).integers(2**31))
            pair = regular_pairs(n, self.degree, draw)
            if is_connected(n, pair[:, 0], pair[:, 1], np.arange(n)):
                return pair
        raise ConfigError(
            f"mechanism.degree = {self.degree}: no connected regular graph of {n} workers found;"
            " use a degree of at least 3"
        )

    def _rows(self, graph: Graph, active: Ints, fleet: Fleet) -> Mix:
        if self.weights == "size":
            return size_weights(active, graph.dst, graph.src, fleet.data_size)
        if self.weights == "metropolis":
            return metropolis(graph, active)
        step = best_laplacian_step(graph)
        return with_self(graph.dst, graph.src, np.full(graph.edges, step), active)


def best_laplacian_step(graph: Graph) -> float:
    """Return the a for which I - aL contracts fastest, 2 / (lambda_2 + lambda_n)."""
    if graph.n > _EXACT_SPECTRUM_LIMIT:
        raise ConfigError(
            f"mechanism.weights = 'optimal' needs a spectrum of {graph.n} workers; it is computed"
            f" exactly up to {_EXACT_SPECTRUM_LIMIT}; use 'metropolis'"
        )
    laplacian = np.diag(graph.degree.astype(float))
    laplacian[graph.dst, graph.src] = -1.0
    spectrum = eigh(laplacian, eigvals_only=True)
    positive = spectrum[spectrum > 1e-9]
    if not len(positive):
        return 0.0
    return float(2.0 / (positive[0] + positive[-1]))
