"""Edge colouring and the two optimisations of MATCHA, against solvers and bounds."""

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize_scalar

from dystop.errors import ConfigError
from dystop.mechanisms.graphs.matching_weights import (
    best_mixing_weight,
    best_probabilities,
    connectivity,
    laplacian,
    nonnegative_mixing_weight,
    partners,
)
from dystop.mechanisms.graphs.undirected import edge_colouring, is_connected
from dystop.sparse import ints
from support.strategies import undirected

GRAPH_0 = ["15 67 04 23", "17 36", "10 37 56", "12 70", "31"]
RING_8 = ["01 23 45 67", "12 34 56 70"]
GEOMETRIC = nx.random_geometric_graph(100, 0.4, seed=1)


def spelled(matchings):
    """Partner array of matchings written as pairs of digits."""
    pairs = [(int(e[0]), int(e[1]), k) for k, text in enumerate(matchings) for e in text.split()]
    return partners(8, *ints(pairs).T)


def coloured(graph):
    """Partner array of the coloured edges of the largest piece of a graph."""
    piece = graph.subgraph(max(nx.connected_components(graph), key=len))
    edges = ints(list(nx.convert_node_labels_to_integers(piece).edges))
    return partners(len(piece), *edges.T, edge_colouring(len(piece), *edges.T))


def each_laplacian(partner):
    return np.stack([laplacian(partner, row) for row in np.eye(len(partner))])


@given(undirected(max_n=9))
@settings(derandomize=True, deadline=None, max_examples=150)
def test_matchings_are_disjoint_and_cover_the_graph(case):
    n, edges = case
    pair = ints(sorted(edges)).reshape(-1, 2)
    check_colouring(n, pair, edge_colouring(n, pair[:, 0], pair[:, 1]))


def check_colouring(n, pair, colour):
    assert len(colour) == len(pair)
    assert sorted(set(colour.tolist())) == list(range(int(colour.max(initial=-1)) + 1))
    for k in range(int(colour.max(initial=-1)) + 1):
        ends = pair[colour == k].ravel()
        assert len(set(ends.tolist())) == len(ends)
    degree = np.bincount(pair.ravel(), minlength=n).max(initial=0)
    assert colour.max(initial=-1) + 1 <= degree + 1


@pytest.mark.parametrize(
    ("graph", "matchings"),
    [
        (nx.star_graph(20), 20),
        (nx.cycle_graph(9), 3),
        (nx.complete_graph(9), 9),
        (nx.petersen_graph(), 4),  # needs one more than its degree
        (nx.complete_bipartite_graph(5, 8), 8),
    ],
)
def test_known_numbers_of_matchings(graph, matchings):
    pair = ints(list(graph.edges))
    colour = edge_colouring(len(graph), *pair.T)
    check_colouring(len(graph), pair, colour)
    assert colour.max() + 1 == matchings


def test_a_dense_graph_is_coloured():
    pair = ints(list(GEOMETRIC.edges))
    check_colouring(100, pair, edge_colouring(100, *pair.T))


@pytest.mark.parametrize(
    ("matchings", "share", "lam", "a", "rho"),
    [
        (GRAPH_0, 1.0, 0.6700, 0.2857, 0.6538),
        (GRAPH_0, 0.5, 0.5612, 0.3964, 0.6440),
        (GRAPH_0, 0.2, 0.2245, 0.5916, 0.8577),
        (GRAPH_0, 0.6, 0.6571, 0.3656, 0.5773),
        (GRAPH_0, 0.8, 0.6661, 0.3248, 0.6149),
        (RING_8, 1.0, 0.5858, 0.4361, 0.5543),
        (RING_8, 0.5, 0.2929, 0.6074, 0.7839),
    ],
)
def test_published_decompositions(matchings, share, lam, a, rho):
    partner = spelled(matchings)
    found = best_probabilities(partner, share)
    assert found.connectivity == pytest.approx(lam, abs=6e-5)
    assert best_mixing_weight(partner, found.probability) == pytest.approx((a, rho), abs=6e-5)
    assert found.probability.sum() <= share * len(partner) + 1e-9


def test_published_probabilities():
    found = best_probabilities(spelled(GRAPH_0), 0.5).probability
    np.testing.assert_allclose(found, [0.9837, 0, 0.7581, 0.7581, 0], atol=6e-5)


