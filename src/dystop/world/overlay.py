"""Relaying: with `reach = "overlay"`, workers out of range exchange models over other workers.

A pair in range uses its direct link. Any other pair of a connected component uses the path with the
smallest sum of expected link times. The server relays nothing. Routes are dense, [N, N].
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dystop.errors import ConfigError
from dystop.sparse import Bools, Floats, Graph, Ints, graph_of

MAX_WORKERS = 3_000


@dataclass(frozen=True, slots=True)
class Routes:
    """The route of a model between any two workers."""

    direct: Graph  # links in range
    next_hop: NDArray[np.int32]  # [N, N]: to whom j forwards a model for i; negative: no route

    def known(self, dst: Ints, src: Ints) -> Bools:
        """Return whether each pair has a route, [L]."""
        out = self.direct.find(dst, src) >= 0
        inner = np.flatnonzero((dst < len(self.next_hop)) & (src < len(self.next_hop)))
        out[inner] |= self.next_hop[dst[inner], src[inner]] >= 0
        return out

    def hops(self, dst: Ints, src: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Yield the links on the routes, one hop of every pair at a time: (pair number, dst, src).

        A pair without a route, and a pair in range, makes a single hop.
        """
        relayed = self.known(dst, src) & (self.direct.find(dst, src) < 0)
        single = np.flatnonzero(~relayed)
        yield single, dst[single], src[single]
        pair, at = np.flatnonzero(relayed), src[relayed]
        while len(pair):
            to = self.next_hop[dst[pair], at].astype(np.int64)
            yield pair, to, at
            going = to != dst[pair]
            pair, at = pair[going], to[going]


def relay(direct: Graph, link_s: Floats, workers: int) -> tuple[Routes, Graph, Floats]:
    """Return the routes over links in range, the graph of connected pairs, and its link times."""
    from scipy.sparse import csr_array  # slow to import; reading a configuration needs no scipy
    from scipy.sparse.csgraph import dijkstra

    inner = (direct.dst < workers) & (direct.src < workers)
    ends = (direct.dst[inner], direct.src[inner])
    # Row i of the matrix lists whom i receives from: a path from i runs against the transfer.
    matrix = csr_array((link_s[inner], ends), shape=(workers, workers))
    total_s, next_hop = dijkstra(matrix, return_predecessors=True)
    far_dst, far_src = np.nonzero(next_hop >= 0)
    reach = graph_of(
        direct.n, np.concatenate([direct.dst, far_dst]), np.concatenate([direct.src, far_src])
    )
    at = direct.find(reach.dst, reach.src)
    out_s = np.empty(reach.edges)
    out_s[at >= 0] = link_s[at[at >= 0]]
    out_s[at < 0] = total_s[reach.dst[at < 0], reach.src[at < 0]]
    return Routes(direct, next_hop), reach, out_s


def refuse_large_overlay(workers: int) -> None:
    """Raise ConfigError where the routes of an overlay would need too much memory."""
    if workers > MAX_WORKERS:
        raise ConfigError(
            f"world.reach = 'overlay' with {workers:,} workers: an overlay keeps a route for every "
            f"pair and is limited to {MAX_WORKERS:,} workers; use world.reach = 'strict'"
        )
