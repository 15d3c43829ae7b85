"""D-PSGD: its graphs, its weights and their closed forms."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.plan_check import check_plan
from dystop.errors import ConfigError
from dystop.mechanisms import DPSGD
from dystop.mechanisms.dpsgd import best_laplacian_step
from dystop.mechanisms.graphs.undirected import components
from dystop.sparse import graph_of, ints
from dystop.world import World, WorldParams
from support.strategies import dense, random_fleet, random_view, two_way


def matrix(mechanism, n, seed=0):
    """Mixing matrix of a round in which everyone reaches everyone."""
    view = random_view(seed, n, shape="complete", all_alive=True)
    plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
    check_plan(mechanism, plan, view)
    return dense(plan.mixes[0], n)


def second_eigenvalue(W):
    n = len(W)
    return np.abs(np.linalg.eigvalsh(W - np.full((n, n), 1 / n))).max()


@pytest.mark.parametrize(("n", "value"), [(8, 0.8047), (16, 0.9493), (100, 0.99868)])
def test_ring_contracts_as_its_closed_form_says(n, value):
    W = matrix(DPSGD(), n)
    assert np.allclose(W[W > 0], 1 / 3)
    assert second_eigenvalue(W) == pytest.approx((1 + 2 * np.cos(2 * np.pi / n)) / 3)
    assert second_eigenvalue(W) == pytest.approx(value, abs=6e-5)


@pytest.mark.parametrize("weights", ["metropolis", "optimal"])
@pytest.mark.parametrize("n", [2, 3, 10])
def test_complete_graph_reaches_consensus_in_one_round(n, weights):
    W = matrix(DPSGD(topology="complete", weights=weights), n)
    np.testing.assert_allclose(W, 1 / n, atol=1e-12)


@pytest.mark.parametrize(("topology", "n"), [("ring", 8), ("ring", 9), ("random-regular", 20)])
def test_optimal_weights_contract_as_their_closed_form_says(topology, n):
    mechanism = DPSGD(topology=topology, weights="optimal", degree=3)
    W = matrix(mechanism, n)
    laplacian = -1.0 * ((W != 0) & ~np.eye(n, dtype=bool))
    laplacian -= np.diag(laplacian.sum(axis=1))
    spectrum = np.linalg.eigvalsh(laplacian)
    low, high = spectrum[1], spectrum[-1]
    np.testing.assert_allclose(W, np.eye(n) - 2 / (low + high) * laplacian, atol=1e-12)
    assert second_eigenvalue(W) ** 2 == pytest.approx(((high - low) / (high + low)) ** 2)
    plain = matrix(replace(mechanism, weights="metropolis"), n)
    assert second_eigenvalue(W) <= second_eigenvalue(plain) + 1e-12


@pytest.mark.parametrize(
    ("mechanism", "n", "links"),
    [
        (DPSGD(), 1, 0),
        (DPSGD(), 2, 2),
        (DPSGD(), 3, 6),
        (DPSGD(), 7, 14),
        (DPSGD(topology="complete"), 7, 42),
        (DPSGD(topology="random-regular", degree=4), 7, 28),
    ],
)
def test_two_models_travel_over_every_edge(mechanism, n, links):
    view = random_view(1, n, shape="complete", all_alive=True)
    plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
    assert len(plan.links) == links
    assert plan.synchronous
    assert plan.active.tolist() == list(range(n))


def test_regular_graph_by_id_is_regular_connected_and_addressed_by_the_seed():
    mechanism = DPSGD(topology="random-regular", degree=3, pairs="all")
    drawn = [mechanism.init(random_fleet(seed, 20)) for seed in (1, 1, 2)]
    assert np.array_equal(drawn[0]["src"], drawn[1]["src"])
    assert not np.array_equal(drawn[0]["src"], drawn[2]["src"])
    for memory in drawn:
        assert (np.bincount(memory["dst"], minlength=20) == 3).all()
        assert second_eigenvalue(matrix(mechanism, 20)) < 1 - 1e-9


@pytest.mark.parametrize(("degree", "n"), [(3, 5), (5, 5), (4, 3)])
def test_impossible_degrees_are_refused(degree, n):
    with pytest.raises(ConfigError, match=rf"mechanism\.degree = {degree}: .*{n} workers"):
        DPSGD(topology="random-regular", degree=degree, pairs="all").init(random_fleet(0, n))


def test_a_regular_graph_that_is_never_connected_is_refused():
    with pytest.raises(ConfigError, match=r"mechanism\.degree = 1: .*6 workers.* 3"):
        DPSGD(topology="random-regular", degree=1, pairs="all").init(random_fleet(0, 6))


def test_an_exact_spectrum_is_refused_for_large_fleets():
    with pytest.raises(ConfigError, match=r"mechanism\.weights = 'optimal'.*2001.*'metropolis'"):
        best_laplacian_step(graph_of(2001, ints([0, 1]), ints([1, 0])))


def test_step_of_a_graph_without_edges():
    assert best_laplacian_step(graph_of(3, ints([]), ints([]))) == 0.0
    assert best_laplacian_step(two_way(2, {(0, 1)})) == pytest.approx(0.5)


def test_links_out_of_reach_are_left_out():
    view = random_view(3, 4, shape="complete", all_alive=True)
    keep = ~np.isin(view.reach.dst * 4 + view.reach.src, [1, 4])  # 0 and 1 do not hear each other
    view = replace(view, reach=view.reach.keep(keep), link_s=view.link_s[keep])
    mechanism = DPSGD(pairs="all")
    plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
    check_plan(mechanism, plan, view)
    assert len(plan.links) == 6
    W = dense(plan.mixes[0], 4)
    assert W[0, 1] == W[1, 0] == 0
    np.testing.assert_allclose(W.sum(axis=0), 1.0)


@pytest.mark.parametrize("pairs", ["reach", "all"])
@pytest.mark.parametrize("weights", ["metropolis", "optimal"])
def test_one_way_links_do_not_break_the_declared_property(weights, pairs):
    """Reach is directed: 0 hears 1, but 1 does not hear 0. The mean model must still be kept."""
    view = random_view(3, 4, shape="complete", all_alive=True)
    keep = view.reach.dst * 4 + view.reach.src != 4
    view = replace(view, reach=view.reach.keep(keep), link_s=view.link_s[keep])
    mechanism = DPSGD(weights=weights, pairs=pairs)
    plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
    check_plan(mechanism, plan, view)
    assert mechanism.capabilities().doubly_stochastic
    np.testing.assert_allclose(dense(plan.mixes[0], 4).sum(axis=0), 1.0)


def test_declared_properties_follow_the_weights():
    assert DPSGD().capabilities().doubly_stochastic
    assert not DPSGD().capabilities().signed_rows
    assert not DPSGD(weights="size").capabilities().doubly_stochastic
    assert DPSGD(weights="optimal").capabilities().signed_rows


def at_paper_scale(seed=0, range_m=40.0, t=1):
    """A hundred workers in 100 m x 100 m, as the paper has them."""
    world = World(WorldParams(range_m=range_m), 100, 1, seed)
    seen = world.observe(1, 0.0)
    view = random_view(seed, 100, shape="empty", all_alive=True)
    return replace(view, t=t, reach=seen.reach, link_s=seen.link_s, distance_m=seen.distance_m)


def pieces_of(mechanism, view):
    graph = mechanism.base_graph(mechanism.init(view.fleet), view)
    return len(np.unique(components(graph.n, graph.dst, graph.src)))


@pytest.mark.parametrize("seed", range(3))
def test_the_ring_is_one_cycle_within_range_and_was_many_pieces_by_id(seed):
    view = at_paper_scale(seed)
    plan, memory = DPSGD().plan({}, view)
    check_plan(DPSGD(), plan, view)
    assert (np.bincount(plan.links.dst) == 2).all()
    assert len(plan.links) == 200
    assert pieces_of(DPSGD(), view) == 1
    assert pieces_of(DPSGD(pairs="all"), view) > 40
    assert (np.bincount(memory["dst"]) == 2).all()


def test_the_regular_graph_is_drawn_within_range():
    view, mechanism = at_paper_scale(), DPSGD(topology="random-regular", degree=4)
    plan, _ = mechanism.plan({}, view)
    degree = np.bincount(plan.links.dst)
    assert degree.max() == 4
    assert degree.mean() > 3.9
    assert pieces_of(mechanism, view) == 1
    assert np.bincount(DPSGD(topology="complete").plan({}, view)[0].links.dst).sum() == (
        view.reach.edges
    )


def test_the_graph_is_kept_until_reach_changes_and_not_changed_too_often():
    mechanism, view = DPSGD(refresh=5), at_paper_scale()
    _, memory = mechanism.plan({}, view)
    assert mechanism.plan(memory, replace(view, t=99))[1] is memory
    shorter = at_paper_scale(range_m=30.0)
    for t in range(2, 6):
        plan, kept = mechanism.plan(memory, replace(shorter, t=t))
        assert kept is memory
        assert len(plan.links) < 200
    plan, fresh = mechanism.plan(memory, replace(shorter, t=6))
    assert fresh["since"] == 6
    assert len(plan.links) == 200