SHAPES = {
    "star": nx.star_graph(30),
    "ring": nx.cycle_graph(40),
    "odd ring": nx.cycle_graph(41),
    "complete": nx.complete_graph(20),
    "complete odd": nx.complete_graph(21),
    "path": nx.path_graph(100),
    "barbell": nx.barbell_graph(20, 5),
    "lollipop": nx.lollipop_graph(30, 30),
    "hypercube": nx.hypercube_graph(6),
    "petersen": nx.petersen_graph(),
    "tree": nx.balanced_tree(3, 3),
    "grid": nx.grid_2d_graph(8, 8),
    "bipartite": nx.complete_bipartite_graph(5, 30),
    "geometric sparse": nx.random_geometric_graph(100, 0.17, seed=4),
    "geometric dense": GEOMETRIC,
}


def proven_bound(partner, budget, p):
    """No feasible probabilities connect better: the best of the bounds that Z(t) proves.

    Z(t) = sum of v v^T / (lambda - t) over the spectrum of L(p), scaled to trace one; for any such
    Z, lambda_2 of any feasible q is at most max over q of sum q_k <L_k, Z>, a linear programme.
    """
    parts = each_laplacian(partner)
    value, vector = np.linalg.eigh(np.tensordot(p, parts, 1))

    def bound(log_distance):
        weight = 1 / (value[1:] - value[1] * (1 - 10.0**log_distance))
        Z = (vector[:, 1:] * (weight / weight.sum())) @ vector[:, 1:].T
        gain = np.einsum("kuv,uv->k", parts, Z)
        room = np.clip(budget - np.arange(len(gain)), 0, 1)
        return np.sort(gain)[::-1] @ room

    tried = min(np.arange(-9, 0, 0.25), key=bound)
    return minimize_scalar(bound, bounds=(tried - 0.25, tried + 0.25), method="bounded").fun


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("name", SHAPES)
def test_connectivity_is_proven_to_be_the_best(name, share):
    partner = coloured(SHAPES[name])
    m = len(partner)
    found = best_probabilities(partner, share)
    p = found.probability
    assert (p >= 0).all()
    assert (p <= 1).all()
    assert p.sum() <= share * m + 1e-9
    assert found.connectivity == pytest.approx(connectivity(partner, p))
    assert 0 < found.connectivity <= found.bound * (1 + 1e-9)
    assert found.gap < 1e-5
    if m <= 30:
        assert proven_bound(partner, share * m, p) <= found.connectivity * (1 + 1e-4)


@pytest.mark.parametrize(
    ("graph", "share", "best"),
    [
        (nx.star_graph(30), 0.5, 0.5),  # every edge is a matching of its own: all alike
        (nx.complete_graph(9), 0.5, 4.5),
        (nx.hypercube_graph(4), 0.25, 0.5),
        (nx.cycle_graph(10), 0.3, 0.3 * (2 - 2 * np.cos(2 * np.pi / 10))),
        (nx.petersen_graph(), 1.0, 2.0),
    ],
)
def test_symmetric_graphs_share_the_budget_evenly(graph, share, best):
    found = best_probabilities(coloured(graph), share)
    assert found.connectivity == pytest.approx(best, rel=1e-5)
    assert found.bound >= best * (1 - 1e-9)


def cutting_planes(partner, budget, rounds=300):
    """Kelley's method: (best value seen, bound) from linear programmes over eigenvector cuts."""
    m, parts = len(partner), each_laplacian(partner)
    cuts = [np.einsum("kuu->k", parts) / (partner.shape[1] - 1)]
    low, high = 0.0, np.inf
    for _ in range(rounds):
        rows = np.array([np.append(-cut, 1.0) for cut in cuts] + [np.append(np.ones(m), 0.0)])
        limit = np.append(np.zeros(len(cuts)), budget)
        box = [(0, 1)] * m + [(None, None)]
        answer = linprog(np.append(np.zeros(m), -1.0), rows, limit, bounds=box)
        p, high = answer.x[:m], -answer.fun
        value, vector = np.linalg.eigh(np.tensordot(p, parts, 1) + 10.0)  # moves the ones away
        low = max(low, value[0])
        if high - low < 1e-7:
            break
        for v in vector[:, :3].T:
            cuts.append(np.einsum("u,kuv,v->k", v, parts, v))
    return low, high


