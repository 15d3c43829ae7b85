"""MATCHA: base graph, active matchings, refresh, and the effect on models."""

import time
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest

from dystop.control.plan_check import check_plan
from dystop.mechanisms import DPSGD, Matcha
from dystop.mechanisms.graphs.matching_weights import (
    best_mixing_weight,
    laplacian,
    nonnegative_mixing_weight,
    partners,
)
from dystop.mechanisms.graphs.undirected import is_connected
from dystop.sparse import graph_of, ints
from support.contraction import contraction
from support.engine_fixtures import STABLE_WORLD, components_for, run_to_end, weights
from support.strategies import dense, freeze, random_view
from support.unstable_world import ENGINES, check_unstable_run

RING, STAR = nx.cycle_graph(8), nx.star_graph(8)


def view_of(graph, t=1, link_s=None):
    """Everyone present; the reach graph is this one."""
    n = len(graph)
    i, j = ints(list(graph.edges)).reshape(-1, 2).T
    reach = graph_of(n, np.append(i, j), np.append(j, i))
    seconds = np.ones(reach.edges) if link_s is None else link_s(reach)
    view = random_view(0, n, shape="empty", all_alive=True)
    return freeze(replace(view, t=t, reach=reach, distance_m=seconds, link_s=seconds))


def planned(mechanism, view, memory=None):
    plan, memory = mechanism.plan(memory or {}, view)
    check_plan(mechanism, plan, view)
    return plan, memory


def partner_of(memory, n):
    return partners(n, memory["i"], memory["j"], memory["matching"])


def edges_of(memory):
    return set(zip(memory["i"].tolist(), memory["j"].tolist(), strict=True))


@pytest.mark.parametrize(
    ("graph", "topology"),
    [(RING, "ring"), (nx.cycle_graph(9), "ring")]
    + [(nx.complete_graph(n), "complete") for n in (2, 3, 6, 7)],
)
def test_with_the_full_budget_it_is_optimal_dpsgd(graph, topology):
    n = len(graph)
    view = view_of(graph)
    plan, _ = planned(Matcha(budget=1.0, base="reach", weights="optimal"), view)
    other = DPSGD(topology=topology, weights="optimal")
    twin, _ = other.plan(other.init(view.fleet), view)
    np.testing.assert_allclose(dense(plan.mixes[0], n), dense(twin.mixes[0], n), atol=1e-9)
    assert len(plan.links) == len(twin.links)


@pytest.mark.parametrize("budget", [0.2, 0.5, 1.0])
def test_two_workers_average_or_do_nothing(budget):
    memory, seen = {}, []
    for t in range(1, 201):
        plan, memory = planned(Matcha(budget=budget), view_of(nx.path_graph(2), t), memory)
        W = dense(plan.mixes[0], 2)
        met = len(plan.links) == 2
        np.testing.assert_allclose(W, 0.5 if met else np.eye(2), atol=1e-9)
        seen.append(met)
    assert np.mean(seen) == pytest.approx(budget, abs=0.1)


def top_vector(memory, n):
    """The direction that shrinks least, and how much it does."""
    partner = partner_of(memory, n)
    p = memory["probability"]
    a, rho = best_mixing_weight(partner, p)
    mean, spread = laplacian(partner, p), laplacian(partner, p * (1 - p))
    W2 = np.eye(n) - 2 * a * mean + a * a * (mean @ mean + 2 * spread) - 1 / n
    return np.linalg.eigh(W2)[1][:, -1], rho


@pytest.mark.parametrize("budget", [0.3, 0.7])
def test_disagreement_shrinks_as_the_closed_form_says(budget):
    graph = nx.random_geometric_graph(12, 0.5, seed=3)
    mechanism = Matcha(budget=budget, base="reach", weights="optimal")
    _, memory = planned(mechanism, view_of(graph))
    worst, rho = top_vector(memory, 12)

    def view_at(t):
        return view_of(graph, t)

    measured = contraction(mechanism, view_at, rounds=2000, start=worst, width=1)
    assert measured == pytest.approx(rho, rel=0.03)
    assert contraction(mechanism, view_at, rounds=500) < rho


def test_matchings_fire_as_often_as_they_should_and_send_two_models_per_edge():
    graph = nx.random_geometric_graph(12, 0.5, seed=3)
    mechanism, memory, fired = Matcha(base="reach"), {}, []
    for t in range(1, 401):
        plan, memory = planned(mechanism, view_of(graph, t), memory)
        fired.append(plan.notes["fired"])
        assert plan.synchronous
        assert plan.active.tolist() == list(range(12))
        degree = np.bincount(plan.links.dst, minlength=12)
        assert degree.max(initial=0) <= plan.notes["fired"]
        W = dense(plan.mixes[0], 12)
        np.testing.assert_allclose(W, W.T)
    assert np.mean(fired) == pytest.approx(memory["probability"].sum(), rel=0.05)
    assert memory["probability"].sum() <= 0.5 * plan.notes["matchings"]
    size = np.bincount(memory["matching"])
    assert len(plan.links) in {2 * sum(size[np.array(c, int)]) for c in subsets(len(size))}
    assert edges_of(memory) == {(min(e), max(e)) for e in graph.edges}


