"""Positions, distances and the neighbours within range."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.errors import CapacityError, ConfigError
from dystop.sparse import graph_of
from dystop.world import World, WorldParams
from dystop.world.geometry import (
    Before,
    distance,
    expected_links,
    neighbours_within,
    scatter,
    with_hub,
)

metre = st.integers(0, 60).map(float)


@settings(derandomize=True, deadline=None)
@given(st.lists(st.tuples(metre, metre), min_size=1, max_size=25), st.integers(1, 50))
def test_neighbour_search_equals_brute_force(spots, range_m):
    position = np.array(spots)
    n = len(spots) + 1
    graph = neighbours_within(position, float(range_m), n)
    apart2 = ((position[:, None] - position[None]) ** 2).sum(-1)  # exact on whole metres
    dst, src = np.nonzero((apart2 <= range_m**2) & ~np.eye(len(spots), dtype=bool))
    assert graph.n == n
    np.testing.assert_array_equal(graph.dst, dst)
    np.testing.assert_array_equal(graph.src, src)
    np.testing.assert_array_equal(graph.indptr, np.searchsorted(dst, np.arange(n + 1)))
    np.testing.assert_allclose(distance(position, dst, src), np.sqrt(apart2[dst, src]))


def brute(position, range_m):
    """Edges by the definition, with the same rounding of a squared distance."""
    x, y = (position[:, None, k] - position[None, :, k] for k in (0, 1))
    return np.nonzero((x * x + y * y <= range_m * range_m) & ~np.eye(len(position), dtype=bool))


def assert_finds(graph, position, range_m):
    dst, src = brute(position, range_m)
    np.testing.assert_array_equal(graph.dst, dst)
    np.testing.assert_array_equal(graph.src, src)
    np.testing.assert_array_equal(graph.indptr, np.searchsorted(dst, np.arange(graph.n + 1)))


@settings(derandomize=True, deadline=None, max_examples=150)
@given(
    st.integers(0, 2**32),
    st.integers(1, 60),
    st.sampled_from([1e-3, 0.3, 7.0, 1e4]),
    st.sampled_from([0.0, 1e7, -1e12]),
)
def test_any_scatter_is_searched_right(seed, workers, range_m, shift):
    """Clusters, outliers and far origins: the grid folds, and cell numbers are rounded."""
    rng = np.random.default_rng(seed)
    position = rng.random((workers, 2)) * rng.choice([1.0, 30.0, 1e3], (workers, 1)) + shift
    position[rng.random(workers) < 0.1] *= 1e5
    position = position.round(rng.integers(0, 4))
    assert_finds(neighbours_within(position, range_m, workers), position, range_m)


@settings(derandomize=True, deadline=None, max_examples=150)
@given(st.integers(0, 2**32), st.sampled_from([0.0, 0.02, 0.3, 1.0]))
def test_following_some_that_moved_equals_a_search_from_scratch(seed, share):
    rng = np.random.default_rng(seed)
    position, range_m, before = rng.random((80, 2)) * [90.0, 60.0], 9.0, None
    for _ in range(3):
        graph = neighbours_within(position, range_m, 81, before)
        assert_finds(graph, position, range_m)
        before = Before(position, graph)
        moves = rng.random(80) < share
        position = position + np.where(moves, rng.normal(0, 12, 80), 0.0)[:, None]


@settings(derandomize=True, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1e-200, 1e-8, 1.0, 50.0, 1e9, 1e180]))
def test_distance_is_hypot(seed, scale):
    rng = np.random.default_rng(seed)
    position = rng.normal(0, scale, (20, 2))
    position[rng.random(20) < 0.2, 0] = position[0, 0]
    dst, src = rng.integers(0, 20, 700), rng.integers(0, 20, 700)
    apart = position[dst] - position[src]
    expected = np.hypot(apart[:, 0], apart[:, 1])
    np.testing.assert_array_max_ulp(distance(position, dst, src), expected, maxulp=1)
    assert np.array_equal(distance(position, src, dst), distance(position, dst, src))


def test_distance_has_no_surprises():
    spots = np.array([[0.0, 0.0], [3.0, 4.0], [3.0, 4.0], [np.inf, 0.0], [-5.0, 12.0]])
    dst, src = np.array([0, 1, 0, 0]), np.array([1, 2, 3, 4])
    assert distance(spots, dst, src).tolist() == [5.0, 0.0, np.inf, 13.0]
    with pytest.raises(IndexError, match=r"5 .*0\.\.4"):
        distance(spots, np.array([0]), np.array([5]))


def test_positions_are_uniform_addressed_by_worker_and_inside():
    position = scatter(4000, (100.0, 20.0), 3)
    assert (position > 0).all()
    assert (position < [100, 20]).all()
    np.testing.assert_allclose(position.mean(0), [50, 10], rtol=0.05)
    np.testing.assert_array_equal(position[:10], scatter(10, (100.0, 20.0), 3))
    assert (position != scatter(4000, (100.0, 20.0), 4)).all()


def test_hub_is_linked_both_ways_with_all():
    graph = with_hub(graph_of(4, np.array([0, 1]), np.array([1, 0])), 3)
    assert list(zip(graph.dst.tolist(), graph.src.tolist(), strict=True)) == [
        *[(0, 1), (0, 3), (1, 0), (1, 3), (2, 3)],
        *[(3, 0), (3, 1), (3, 2)],
    ]


def test_a_crowd_is_refused_before_it_eats_the_memory():
    with pytest.raises(CapacityError, match=r"100,000 .*world\.range_m.*world\.area_m"):
        World(WorldParams(), 100_000, 1000, 0).observe(1, 0.0)


def test_injected_positions_are_checked():
    with pytest.raises(ConfigError, match=r"shape \(2, 2\)"):
        World(WorldParams(), 2, 1000, 0, position=np.zeros((3, 2)))
    with pytest.raises(ConfigError, match=r"finite.*\(2, 2\)"):
        World(WorldParams(), 2, 1000, 0, position=np.full((2, 2), np.nan))


def test_expected_links_are_about_those_in_reach():
    params = WorldParams(area_m=(1000.0, 1000.0), range_m=40.0)
    world = World(params, 2000, 100, seed=3)
    real = world.observe(1, 0.0).reach.edges
    assert real < expected_links(params, 2000) < 1.15 * real
    assert expected_links(WorldParams(area_m=(10.0, 10.0)), 5) == 20  # everybody reaches everybody
    assert expected_links(WorldParams(area_m=(1e4, 1e4), reach="overlay"), 5) == 20
