"""Links in range with their distance and expected transfer time."""

from dataclasses import dataclass

import numpy as np

from dystop.acceleration import accelerated
from dystop.parallel import run_in_blocks
from dystop.sparse import Bools, Floats, Graph, Ints
from dystop.world.channel import expected_rate_bps, mean_snr, transfer_s
from dystop.world.geometry import Before, distance, neighbours_within, with_hub
from dystop.world.overlay import Routes
from dystop.world.params import WorldParams

_LINKS = 1 << 14  # measured in one block: they fit a processor's cache


@dataclass(frozen=True)
class Reach:
    """Usable links with their distance and expected transfer time."""

    graph: Graph
    distance_m: Floats
    link_s: Floats
    routes: Routes | None = None  # set where models are relayed

    def __post_init__(self) -> None:
        """Make the arrays read-only, because several rounds share them."""
        graph = self.graph
        for values in (graph.indptr, graph.dst, graph.src, self.distance_m, self.link_s):
            values.flags.writeable = False

    def keep(self, edge: Bools) -> "Reach":
        """Return the reach of the links that a mask selects."""
        if edge.all():
            return self
        return Reach(self.graph.keep(edge), self.distance_m[edge], self.link_s[edge])


@accelerated("dystop.kernels.geometry:kept_edges")
def kept_edges(old: Graph, new: Graph, still: Bools) -> Ints:
    """Return the old number of each new edge whose two ends did not move, -1 for the others.

    Args:
        old: a graph that has every edge of `new` between nodes that did not move.
        new: the graph whose edges are looked up.
        still: whether each node did not move, [nodes].
    """
    out, both = np.full(new.edges, -1), still[new.dst] & still[new.src]
    out[both] = old.find(new.dst[both], new.src[both])
    return out


class ReachFinder:
    """Finds the links in range, and those of the server, for positions that change.

    It remembers the last answer. Links between workers that did not move since are neither searched
    nor measured again. This saves work and never changes an answer.
    """

    def __init__(
        self, params: WorldParams, power_w: Floats, workers: int, model_bytes: int
    ) -> None:
        """Take what decides the links; `power_w` has N + 1 entries where there is a server."""
        self._params, self._power_w = params, power_w
        self._workers, self._model_bytes = workers, model_bytes
        self._last: tuple[Floats, Graph, Reach] | None = None  # positions, links of workers, all

    def at(self, position: Floats) -> Reach:
        """Return the links at these positions of all nodes, [nodes, 2]."""
        before = self._last and Before(self._last[0][: self._workers], self._last[1])
        near = neighbours_within(
            position[: self._workers], self._params.range_m, len(position), before
        )
        graph = with_hub(near, self._workers) if len(position) > self._workers else near
        reach = self._measured(graph, position)
        self._last = (position, near, reach)
        return reach

    def _measured(self, graph: Graph, position: Floats) -> Reach:
        """Return the links with distance and expected transfer time at nominal power."""
        distance_m, link_s = np.empty(graph.edges), np.empty(graph.edges)
        new = self._copy_known(graph, position, distance_m, link_s)

        def measure(lo: int, hi: int) -> None:
            part = slice(lo, hi) if new is None else new[lo:hi]
            metres = distance(position, graph.dst[part], graph.src[part])
            power_w = self._power_w[graph.src[part]]
            distance_m[part], link_s[part] = metres, self._expected_s(metres, power_w)

        run_in_blocks(measure, graph.edges if new is None else len(new), _LINKS)
        return Reach(graph, distance_m, link_s)

    def _copy_known(
        self, graph: Graph, position: Floats, distance_m: Floats, link_s: Floats
    ) -> Ints | None:
        """Fill in the links between workers that stayed; return the others, None for all links."""
        if self._last is None:
            return None
        still = (position == self._last[0]).all(axis=1)
        if 2 * int(still.sum()) < len(still):
            return None  # hardly a link is known
        reach = self._last[2]
        at = kept_edges(reach.graph, graph, still)
        known = at >= 0
        distance_m[known], link_s[known] = reach.distance_m[at[known]], reach.link_s[at[known]]
        return np.flatnonzero(~known)

    def _expected_s(self, distance_m: Floats, power_w: Floats) -> Floats:
        """Return the expected seconds to move one full model."""
        snr = mean_snr(power_w, distance_m, self._params.channel)
        return transfer_s(self._model_bytes, expected_rate_bps(snr, self._params.channel))
