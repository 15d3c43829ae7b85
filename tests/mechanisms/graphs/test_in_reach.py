"""Graphs among workers in reach: cycles, regular graphs, and the slow twins of their parts."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dystop.mechanisms.graphs.in_reach import (
    cycle_in_reach,
    fill,
    random_regular,
    regular_in_reach,
)
from dystop.rng import stream
from dystop.sparse import ints


def pairs_of(graph):
    """The edges as arrays (i, j), i < j, in the order of the reach graph."""
    edges = sorted((min(e), max(e)) for e in graph.edges)
    return ints(edges).reshape(-1, 2).T


def graph_with(n, i, j):
    graph = nx.empty_graph(n)
    graph.add_edges_from(zip(i.tolist(), j.tolist(), strict=True))
    return graph


def cycle(graph, seed=0):
    i, j = pairs_of(graph)
    chosen = cycle_in_reach(len(graph), i, j, stream(seed, "cycle"))
    return graph_with(len(graph), i[chosen], j[chosen])


def pieces(graph):
    return {frozenset(piece) for piece in nx.connected_components(graph)}


@st.composite
def geometric(draw):
    n, seed = draw(st.integers(1, 40)), draw(st.integers(0, 2**20))
    return nx.random_geometric_graph(n, draw(st.floats(0.05, 1.5)), seed=seed)


@given(graph=geometric(), seed=st.integers(0, 99))
def test_a_cycle_uses_given_pairs_and_connects_what_they_connect(graph, seed):
    ring = cycle(graph, seed)
    assert set(ring.edges) <= {(min(e), max(e)) for e in graph.edges}
    assert pieces(ring) == pieces(graph)
    assert set(cycle(graph, seed).edges) == set(ring.edges)


@pytest.mark.parametrize(
    "graph",
    [nx.cycle_graph(3), nx.cycle_graph(9), nx.complete_graph(12), nx.grid_2d_graph(4, 5)]
    + [nx.random_geometric_graph(100, 0.25, seed=s) for s in range(5)]
    + [nx.dodecahedral_graph(), nx.hypercube_graph(4)],
)
def test_a_cycle_through_all_nodes_is_found_where_one_exists(graph):
    graph = nx.convert_node_labels_to_integers(graph)
    ring = cycle(graph)
    assert {d for _, d in ring.degree} == {2}
    assert nx.is_connected(ring)


def test_without_a_cycle_paths_are_joined():
    """A star has no cycle, and two squares with one shared node have none through all nodes."""
    assert pieces(cycle(nx.star_graph(6))) == pieces(nx.star_graph(6))
    bow = nx.Graph([(0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (4, 5), (5, 6), (6, 0)])
    assert nx.is_connected(cycle(bow))
    both = nx.disjoint_union(nx.cycle_graph(5), nx.cycle_graph(4))
    assert {d for _, d in cycle(both).degree} == {2}
    assert len(cycle(nx.empty_graph(3)).edges) == 0
    assert len(cycle(nx.path_graph(2)).edges) == 1


def fill_one_by_one(i, j, room):
    """The slow twin of `fill`."""
    room, accepted = room.copy(), []
    for a, b in zip(i.tolist(), j.tolist(), strict=True):
        accepted.append(bool(room[a] > 0 and room[b] > 0))
        room[[a, b]] -= accepted[-1]
    return accepted


@given(graph=geometric(), most=st.integers(0, 6), seed=st.integers(0, 99))
def test_pairs_are_filled_in_as_if_one_by_one(graph, most, seed):
    rng = stream(seed, "fill")
    i, j = pairs_of(graph)
    order = rng.permutation(len(i))
    room = rng.integers(-1, most + 1, len(graph))
    i, j = i[order], j[order]
    assert fill(i, j, room).tolist() == fill_one_by_one(i, j, room)


@given(graph=geometric(), degree=st.integers(2, 8), seed=st.integers(0, 99))
def test_a_regular_graph_uses_given_pairs_and_has_no_room_left(graph, degree, seed):
    n, (i, j) = len(graph), pairs_of(graph)
    a, b = regular_in_reach(n, i, j, degree, stream(seed, "regular"))
    drawn = graph_with(n, a, b)
    assert {(min(e), max(e)) for e in drawn.edges} <= set(zip(i.tolist(), j.tolist(), strict=True))
    assert pieces(drawn) == pieces(graph)
    left = [e for e in graph.edges if e not in drawn.edges]
    assert all(max(drawn.degree[u], drawn.degree[v]) >= degree for u, v in left)


def test_a_regular_graph_at_paper_scale_is_nearly_regular():
    graph = nx.random_geometric_graph(100, 0.4, seed=1)
    for seed in range(10):
        a, b = regular_in_reach(100, *pairs_of(graph), 7, stream(seed, "regular"))
        degree = np.bincount(np.append(a, b), minlength=100)
        assert degree.max() == 7
        assert (degree == 7).mean() > 0.85


@pytest.mark.parametrize(("n", "s"), [(4, 2), (7, 2), (8, 3), (12, 3), (9, 4), (11, 3), (30, 26)])
def test_graphs_on_complete_reach_are_simple_regular_and_connected(n, s):
    degree = s + n * s % 2
    for k in range(30):
        a, b = random_regular(n, s, stream(k, "graph"))
        graph = nx.Graph(list(zip(a.tolist(), b.tolist(), strict=True)))
        assert (a != b).all()
        assert len(graph.edges) == len(a) == n * degree // 2
        assert {d for _, d in graph.degree} == {degree}
        assert nx.is_connected(graph)
        whole = regular_in_reach(n, *pairs_of(nx.complete_graph(n)), s, stream(k, "graph"))
        assert np.array_equal(whole, (a, b))
