"""Positions of the workers, their distances, and who is in range of whom. Never a dense N x N."""

import math
from typing import NamedTuple

import numpy as np

from dystop.acceleration import accelerated
from dystop.errors import CapacityError, ConfigError
from dystop.rng import uniform
from dystop.sparse import Floats, Graph, Ints, check_ids, graph_of, ints
from dystop.world.params import WorldParams

MAX_LINKS = 50_000_000
"""More directed links than this would need several gigabytes."""

_SAMPLE = 256  # workers whose neighbours are counted to estimate the number of links
_MARGIN = 1.0 + 1e-9  # on the range of a tree search, which rounds distances


def scatter(workers: int, area_m: tuple[float, float], seed: int) -> Floats:
    """Return initial positions, uniform in the rectangle (subsec:setup), [N, 2]."""
    who = np.arange(workers)
    x, y = uniform(seed, "position/x", who), uniform(seed, "position/y", who)
    return np.stack([x * area_m[0], y * area_m[1]], axis=1)


def checked_position(position: Floats, workers: int) -> Floats:
    """Return a read-only copy; raise ConfigError unless it has shape [N, 2] and is finite."""
    copy = np.array(position, np.float64)
    if copy.shape != (workers, 2) or not np.isfinite(copy).all():
        raise ConfigError(
            f"position has shape {copy.shape}: expected finite metres of shape ({workers}, 2)"
        )
    copy.flags.writeable = False
    return copy


@accelerated("dystop.kernels.geometry:distance")
def distance(position: Floats, dst: Ints, src: Ints) -> Floats:
    """Return the metres between the two ends of each link, [L]."""
    check_ids(len(position), dst, src)
    gap = position[dst] - position[src]
    return np.hypot(gap[:, 0], gap[:, 1])


def with_hub(graph: Graph, hub: int) -> Graph:
    """Return a graph with links added between `hub`, its last and so far isolated node, and all."""
    others, ends = np.arange(hub), graph.indptr[1 : hub + 1]
    src = np.concatenate([np.insert(graph.src, ends, hub), others])
    degree = np.append(graph.degree[:hub] + 1, hub)
    return Graph(
        np.concatenate([[0], np.cumsum(degree)]), np.repeat(np.arange(hub + 1), degree), src
    )


class Before(NamedTuple):
    """The result of an earlier search: where the workers were, and who was in range of whom."""

    position: Floats
    graph: Graph


@accelerated("dystop.kernels.neighbours:neighbours_within")
def neighbours_within(
    position: Floats, range_m: float, n: int, before: Before | None = None
) -> Graph:
    """Return both directions of every pair at most `range_m` apart, as a graph of n nodes.

    The kernel copies from `before` what cannot have changed. The result does not depend on it.

    Args:
        position: metres, [N, 2], N <= n.
        range_m: largest distance of two neighbours.
        n: nodes of the graph; those beyond the workers have no links.
        before: the result of an earlier search with the same range and workers.
    """
    from scipy.spatial import cKDTree  # slow to import; reading a configuration needs no scipy

    tree = cKDTree(position)
    if is_crowd_possible(len(position)):
        near = tree.query_ball_point(position[sample(len(position))], range_m, return_length=True)
        refuse_crowd(len(position), float(np.mean(near - 1)))
    i, j = ints(tree.query_pairs(range_m * _MARGIN, output_type="ndarray")).T
    x, y = (position[i] - position[j]).T
    near = x * x + y * y <= range_m * range_m
    i, j = i[near], j[near]
    return graph_of(n, np.concatenate([i, j]), np.concatenate([j, i]))


def is_crowd_possible(workers: int) -> bool:
    """Return whether so many workers could have more than `MAX_LINKS` links."""
    return workers * (workers - 1) > MAX_LINKS


def sample(workers: int) -> Ints:
    """Return the workers whose neighbours are counted to estimate the number of links."""
    return np.arange(0, workers, max(1, workers // _SAMPLE))


def expected_links(params: WorldParams, workers: int) -> int:
    """Return about how many directed links are in reach; the rim of the area is not subtracted."""
    width, height = params.area_m
    share = min(1.0, math.pi * params.range_m**2 / (width * height))
    return int(workers * (workers - 1) * (share if params.reach == "strict" else 1.0))


def refuse_crowd(workers: int, degree: float) -> None:
    """Raise CapacityError where workers with so many neighbours on average have too many links."""
    if degree * workers > MAX_LINKS:
        raise CapacityError(
            f"{workers:,} workers with about {degree:,.0f} neighbours each make "
            f"{degree * workers:,.0f} links, more than {MAX_LINKS:,}: "
            "lower world.range_m or enlarge world.area_m"
        )