def subsets(m):
    return [[k for k in range(m) if code >> k & 1] for code in range(2**m)]


@pytest.mark.parametrize(
    ("weights", "negative"), [("optimal", {True, False}), ("nonnegative", {False})]
)
def test_only_the_optimal_rows_may_be_negative(weights, negative):
    seen = set()
    mechanism, memory = Matcha(base="reach", weights=weights), {}
    graph = nx.Graph([(1, 5), (6, 7), (0, 4), (2, 3), (1, 7), (3, 6), (1, 0), (3, 7), (5, 6)])
    graph.add_edges_from([(1, 2), (7, 0), (3, 1)])
    for t in range(1, 60):
        plan, memory = planned(mechanism, view_of(graph, t), memory)
        seen.add(bool(plan.mixes[0].weight.min() < 0))
    assert seen == negative
    assert mechanism.capabilities().signed_rows == (weights == "optimal")


def by_gap(reach):
    return np.abs(reach.dst - reach.src).astype(float)


def test_the_base_graph_takes_the_fastest_links_and_stays_connected():
    view = view_of(nx.complete_graph(16), link_s=by_gap)
    _, memory = planned(Matcha(base="fastest"), view)  # ceil(log2 16) = 4
    gaps = {b - a for a, b in edges_of(memory)}
    assert gaps <= {1, 2, 3, 4}
    assert {(k, k + 1) for k in range(15)} <= edges_of(memory)
    assert is_connected(16, memory["i"], memory["j"], np.arange(16))
    _, whole = planned(Matcha(base="reach"), view)
    assert len(edges_of(whole)) == 120


def test_connectivity_costs_extra_links():
    """Two clusters with fast links inside: the fastest links alone would leave them apart."""
    view = view_of(
        nx.complete_graph(8),
        link_s=lambda r: np.where((r.dst < 4) == (r.src < 4), 1.0, 9.0) + 0.01 * (r.dst + r.src),
    )
    _, memory = planned(Matcha(base="fastest", degree=2), view)
    across = [(a, b) for a, b in edges_of(memory) if (a < 4) != (b < 4)]
    assert across == [(0, 4)]
    assert is_connected(8, memory["i"], memory["j"], np.arange(8))


def test_pieces_are_optimised_one_by_one():
    both = nx.disjoint_union(RING, nx.path_graph(2))
    both.add_node(10)
    plan, memory = planned(Matcha(base="reach", weights="optimal"), view_of(both))
    of_ring = np.unique(memory["matching"][memory["i"] < 8])
    of_pair = memory["matching"][memory["i"] == 8]
    np.testing.assert_allclose(memory["probability"][of_ring], 0.5, atol=1e-5)
    np.testing.assert_allclose(memory["weight"][of_ring], 0.6074, atol=1e-4)
    assert memory["probability"][of_pair] == 0.5
    assert memory["weight"][of_pair] == pytest.approx(0.5)
    assert plan.active.tolist() == list(range(11))


def test_set_up_anew_on_change_but_not_too_often():
    mechanism = Matcha(refresh=5)
    _, memory = planned(mechanism, view_of(RING, 1))
    _, same = planned(mechanism, view_of(RING, 30), memory)
    assert same is memory
    torn = RING.copy()
    torn.remove_edge(0, 1)
    for t in range(2, 6):
        plan, kept = planned(mechanism, view_of(torn, t), memory)
        assert kept is memory
        W = dense(plan.mixes[0], 8)
        assert W[0, 1] == W[1, 0] == 0
    _, fresh = planned(mechanism, view_of(torn, 6), memory)
    assert fresh["since"] == 6
    assert len(edges_of(fresh)) == 7
    for t in range(7, 11):
        assert planned(mechanism, view_of(RING, t), fresh)[1] is fresh
    assert len(edges_of(planned(mechanism, view_of(RING, 11), fresh)[1])) == 8


def test_nobody_in_reach_is_plain_local_training():
    view = random_view(3, 5, shape="empty")
    plan, memory = planned(Matcha(), view)
    assert len(plan.links) == 0
    assert plan.notes == {"matchings": 0.0, "fired": 0.0}
    np.testing.assert_array_equal(dense(plan.mixes[0], 5), np.eye(5))
    assert planned(Matcha(), view, memory)[1] is memory


