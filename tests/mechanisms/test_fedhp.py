"""FedHP: local steps, links chosen by consensus distance, and its memory."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dystop.control.plan_check import check_plan
from dystop.control.stopping import Stop
from dystop.mechanisms import DPSGD, FedHP
from dystop.mechanisms.fedhp import detour, local_steps, thin
from dystop.mechanisms.graphs.pairs import (
    fastest_pairs,
    measured,
    no_values,
    note,
    pair_key,
    recall,
    spanning_forest,
)
from dystop.mechanisms.graphs.undirected import components, two_way_pairs
from dystop.rng import stream
from dystop.simulator.params import EngineParams
from dystop.sparse import graph_of, ints
from dystop.types import Outcome
from dystop.world import Compute
from support.engine_fixtures import STABLE_WORLD, components_for, run_to_end
from support.strategies import dense, random_view, two_way, undirected
from support.unstable_world import UNSTABLE_WORLD, check_unstable_run


def everyone(n, seed=0):
    return replace(random_view(seed, n, shape="complete", all_alive=True), last=None)


def outcome(dst, src, distance, lost=None):
    n = len(dst)
    gone = np.zeros(n, bool) if lost is None else np.array(lost)
    return Outcome(
        duration_s=1.0,
        comm_s=np.zeros(0),
        link_s=np.ones(n),
        link_bytes=ints(np.ones(n)),
        lost=gone,
        loss=np.zeros(0),
        samples=1,
        dst=ints(dst),
        src=ints(src),
        distance=np.asarray(distance, float),
    )


def test_steps_of_the_worked_example():
    mu, beta = np.array([0.1, 0.2, 0.4]), np.array([1.0, 2.0, 1.0])
    steps = local_steps(mu, beta, 20)
    assert steps.tolist() == [20, 5, 5]
    np.testing.assert_allclose(steps * mu + beta, 3.0)


@pytest.mark.parametrize("seed", range(30))
def test_whoever_is_not_clipped_finishes_within_one_step_of_the_fastest(seed):
    rng = stream(seed, "hardware")
    mu, beta = rng.uniform(0.01, 0.1, 12), rng.uniform(0, 1, 12)
    steps = local_steps(mu, beta, 20)
    fastest = np.argmin(mu)
    spare = 20 * mu[fastest] + beta[fastest] - (steps * mu + beta)
    free = (steps > 1) & (steps < 20)
    assert ((steps >= 1) & (steps <= 20)).all()
    assert (spare[free] > -1e-9).all()
    assert (spare[free] < mu[free] + 1e-9).all()
    assert steps[fastest] == 20


def test_equal_hardware_and_links_give_equal_steps():
    assert local_steps(np.full(5, 0.3), np.full(5, 0.7), 17).tolist() == [17] * 5


@pytest.mark.parametrize("kappa", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(25))
def test_topology_connects_whatever_can_be_connected(seed, kappa):
    view = random_view(seed, (3, 6, 9, 14)[seed % 4])
    mechanism = FedHP(kappa=kappa)
    plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
    n = view.fleet.workers
    np.testing.assert_array_equal(
        components(n, plan.links.dst, plan.links.src), components(n, view.reach.dst, view.reach.src)
    )
    W = dense(plan.mixes[0], n)
    np.testing.assert_allclose(W.sum(axis=0), 1.0)
    np.testing.assert_allclose(W, W.T)
    if kappa == 0:  # a spanning forest is all that is left
        pieces = components(n, plan.links.dst, plan.links.src).max() + 1
        assert len(plan.links) == 2 * (n - pieces)


def weighted(case, seed):
    """Arrays of a small graph: i, j, cost, distance."""
    _, edges = case
    pairs = ints(sorted((min(e), max(e)) for e in edges)).reshape(-1, 2)
    rng = stream(seed, "weights")
    cost = rng.integers(1, 5, len(pairs)).astype(float)
    return pairs[:, 0], pairs[:, 1], cost, rng.integers(0, 5, len(pairs)).astype(float)


def literal_thin(n, i, j, cost, distance, kappa):
    """The rule read out: look at each link in turn and test everything anew."""
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_edges_from(zip(i.tolist(), j.tolist(), strict=True))
    pieces, total = nx.number_connected_components(graph), distance.sum()
    mass, kept = total, np.ones(len(i), bool)
    ratio = cost / np.maximum(distance, 1e-150)
    for k in sorted(range(len(i)), key=lambda e: (-ratio[e], e)):
        graph.remove_edge(int(i[k]), int(j[k]))
        whole = nx.number_connected_components(graph) == pieces
        spent = mass <= kappa * total + 1e-12
        if whole and not spent and mass - distance[k] >= kappa * total - 1e-12:
            kept[k], mass = False, mass - distance[k]
        else:
            graph.add_edge(int(i[k]), int(j[k]))
    return kept


@given(undirected(), st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), st.integers(0, 50))
def test_thinning_is_the_rule_read_out(case, kappa, seed):
    n = case[0]
    i, j, cost, distance = weighted(case, seed)
    kept = thin(n, i, j, cost, distance, kappa)
    np.testing.assert_array_equal(kept, literal_thin(n, i, j, cost, distance, kappa))
    assert distance[kept].sum() >= kappa * distance.sum() - 1e-9
    assert components(n, i[kept], j[kept]).tolist() == components(n, i, j).tolist()


def test_slow_links_between_similar_models_go_first():
    i, j = ints([0, 0, 1]), ints([1, 2, 2])
    kept = thin(3, i, j, np.array([5.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0]), 0.6)
    assert kept.tolist() == [False, True, True]
    kept = thin(3, i, j, np.array([5.0, 1.0, 1.0]), np.array([10.0, 1.0, 2.0]), 0.6)
    assert kept.tolist() == [True, False, True]


@given(undirected(), st.integers(0, 50))
def test_forest_is_a_minimum_spanning_forest(case, seed):
    n, _ = case
    i, j, cost, _ = weighted(case, seed)
    inside = spanning_forest(n, i, j, np.argsort(cost, kind="stable"))
    graph = nx.Graph()
    graph.add_weighted_edges_from(zip(i.tolist(), j.tolist(), cost.tolist(), strict=True))
    assert components(n, i[inside], j[inside]).tolist() == components(n, i, j).tolist()
    assert cost[inside].sum() == nx.minimum_spanning_tree(graph).size(weight="weight")
    assert inside.sum() == n - (components(n, i, j).max(initial=-1) + 1)


def test_base_graph_holds_the_fastest_links_of_each_worker_and_a_forest():
    """Two groups close together, far apart: only the forest links them."""
    spot = np.array([0.0, 1.0, 2.1, 50.0, 51.0, 52.2])
    i, j = np.triu_indices(6, 1)
    base = fastest_pairs(6, ints(i), ints(j), np.abs(spot[i] - spot[j]), 1)
    chosen = set(zip(i[base].tolist(), j[base].tolist(), strict=True))
    assert chosen == {(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)}
    assert fastest_pairs(6, ints(i), ints(j), np.abs(spot[i] - spot[j]), 5).all()


def test_detours_are_shortest_ways(monkeypatch):
    monkeypatch.setattr("dystop.mechanisms.fedhp._SOURCES", 2)  # several blocks
    rng = stream(3, "gaps")
    n, (i, j) = 9, np.triu_indices(9, 1)
    keep = rng.random(len(i)) < 0.25
    value = rng.uniform(0, 3, int(keep.sum()))
    gap = note(no_values(), pair_key(n, ints(i[keep]), ints(j[keep])), value)
    graph = nx.Graph()
    graph.add_nodes_from(range(n))
    graph.add_weighted_edges_from(zip(i[keep].tolist(), j[keep].tolist(), value, strict=True))
    way = dict(nx.all_pairs_dijkstra_path_length(graph))
    expected = [way[a].get(b, np.inf) for a, b in zip(i.tolist(), j.tolist(), strict=True)]
    np.testing.assert_allclose(detour(n, gap, ints(i), ints(j)), expected)
    assert np.isinf(expected).any()


def test_pair_store_remembers_and_overwrites():
    store = note(
        note(no_values(), ints([5, 9]), np.array([1.0, 2.0])), ints([7, 5]), np.ones(2) * 3
    )
    assert store["keys"].tolist() == [5, 7, 9]
    assert store["values"].tolist() == [3.0, 3.0, 2.0]
    np.testing.assert_array_equal(recall(store, ints([9, 1])), [2.0, np.nan])


def test_measured_distances_are_averaged_over_both_ends_and_lost_ones_ignored():
    last = outcome([0, 1, 2, 3], [1, 0, 1, 0], [1, 3, 7, np.nan], [False, False, True, False])
    keys, values = measured(4, last)
    assert keys.tolist() == [1]
    assert values.tolist() == [2.0]
    assert len(measured(4, None)[0]) == len(measured(4, replace(last, distance=None))[0]) == 0


def test_distances_are_smoothed_and_trainings_shortened_when_models_drift():
    mechanism, view = FedHP(), everyone(3)
    memory = mechanism.init(view.fleet)
    taus = []
    for distance in [4.0, 2.0, 3.7, 9.0, *(2.0**k for k in range(5, 25))]:
        seen = replace(view, last=outcome([0, 1], [1, 0], [distance, distance]))
        _, memory = mechanism.plan(memory, seen)
        taus.append(memory["tau_max"])
        if len(taus) == 2:
            assert recall(memory["gap"], ints([1])).tolist() == [3.0]
    assert taus[:4] == [20.0, 20.0, 18.0, pytest.approx(16.2)]  # medians 4, 3 and 3.7
    assert min(taus) == 5.0
    plan, _ = mechanism.plan(memory, view)
    assert plan.steps.max() <= 5


def test_unknown_distances_are_bounded_then_guessed():
    mechanism, view = FedHP(), everyone(5)
    i, j, _ = two_way_pairs(view.reach, view.link_s)
    gap = note(no_values(), ints([1, 7]), np.array([2.0, 3.0]))  # 0-1 and 1-2
    known = dict(zip(zip(i, j, strict=True), mechanism._distance(gap, view, i, j), strict=True))
    assert known[0, 1] == 2.0
    assert known[0, 2] == 5.0  # over 1
    assert known[3, 4] == 5.0  # no way at all: as far as any
    labels = mechanism._distance(no_values(), view, i, j)
    assert 0 < labels.max() <= 2
    same = replace(view, fleet=replace(view.fleet, label_counts=np.ones((5, 2), np.int64)))
    assert mechanism._distance(no_values(), same, i, j).tolist() == [1.0] * len(i)


@pytest.mark.parametrize("topology", ["ring", "complete"])
@pytest.mark.parametrize("n", [2, 3, 8, 9])
def test_without_thinning_it_is_dpsgd_on_the_base_graph(n, topology):
    view = everyone(n)
    if topology == "ring":
        edges = {(k, (k + 1) % n) for k in range(n)}
        view = replace(view, reach=two_way(n, edges))
    edges = view.reach.edges
    view = replace(view, link_s=np.full(edges, 0.2), step_s=np.full(n, 0.1))
    equal, plain = FedHP(kappa=1.0, degree=n), DPSGD(topology=topology)
    ours, _ = equal.plan(equal.init(view.fleet), view)
    theirs, _ = plain.plan(plain.init(view.fleet), view)
    np.testing.assert_array_equal(dense(ours.mixes[0], n), dense(theirs.mixes[0], n))
    assert len(ours.links) == len(theirs.links) == edges
    assert ours.steps.tolist() == [20] * n
    assert ours.synchronous


def test_uniform_weights_and_what_is_declared():
    assert FedHP().capabilities().doubly_stochastic
    mechanism = FedHP(weights="uniform")
    assert not mechanism.capabilities().doubly_stochastic
    view = everyone(6)
    plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
    degree = np.bincount(plan.links.dst, minlength=6)
    W = dense(plan.mixes[0], 6)
    for i in range(6):
        np.testing.assert_allclose(W[i][W[i] > 0], 1 / (1 + degree[i]))


def test_one_way_links_are_not_used():
    view = everyone(4)
    keep = view.reach.dst * 4 + view.reach.src != 4  # 1 does not hear 0
    view = replace(view, reach=view.reach.keep(keep), link_s=view.link_s[keep])
    mechanism = FedHP(kappa=1.0, degree=4)
    plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
    check_plan(mechanism, plan, view)
    assert len(plan.links) == 10


def test_round_time_is_the_slowest_of_training_and_exchange():
    """No fading, so that expected times come true; from round 2 on the chosen steps count."""
    still = replace(STABLE_WORLD, compute=Compute(batch_s=1.0, spread=0.4))
    components = components_for(FedHP(kappa=1.0), 6, params=still, stop=Stop(rounds=4))
    records, state = run_to_end(components)
    around = components.world.observe(1, 0.0)
    pairs = ints(records[1].get("link_pairs"))
    wait_s = np.zeros(6)
    np.maximum.at(wait_s, pairs[:, 0], around.link_s[around.reach.find(pairs[:, 0], pairs[:, 1])])
    steps = local_steps(around.step_s, wait_s, 20)
    expected = steps * around.step_s + wait_s
    assert records[2].duration_s == pytest.approx(expected.max())
    assert (expected.max() - expected[steps > 1] < around.step_s.max() + 1e-6).all()
    assert records[2].wire_bytes == len(pairs) * 40_000
    assert len(state.control.memory["gap"]["keys"]) == len(graph_of(6, *pairs.T).dst) // 2


@pytest.mark.parametrize("timing", ["paper", "overlap"])
def test_it_survives_everything_at_once(timing):
    engine = EngineParams(timing=timing, publish="on_completion")
    _, state = check_unstable_run(FedHP(), engine, world=UNSTABLE_WORLD)
    assert len(state.control.memory["gap"]["keys"]) > 9
