"""Relaying: with `reach = "overlay"` workers out of range talk over the workers between them.

A pair in range uses its own link. Any other pair of one connected component uses the path whose
expected times have the smallest sum; the server relays nothing. This is dense by nature.
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
    """Which way a model travels between any two workers."""

    direct: Graph  # links in range
    onward: NDArray[np.int32]  # [N, N]: to whom j hands a model that is on its way to i; or < 0

    def known(self, dst: Ints, src: Ints) -> Bools:
        """Whether there is a way for each pair, [L]."""
        out = self.direct.find(dst, src) >= 0
        inner = np.flatnonzero((dst < len(self.onward)) & (src < len(self.onward)))
        out[inner] |= self.onward[dst[inner], src[inner]] >= 0
        return out

    def hops(self, dst: Ints, src: Ints) -> Iterator[tuple[Ints, Ints, Ints]]:
        """Links on the way of every pair, one hop further at a time: (pair number, dst, src).

        A pair without a way, and one in range, makes a single hop.
        """
        relayed = self.known(dst, src) & (self.direct.find(dst, src) < 0)
        single = np.flatnonzero(~relayed)
        yield single, dst[single], src[single]
        pair, at = np.flatnonzero(relayed), src[relayed]
        while len(pair):
            to = self.onward[dst[pair], at].astype(np.int64)
            yield pair, to, at
            going = to != dst[pair]
            pair, at = pair[going], to[going]


def relay(direct: Graph, link_s: Floats, workers: int) -> tuple[Routes, Graph, Floats]:
    """Routes over the links in range, the graph of all pairs that can talk, and its link times."""
    from scipy.sparse import csr_array  # slow to import; a configuration is read without
    from scipy.sparse.csgraph import dijkstra

    inner = (direct.dst < workers) & (direct.src < workers)
    ends = (direct.dst[inner], direct.src[inner])
    # Row i of the matrix lists whom i receives from, so a path from i runs against the data.
    matrix = csr_array((link_s[inner], ends), shape=(workers, workers))
    total_s, onward = dijkstra(matrix, return_predecessors=True)
    far_dst, far_src = np.nonzero(onward >= 0)
    reach = graph_of(
        direct.n, np.concatenate([direct.dst, far_dst]), np.concatenate([direct.src, far_src])
    )
    at = direct.find(reach.dst, reach.src)
    out_s = np.empty(reach.edges)
    out_s[at >= 0] = link_s[at[at >= 0]]
    out_s[at < 0] = total_s[reach.dst[at < 0], reach.src[at < 0]]
    return Routes(direct, onward), reach, out_s


def refuse_large_overlay(workers: int) -> None:
    """Raise ConfigError where an overlay would need too much memory."""
    if workers > MAX_WORKERS:
        raise ConfigError(
            f"world.reach = 'overlay' with {workers:,} workers: an overlay keeps a route for every "
            f"pair and is limited to {MAX_WORKERS:,} workers; use world.reach = 'strict'"
        )
