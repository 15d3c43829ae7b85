"""Where the workers are and who is in whose range. Never a dense N x N."""

import numpy as np
from scipy.spatial import cKDTree

from dystop.errors import CapacityError, ConfigError
from dystop.rng import uniform
from dystop.sparse import Floats, Graph, Ints, graph_of_sorted

MAX_LINKS = 50_000_000
"""More directed links than this would need several gigabytes."""


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


def neighbours_within(position: Floats, range_m: float, n: int) -> Graph:
    """Both directions of every pair that is at most `range_m` apart, as a graph of n nodes.

    Args:
        position: metres, [m, 2] with m <= n; nodes from m on stay without links.
        range_m: the largest distance of a pair.
        n: number of nodes in the graph.
    """
    tree = cKDTree(position)
    _refuse_crowd(tree, position, range_m)
    pair: Ints = tree.query_pairs(range_m, output_type="ndarray").astype(np.int64)
    low, high = pair[:, 0], pair[:, 1]
    return _graph_of_distinct(n, np.concatenate([low, high]), np.concatenate([high, low]))


def _refuse_crowd(tree: cKDTree, position: Floats, range_m: float) -> None:
    """Estimate the links from a sample before they are enumerated, and refuse too many."""
    workers = len(position)
    if workers * (workers - 1) <= MAX_LINKS:
        return
    sample = position[:: max(1, workers // 256)]
    degree = float(np.mean(tree.query_ball_point(sample, range_m, return_length=True))) - 1
    if degree * workers > MAX_LINKS:
        raise CapacityError(
            f"{workers:,} workers with about {degree:,.0f} neighbours each make "
            f"{degree * workers:,.0f} links, more than {MAX_LINKS:,}: "
            "lower world.range_m or enlarge world.area_m"
        )


def with_hub(graph: Graph, hub: int) -> Graph:
    """A graph without links at `hub`, plus links between it and all nodes before it."""
    spoke, centre = np.arange(hub), np.full(hub, hub)
    dst = np.concatenate([graph.dst, spoke, centre])
    src = np.concatenate([graph.src, centre, spoke])
    return _graph_of_distinct(graph.n, dst, src)


def _graph_of_distinct(n: int, dst: Ints, src: Ints) -> Graph:
    """Graph of pairs that are known to differ: one sort, where a search for doubles costs more."""
    keys = dst * n + src
    keys.sort()
    return graph_of_sorted(n, keys // n, keys % n)


def distance(position: Floats, dst: Ints, src: Ints) -> Floats:
    """Metres between the two ends of each link, [L]."""
    apart = position[dst] - position[src]
    out: Floats = np.hypot(apart[:, 0], apart[:, 1])
    return out
