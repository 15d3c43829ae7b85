"""Where the workers are and how far apart. Never a dense N x N."""

import numpy as np

from dystop.errors import ConfigError
from dystop.kernels.distances import distances, ways
from dystop.parallel import as_readonly
from dystop.rng import uniform
from dystop.sparse import Floats, Graph, Ints


def scatter(workers: int, area_m: tuple[float, float], seed: int) -> Floats:
    """Initial positions, uniform in the rectangle (subsec:setup), [N, 2]."""
    who = np.arange(workers)
    x, y = uniform(seed, "position/x", who), uniform(seed, "position/y", who)
    return np.stack([x * area_m[0], y * area_m[1]], axis=1)


def checked_position(position: Floats, workers: int) -> Floats:
    """A read-only copy of given positions; raises ConfigError unless they are [N, 2] and finite."""
    spots = np.array(position, np.float64)
    if spots.shape != (workers, 2) or not np.isfinite(spots).all():
        raise ConfigError(
            f"position has shape {spots.shape}: expected finite metres of shape ({workers}, 2)"
        )
    spots.flags.writeable = False
    return spots


def with_hub(graph: Graph, hub: int) -> Graph:
    """A graph without links at `hub`, its last node, plus links between it and all others."""
    spoke, ends = np.arange(hub), graph.indptr[1 : hub + 1]
    src = np.concatenate([np.insert(graph.src, ends, hub), spoke])
    degree = np.append(graph.degree[:hub] + 1, hub)
    return Graph(
        np.concatenate([[0], np.cumsum(degree)]), np.repeat(np.arange(hub + 1), degree), src
    )


def stations(position: Floats, power_w: Floats) -> Floats:
    """Positions and powers side by side, for `ways_of`, [nodes, 4]."""
    return np.column_stack([position, power_w, np.zeros(len(power_w))])


def ways_of(station: Floats, dst: Ints, src: Ints) -> tuple[Floats, Floats]:
    """Metres between the ends of each link, and the power of its sender."""
    metres, power_w = np.empty(len(dst)), np.empty(len(dst))
    if not ways(as_readonly(station), as_readonly(dst), as_readonly(src), metres, power_w):
        raise IndexError(f"a link names a node beyond the {len(station)} that have a position")
    return metres, power_w


def distance(position: Floats, dst: Ints, src: Ints) -> Floats:
    """Metres between the two ends of each link, [L]."""
    out = np.empty(len(dst))
    if not distances(as_readonly(position), as_readonly(dst), as_readonly(src), out):
        raise IndexError(f"a link names a node beyond the {len(position)} that have a position")
    return out
