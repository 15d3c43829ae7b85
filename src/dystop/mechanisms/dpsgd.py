"""D-PSGD: the synchronous reference on a fixed graph."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge
from scipy.linalg import eigh

from dystop.control.aggregation import metropolis, size_weights, with_self
from dystop.errors import ConfigError
from dystop.mechanisms._graphs import both_ways, is_connected, regular_pairs
from dystop.params import param
from dystop.plan import Mix, Plan, links
from dystop.rng import stream
from dystop.sparse import Graph, Ints, graph_of
from dystop.types import Capabilities, Fleet, Mechanism, Memory, View

_EXACT_SPECTRUM_LIMIT = 2000


@dataclass(frozen=True)
class DPSGD(Mechanism):
    """In every round all workers train and average with their neighbours on a fixed graph.

    A round omits links that are out of reach; `world.reach = "overlay"` routes them over other
    workers instead.
    """

    name: ClassVar[str] = "d-psgd"
    provenance: ClassVar[str] = "reference"
    summary: ClassVar[str] = "synchronous averaging on a fixed ring, regular or complete graph"

    topology: Literal["ring", "random-regular", "complete"] = param("ring", "the fixed graph")
    degree: Annotated[int, Ge(1)] = param(4, "degree of the random regular graph")
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
        """Draw the fixed graph."""
        dst, src = self._edges(fleet)
        return {"dst": dst, "src": src}

    def plan(self, memory: Memory, view: View) -> tuple[Plan, Memory]:
        """Use the edges of the fixed graph that are in reach."""
        dst, src = memory["dst"], memory["src"]
        # Both directions are needed: one alone would change the mean model.
        usable = (view.reach.find(dst, src) >= 0) & (view.reach.find(src, dst) >= 0)
        graph = graph_of(view.fleet.workers, dst[usable], src[usable])
        active = np.flatnonzero(view.alive)
        rows = self._rows(graph, active, view.fleet)
        return Plan(active, links(graph.dst, graph.src), (rows,), synchronous=True), memory

    def _edges(self, fleet: Fleet) -> tuple[Ints, Ints]:
        n = fleet.workers
        if self.topology == "ring":
            pair = np.stack([np.arange(n), np.roll(np.arange(n), -1)], axis=1)
        elif self.topology == "complete":
            pair = np.stack(np.triu_indices(n, 1), axis=1)
        else:
            pair = self._regular(n, fleet.seed)
        graph = graph_of(n, *both_ways(pair[:, 0], pair[:, 1]))
        return graph.dst, graph.src

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
