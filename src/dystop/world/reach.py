"""Links in range and what is known of each, kept for those who did not move."""

from dataclasses import dataclass

import numpy as np

from dystop.kernels.buffers import buffer
from dystop.kernels.link_cache import carry_rows
from dystop.parallel import as_readonly, run_in_blocks
from dystop.sparse import Bools, Floats, Graph, Ints
from dystop.world.channel import expected_rate_bps, mean_snr, transfer_s
from dystop.world.geometry import stations, ways_of, with_hub
from dystop.world.neighbour_search import Before, neighbours_within
from dystop.world.overlay import Routes
from dystop.world.params import WorldParams

_LINKS = 1 << 14  # measured in one go: they fit a processor's cache
_ROWS = 1 << 15


@dataclass(frozen=True)
class Reach:
    """Usable links and what is known of each."""

    graph: Graph
    distance_m: Floats
    link_s: Floats
    routes: Routes | None = None  # where models are relayed

    def __post_init__(self) -> None:
        """Arrays are handed out more than once."""
        graph = self.graph
        for values in (graph.indptr, graph.dst, graph.src, self.distance_m, self.link_s):
            values.flags.writeable = False

    def keep(self, edge: Bools) -> "Reach":
        """The reach without the links that are masked out."""
        if edge.all():
            return self
        return Reach(self.graph.keep(edge), self.distance_m[edge], self.link_s[edge])


class Neighbourhood:
    """Links in range and of the server, whoever is there.

    The last answer is remembered. What did not move since is not searched and not measured again,
    which changes the work but never the answer.
    """

    def __init__(
        self, params: WorldParams, power_w: Floats, workers: int, model_bytes: int
    ) -> None:
        """Take what decides the links; `power_w` has one entry more where there is a server."""
        self._params, self._power_w = params, power_w
        self._workers, self._model_bytes = workers, model_bytes
        self._last: tuple[Floats, Graph, Reach] | None = None  # positions, links of workers, all

    def at(self, position: Floats) -> Reach:
        """Links at these positions of all nodes, [nodes, 2]."""
        if self._last is None:
            before = None
        else:
            before = Before(self._last[0][: self._workers], self._last[1])
        near = neighbours_within(
            position[: self._workers], self._params.range_m, len(position), before
        )
        graph = with_hub(near, self._workers) if len(position) > self._workers else near
        reach = self._measured(graph, position)
        self._last = (position, near, reach)
        return reach

    def _measured(self, graph: Graph, position: Floats) -> Reach:
        """Distance and expected time of each link, at nominal power."""
        distance_m, link_s = (buffer(graph.edges, np.float64) for _ in range(2))
        fresh = self._carried(graph, position, (distance_m, link_s))
        station = stations(position, self._power_w)

        def measure(lo: int, hi: int) -> None:
            part = slice(lo, hi) if fresh is None else fresh[lo:hi]
            metres, power_w = ways_of(station, graph.dst[part], graph.src[part])
            distance_m[part], link_s[part] = metres, self._expected_s(metres, power_w)

        run_in_blocks(measure, graph.edges if fresh is None else len(fresh), _LINKS)
        return Reach(graph, distance_m, link_s)

    def _carried(self, graph: Graph, position: Floats, out: tuple[Floats, Floats]) -> Ints | None:
        """Fill in links between workers that stayed; returns the others, None for all of them."""
        if self._last is None:
            return None
        moved = (position != self._last[0]).any(axis=1)
        if 2 * int(moved.sum()) > len(moved):
            return None  # hardly a link would stay
        old = self._last[2]
        known = as_readonly(old.graph.indptr), as_readonly(old.graph.src)
        values = as_readonly(old.distance_m), as_readonly(old.link_s)
        rows, still = (as_readonly(graph.indptr), as_readonly(graph.src)), as_readonly(~moved)
        fresh = np.ones(graph.edges, bool)
        run_in_blocks(
            lambda lo, hi: carry_rows(known, values, rows, still, (lo, hi), (*out, fresh)),
            graph.n,
            _ROWS,
        )
        return np.flatnonzero(fresh)

    def _expected_s(self, distance_m: Floats, power_w: Floats) -> Floats:
        """Expected seconds to move one full model over so many metres at that power."""
        snr = mean_snr(power_w, distance_m, self._params.channel)
        return transfer_s(self._model_bytes, expected_rate_bps(snr, self._params.channel))