@pytest.mark.parametrize("seed", range(8))
def test_cutting_planes_agree_on_small_graphs(seed):
    share = (0.1, 0.3, 0.5, 0.7)[seed % 4]
    partner = coloured(nx.gnp_random_graph(5 + seed // 2, 0.6, seed=seed))
    found = best_probabilities(partner, share)
    low, high = cutting_planes(partner, share * len(partner))
    assert low * (1 - 1e-5) <= found.connectivity <= high * (1 + 1e-9)
    assert found.connectivity == pytest.approx(high, rel=1e-4)
    assert found.bound >= low * (1 - 1e-9)


@pytest.mark.parametrize("name", ["star", "odd ring", "complete", "barbell", "geometric sparse"])
@pytest.mark.parametrize("share", [0.1, 0.6, 1.0])
def test_mixing_weight_is_the_best_of_all(name, share):
    partner = coloured(SHAPES[name])
    p = best_probabilities(partner, share).probability
    a, rho = best_mixing_weight(partner, p)
    assert 0 < a < 1
    assert 0 <= rho < 1
    assert rho == pytest.approx(contraction(partner, p, a), abs=1e-9)
    for other in (0.5 * a, 0.99 * a, 1.01 * a, 1.5 * a, 1.0, 2.0):
        assert contraction(partner, p, other) >= rho - 1e-12
    assert contraction(partner, p, 1.0) >= 1 - 1e-9  # why it is enough to look below 1


def contraction(partner, p, a):
    """Top eigenvalue of E[W^2] - J, written down as in the specification."""
    n = partner.shape[1]
    mean, spread = laplacian(partner, p), laplacian(partner, p * (1 - p))
    W2 = np.eye(n) - 2 * a * mean + a * a * (mean @ mean + 2 * spread)
    return np.linalg.eigvalsh(W2 - 1 / n)[-1]


@pytest.mark.parametrize("share", [0.01, 0.3, 0.77, 1.0])
def test_two_nodes(share):
    partner = ints([[1, 0]])
    found = best_probabilities(partner, share)
    assert found.probability.tolist() == [share]
    assert best_mixing_weight(partner, found.probability) == pytest.approx((0.5, 1 - share))


def test_expected_square_of_the_drawn_matrices():
    partner = spelled(GRAPH_0)
    p = best_probabilities(partner, 0.5).probability
    a, rho = best_mixing_weight(partner, p)
    fires = np.random.default_rng(1).random((10_000, 5)) < p
    W = np.eye(8) - a * np.einsum("dk,kuv->duv", fires, each_laplacian(partner))
    assert np.linalg.eigvalsh((W @ W).mean(axis=0) - 1 / 8)[-1] == pytest.approx(rho, rel=0.02)
    np.testing.assert_allclose(W.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_array_equal(W, W.transpose(0, 2, 1))
    assert (W < -1e-3).any(axis=(1, 2)).mean() == pytest.approx(0.57, abs=0.02)
    assert W[:, 1, 1].min() == pytest.approx(1 - 3 * 0.3964, abs=1e-3)


def test_too_large_a_problem_is_refused_with_advice():
    with pytest.raises(ConfigError, match=r"'matcha' .*70 .*1000 .*base = 'fastest'"):
        best_probabilities(np.zeros((70, 1000), np.int64), 0.5)


@given(undirected(), st.floats(0.05, 1.0))
@settings(max_examples=25, deadline=None)
def test_the_nonnegative_weight_is_the_best_one_that_never_turns_a_model_round(graph, share):
    """Against a plain search over a, with the contraction of every possible draw."""
    n, edges = graph
    i, j = ints(sorted(edges)).reshape(-1, 2).T
    assume(n > 1 and is_connected(n, i, j, np.arange(n)))
    partner = partners(n, i, j, edge_colouring(n, i, j))
    p = best_probabilities(partner, share).probability
    a, rho = nonnegative_mixing_weight(partner, p)
    degree = np.bincount(np.append(i, j), minlength=n).max()
    assert a * degree <= 1 + 1e-9
    assert rho < 1
    assert rho == pytest.approx(max(mean_square(partner, p, a), 0.0), abs=1e-9)
    others = [mean_square(partner, p, b) for b in np.linspace(0, 1 / degree, 40)]
    assert rho <= min(others) + 1e-9


def mean_square(partner, p, a):
    """lambda_max(E[W^2] - J) by a sum over all sets of matchings that fire, the slow way."""
    m, n = partner.shape
    total = -np.full((n, n), 1 / n)
    for code in range(2**m):
        fires = np.array([code >> k & 1 for k in range(m)], float)
        W = np.eye(n) - a * laplacian(partner, fires)
        total += np.prod(np.where(fires > 0, p, 1 - p)) * (W @ W)
    return np.linalg.eigvalsh(total)[-1]
