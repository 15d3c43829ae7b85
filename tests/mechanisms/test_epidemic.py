"""Epidemic Learning: its random graphs, and how fast they mix."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.plan_check import check_plan
from dystop.mechanisms import EpidemicLearning
from dystop.mechanisms.graphs.undirected import is_connected
from dystop.rng import stream
from dystop.simulator.params import EngineParams
from dystop.world import World, WorldParams
from dystop.world.describe import pieces
from support.contraction import complete_views, contraction
from support.strategies import dense, random_view
from support.unstable_world import UNSTABLE_WORLD, check_unstable_run


def oracle(s=None):
    return EpidemicLearning(neighbours=s)


def local(s=None):
    return EpidemicLearning(variant="local", neighbours=s)


def oracle_form(n, s):
    return (1 - s / (n - 1)) / (s + 1)


def local_form(n, s):
    return (1 - (1 - s / (n - 1)) ** n) / s - 1 / (n - 1)


@pytest.mark.parametrize(
    ("s", "by_oracle", "by_local"),
    [(4, 0.19192, 0.23586), (7, 0.11616, 0.13266), (14, 0.05724, 0.06133)],
)
def test_contraction_meets_the_closed_forms_at_100_workers(s, by_oracle, by_local):
    assert oracle_form(100, s) == pytest.approx(by_oracle, abs=5e-6)
    assert local_form(100, s) == pytest.approx(by_local, abs=5e-6)
    views = complete_views(100)
    assert contraction(oracle(s), views, rounds=150) == pytest.approx(by_oracle, rel=0.02)
    assert contraction(local(s), views, rounds=150) == pytest.approx(by_local, rel=0.02)


@pytest.mark.parametrize(("n", "s"), [(8, 3), (9, 4), (10, 1), (10, 2), (10, 7)])
def test_contraction_meets_the_closed_forms_of_small_fleets(n, s):
    views = complete_views(n)
    assert contraction(oracle(s), views) == pytest.approx(oracle_form(n, s), rel=0.03)
    assert contraction(local(s), views) == pytest.approx(local_form(n, s), rel=0.03)


@pytest.mark.parametrize("n", [2, 3, 6, 9])
def test_oracle_that_sends_to_all_averages_completely(n):
    assert oracle_form(n, n - 1) == 0
    assert contraction(oracle(n - 1), complete_views(n), rounds=5) == pytest.approx(0, abs=1e-20)
    view = random_view(0, n, shape="complete", all_alive=True)
    plan, _ = oracle(99).plan({}, view)  # more than there are: everyone
    np.testing.assert_allclose(dense(plan.mixes[0], n), 1 / n)


@pytest.mark.parametrize("mechanism", [oracle(), local()], ids=lambda m: m.variant)
@pytest.mark.parametrize(("n", "s"), [(2, 1), (16, 4), (17, 5), (100, 7)])
def test_every_worker_sends_the_logarithm_of_the_fleet(mechanism, n, s):
    view = complete_views(n)(1)
    plan, _ = mechanism.plan({}, view)
    check_plan(mechanism, plan, view)
    sent = s + (n * s % 2 if mechanism.variant == "oracle" else 0)
    assert (np.bincount(plan.links.src) == sent).all()
    assert plan.synchronous
    assert plan.links.pushed.all() == (mechanism.variant == "local")


def test_a_new_graph_every_round_and_the_same_for_the_same_round():
    views = complete_views(12)
    drawn = [oracle().plan({}, views(t))[0].links.src.tolist() for t in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_oracle_keeps_the_mean_and_local_does_not():
    view = complete_views(20)(3)
    W = dense(oracle().plan({}, view)[0].mixes[0], 20)
    np.testing.assert_allclose(W.sum(axis=0), 1.0)
    np.testing.assert_allclose(W[W > 0], 1 / 6)
    V = dense(local().plan({}, view)[0].mixes[0], 20)
    np.testing.assert_allclose(V.sum(axis=1), 1.0)
    assert np.abs(V.sum(axis=0) - 1).max() > 0.05
    assert oracle().capabilities().doubly_stochastic
    assert not local().capabilities().doubly_stochastic


def test_local_receivers_average_whatever_arrived():
    view = complete_views(20)(5)
    plan, _ = local(2).plan({}, view)
    got = np.bincount(plan.links.dst, minlength=20)
    assert len(set(got.tolist())) > 2
    np.testing.assert_allclose(plan.mixes[0].weight, 1 / (1 + got[plan.mixes[0].dst]))


@pytest.mark.parametrize("s", [1, 2, 4])
def test_chance_to_receive_nothing(s):
    n, rounds, views = 20, 600, complete_views(20)
    alone = 0
    for t in range(1, rounds + 1):
        links = local(s).plan({}, views(t))[0].links
        alone += n - len(np.unique(links.dst))
    assert alone / (n * rounds) == pytest.approx((1 - s / (n - 1)) ** (n - 1), rel=0.06)


def test_what_is_out_of_reach_is_left_out_and_the_mean_still_kept():
    for seed in range(30):
        view = random_view(seed, 14, shape="sparse")
        one_way = view.reach.keep(stream(seed, "drop").random(view.reach.edges) < 0.8)
        view = replace(view, reach=one_way, link_s=np.ones(one_way.edges))
        for mechanism in (oracle(6), local(6)):
            plan, _ = mechanism.plan({}, view)
            check_plan(mechanism, plan, view)
            assert plan.active.tolist() == np.flatnonzero(view.alive).tolist()
        W = dense(oracle(6).plan({}, view)[0].mixes[0], 14)
        assert np.count_nonzero(W, axis=1).max() <= 7
        np.testing.assert_allclose(W.sum(axis=0), 1.0)
        sent = np.bincount(plan.links.src, minlength=14)
        out = np.bincount(one_way.src, minlength=14)
        assert (sent == np.minimum(out, 6)).all()


def test_the_oracle_draws_within_range_and_stays_connected():
    """A hundred workers in 100 m x 100 m: by id, most of the seven links are out of range."""
    seen = World(WorldParams(), 100, 1, 0).observe(1, 0.0)
    view = random_view(0, 100, shape="empty", all_alive=True)
    view = replace(view, reach=seen.reach, link_s=seen.link_s)
    by_id = replace(oracle(), pairs="all")
    for t in range(1, 6):
        now = replace(view, t=t)
        plan, _ = oracle().plan({}, now)
        check_plan(oracle(), plan, now)
        degree = np.bincount(plan.links.dst)
        assert degree.max() == 7
        assert degree.mean() > 6.7
        assert is_connected(100, plan.links.dst, plan.links.src, np.arange(100))
        assert len(by_id.plan({}, now)[0].links) < 300
    assert pieces(oracle().base_graph({}, view), 100) == "yes"
    assert pieces(by_id.base_graph({}, view), 100).startswith("no, ")
    assert oracle(1).base_graph({}, view) is None
    assert local().base_graph({}, view) is None


@pytest.mark.parametrize("mechanism", [oracle(), local()], ids=lambda m: m.variant)
@pytest.mark.parametrize("timing", ["paper", "overlap"])
def test_runs_through_churn_mobility_and_losses(mechanism, timing):
    engine = EngineParams(timing=timing, publish="on_completion")
    _, state = check_unstable_run(mechanism, engine, 40, world=UNSTABLE_WORLD)
    assert not len(state.progress.in_flight)  # pushes are used at once, nothing waits