def test_one_way_links_are_not_used():
    view = view_of(nx.complete_graph(4))
    keep = view.reach.dst * 4 + view.reach.src != 4  # 1 does not hear 0
    view = replace(view, reach=view.reach.keep(keep), link_s=view.link_s[keep])
    _, memory = planned(Matcha(base="reach"), view)
    assert (0, 1) not in edges_of(memory)
    assert len(edges_of(memory)) == 5


@pytest.mark.parametrize("degree", [None, 2, 4])
def test_the_geometric_base_graph_is_sparse_and_connected(degree):
    """All pairs up to a radius, or the shortest ones; positions are those of the graph."""
    graph = nx.random_geometric_graph(60, 0.5, seed=4)
    at = np.array([graph.nodes[k]["pos"] for k in range(60)])
    view = view_of(graph)
    metres = np.linalg.norm(at[view.reach.dst] - at[view.reach.src], axis=1)
    _, memory = planned(Matcha(degree=degree), replace(view, distance_m=metres))
    length = {e: np.linalg.norm(at[e[0]] - at[e[1]]) for e in edges_of(memory)}
    base = nx.Graph(list(length))
    assert nx.is_connected(base)
    assert len(base) == 60
    if degree is None:
        shorter = nx.Graph([e for e, m in length.items() if m < max(length.values())])
        assert len(shorter) < 60 or not nx.is_connected(shorter)
        within = nx.random_geometric_graph(
            60, max(length.values()) + 1e-12, pos=dict(enumerate(at))
        )
        assert {(min(e), max(e)) for e in within.edges} == set(length)
    else:
        assert 60 * degree // 2 <= len(length) < 60 * degree // 2 + 59


@pytest.mark.parametrize("base", ["geometric", "fastest", "reach"])
def test_nonnegative_weights_are_doubly_stochastic_and_contract(base):
    graph = nx.random_geometric_graph(30, 0.4, seed=2)
    mechanism, memory = Matcha(base=base), {}
    for t in range(1, 40):
        plan, memory = planned(mechanism, view_of(graph, t, by_gap), memory)
        W = dense(plan.mixes[0], 30)
        assert W.min() >= -1e-12
        np.testing.assert_allclose(W.sum(axis=0), 1.0)
        np.testing.assert_allclose(W.sum(axis=1), 1.0)
    a, rho = nonnegative_mixing_weight(partner_of(memory, 30), memory["probability"])
    assert memory["weight"] == pytest.approx(a)
    assert 0 < rho < 1


def turned_round(weights):
    """The share of its own model that the worker in the middle of a star keeps."""
    plan, _ = planned(Matcha(budget=1.0, base="reach", weights=weights), view_of(STAR))
    start = np.append(1.0, np.zeros(len(STAR) - 1))
    return (dense(plan.mixes[0], len(STAR)) @ start)[0]


def test_the_optimal_weight_turns_a_deviation_round_and_the_other_one_does_not():
    """A worker with eight links keeps 1 - 8 * 0.2 of its own model by the authors' weight."""
    assert turned_round("optimal") == pytest.approx(-0.6)
    assert turned_round("nonnegative") == pytest.approx(0.0)


@pytest.mark.parametrize("base", ["geometric", "fastest", "reach"])
def test_a_hundred_workers_are_set_up_in_seconds(base):
    graph = nx.random_geometric_graph(100, 0.4, seed=1)
    begin = time.process_time()
    _, memory = planned(Matcha(base=base), view_of(graph, link_s=by_gap))
    assert time.process_time() - begin < 20  # about one second on a free core
    assert len(edges_of(memory)) == (len(graph.edges) if base == "reach" else len(memory["i"]))


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_it_survives_everything_at_once(engine):
    check_unstable_run(Matcha(refresh=7), engine, rounds=30)


@pytest.mark.parametrize("timing", ["paper", "overlap"])
def test_a_run_keeps_the_mean_and_moves_the_models_together(timing):
    from dystop.control.stopping import Stop
    from dystop.simulator.params import EngineParams

    components = components_for(
        Matcha(base="fastest"),
        6,
        params=STABLE_WORLD,
        stop=Stop(rounds=8),
        engine=EngineParams(timing=timing),
    )
    records, state = run_to_end(components)
    values = weights(state)
    assert np.mean(values) == pytest.approx(9 * 3.5, rel=1e-5)  # nine trainings of 1..6
    assert np.ptp(values) < 9 * 5
    assert {r.links // 2 for r in records} != {records[0].links // 2}
    assert records[0].notes["matchings"] >= 3
