import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dystop.errors import CapacityError, ConfigError
from dystop.sparse import graph_of
from dystop.world import World, WorldParams
from dystop.world.geometry import distance, neighbours_within, scatter, with_hub

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
    with pytest.raises(CapacityError, match=r"lower world\.range_m"):
        World(WorldParams(), 100_000, 1000, 0).observe(1, 0.0)


def test_injected_positions_are_checked():
    with pytest.raises(ConfigError, match=r"shape \(2, 2\)"):
        World(WorldParams(), 2, 1000, 0, position=np.zeros((3, 2)))
    with pytest.raises(ConfigError, match="finite"):
        World(WorldParams(), 2, 1000, 0, position=np.full((2, 2), np.nan))
