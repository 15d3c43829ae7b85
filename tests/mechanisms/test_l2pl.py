"""L2PL: the policy and its gradient, random graphs, the reward, and learning progress."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.plan_check import check_plan
from dystop.mechanisms import L2PL
from dystop.mechanisms.graphs.pairs import recall
from dystop.mechanisms.graphs.undirected import components
from dystop.mechanisms.l2pl import (
    FEATURES,
    _Candidates,
    _last_step,
    accept,
    policy_score,
    with_connecting_pairs,
)
from dystop.rng import stream
from dystop.simulator.params import EngineParams
from dystop.sparse import ints
from dystop.types import Outcome
from support.strategies import dense, random_view, same
from support.unstable_world import UNSTABLE_WORLD, check_unstable_run


def everyone(n, seed=0, budget=np.inf):
    view = random_view(seed, n, shape="complete", all_alive=True, budget=budget)
    return replace(view, last=None)


def outcome(plan, link_s, *, loss=np.nan, duration_s=None, distance=None):
    n, count = len(plan.active), len(plan.links)
    return Outcome(
        duration_s=float(link_s.max(initial=0.0)) if duration_s is None else duration_s,
        comm_s=np.zeros(n),
        link_s=link_s,
        link_bytes=ints(np.ones(count)),
        lost=np.zeros(count, bool),
        loss=np.full(n, loss),
        samples=1,
        active=plan.active,
        dst=plan.links.dst,
        src=plan.links.src,
        distance=distance,
    )


def four_nodes(limit, seed):
    """All six pairs of four workers with random features."""
    i, j = map(ints, np.triu_indices(4, 1))
    rng = stream(seed, "four")
    phi = rng.normal(size=(6, len(FEATURES)))
    return (
        _Candidates(i, j, rng.random(6), phi, ints(limit), 4),
        rng.normal(size=len(FEATURES)),
        rng,
    )


def log_probability(candidates, theta, heat, chosen):
    """Of drawing these pairs in this order, step by step, by the definition."""
    left, total, gone = candidates.limit.copy(), 0.0, set()
    for k in chosen.tolist():
        may = [
            e
            for e in range(len(candidates.i))
            if e not in gone and left[candidates.i[e]] > 0 and left[candidates.j[e]] > 0
        ]
        scores = candidates.phi[may] @ theta / heat
        total += candidates.phi[k] @ theta / heat - np.log(np.exp(scores).sum())
        left[[candidates.i[k], candidates.j[k]]] -= 1
        gone.add(k)
    return total


def sampled(candidates, theta, heat, rng):
    logits = candidates.phi @ theta / heat
    order = np.argsort(-(logits + rng.gumbel(size=len(logits))))
    chosen, closed = accept(candidates.i, candidates.j, order, candidates.limit, candidates.target)
    return chosen, policy_score(
        candidates.phi, logits, chosen, _last_step(candidates, chosen, closed)
    )


@pytest.mark.parametrize("limit", [[3, 3, 3, 3], [2, 2, 2, 2], [1, 2, 3, 2], [0, 2, 2, 2], [1] * 4])
@pytest.mark.parametrize("heat", [1.0, 0.2])
@pytest.mark.parametrize("seed", range(4))
def test_gradient_is_the_finite_difference_of_the_log_probability(limit, heat, seed):
    candidates, theta, rng = four_nodes(limit, seed)
    chosen, score = sampled(candidates, theta, heat, rng)
    step = 1e-5
    for f in range(len(FEATURES)):
        up, down = theta.copy(), theta.copy()
        up[f], down[f] = theta[f] + step, theta[f] - step
        rise = log_probability(candidates, up, heat, chosen) - log_probability(
            candidates, down, heat, chosen
        )
        assert score[f] / heat == pytest.approx(rise / (2 * step), abs=1e-5)


def test_the_score_has_mean_zero_over_its_own_draws():
    """True only if what is sampled is what the log-probability describes."""
    candidates, theta, rng = four_nodes([1, 2, 2, 3], 9)
    draws = np.array([sampled(candidates, 0.5 * theta, 0.7, rng)[1] for _ in range(6000)])
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(axis=0)) < 4 * error + 1e-12).all()
    assert draws.std(axis=0).min() > 0.1


def test_hopeless_pairs_do_not_break_the_score():
    candidates, _, rng = four_nodes([3] * 4, 0)
    theta = np.full(len(FEATURES), 1e4)
    assert np.isfinite(sampled(candidates, theta, 0.2, rng)[1]).all()


def test_nothing_to_draw_gives_no_gradient():
    candidates, theta, rng = four_nodes([0] * 4, 0)
    chosen, score = sampled(candidates, theta, 1.0, rng)
    assert len(chosen) == 0
    assert not score.any()


def test_pairs_are_taken_while_both_ends_are_below_their_limits():
    i, j = ints([0, 0, 1, 2]), ints([1, 2, 2, 3])
    chosen, closed = accept(i, j, ints([0, 1, 2, 3]), ints([1, 2, 2, 9]), 3)
    assert chosen.tolist() == [0, 2, 3]  # 0 - 2 is refused at 0
    assert closed.tolist() == [0, 1, 2, 3]
    assert accept(i, j, ints([0, 1, 2, 3]), ints([9] * 4), 2)[0].tolist() == [0, 1]


def test_repair_takes_the_cheapest_pairs_that_are_needed():
    i, j = map(ints, np.triu_indices(4, 1))  # 01 02 03 12 13 23
    cost = np.array([9.0, 3.0, 2.0, 1.0, 5.0, 8.0])
    assert with_connecting_pairs(4, i, j, cost, ints([0, 5])).tolist() == [0, 3, 5]
    assert with_connecting_pairs(4, i, j, cost, ints([0, 3, 5])).tolist() == [0, 3, 5]


@pytest.mark.parametrize("seed", range(30))
def test_graphs_are_connected_bounded_and_doubly_stochastic(seed):
    view = random_view(seed, (3, 6, 9, 14)[seed % 4])
    mechanism = L2PL(pretrain=2)
    plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
    check_plan(mechanism, plan, view)
    n = view.fleet.workers
    np.testing.assert_array_equal(
        components(n, plan.links.dst, plan.links.src), components(n, view.reach.dst, view.reach.src)
    )
    W = dense(plan.mixes[0], n)
    np.testing.assert_allclose(W, W.T)
    np.testing.assert_allclose(W.sum(axis=0), 1.0)
    assert plan.synchronous


@pytest.mark.parametrize(("degree", "budget"), [(2, np.inf), (3, np.inf), (5, 4.5), (5, 0.0)])
def test_degrees_and_budgets_bound_what_is_drawn(degree, budget):
    mechanism = L2PL(degree_max=degree, degree_mean=100.0, pretrain=0)
    for seed in range(10):
        view = everyone(9, seed, budget)
        candidates = mechanism._candidates(mechanism.init(view.fleet), view)
        order = view.rng("any").permutation(len(candidates.i))
        chosen, _ = accept(candidates.i, candidates.j, order, candidates.limit, candidates.target)
        use = np.bincount(np.append(candidates.i[chosen], candidates.j[chosen]), minlength=9)
        assert use.max(initial=0) <= min(degree, budget // 2 if np.isfinite(budget) else degree)
        plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
        if budget == 0:
            assert len(plan.links) == 16  # a spanning tree of repairs


def test_number_of_links_and_defaults():
    view = everyone(14)
    mechanism = L2PL(degree_max=13, pretrain=0)
    plan, _ = mechanism.plan(mechanism.init(view.fleet), view)
    assert 2 * 28 <= len(plan.links) <= 2 * 28 + 4  # N * 4 / 2 pairs, and a rare repair
    candidates = L2PL()._candidates(L2PL().init(view.fleet), view)
    assert candidates.limit.tolist() == [4] * 14
    assert L2PL()._temperature(replace(view, t=1)) == 1.0
    assert L2PL()._temperature(replace(view, t=101)) == pytest.approx(0.6)
    assert L2PL()._temperature(replace(view, t=900)) == pytest.approx(0.2)


def test_features_say_what_is_known_of_a_pair():
    view = replace(everyone(3), t=1)
    mechanism = L2PL(degree_mean=0.0, pretrain=0, labels=True)
    plan, memory = mechanism.plan(mechanism.init(view.fleet), view)
    distance = np.arange(1.0, 1.0 + len(plan.links))
    later = replace(view, t=6, last=outcome(plan, np.ones(len(distance)), distance=distance))
    memory = mechanism._learn(memory, later)
    candidates = mechanism._candidates(memory, later)
    used = plan.links.dst * 3 + plan.links.src
    for k, (i, j) in enumerate(zip(candidates.i, candidates.j, strict=True)):
        one, cost, gap, known, unused, labels = candidates.phi[k]
        was = i * 3 + j in used
        assert one == 1.0
        assert cost == candidates.cost_s[k] / candidates.cost_s.max()
        assert known == was
        assert unused == (5 / 20 if was else 1.0)
        assert (gap > 0) == was
        assert 0 <= labels <= 2
    assert candidates.phi[:, 2].max() == 1.0
    plain = L2PL(pretrain=0)
    assert not plain._candidates(plain.init(view.fleet), view).phi[:, 5].any()


def test_reward_and_update_by_hand():
    view = everyone(3)
    mechanism = L2PL(pretrain=0, rate=0.5)
    start = {**mechanism.init(view.fleet), "gradient": np.arange(6.0)}
    first = mechanism._reward(start, np.array([0.0, 2.0, 4.0]))
    assert first["baseline"] == pytest.approx(-1.0 - 0.2)  # nothing to compare with yet
    assert not first["theta"].any()
    second = mechanism._reward(first, np.array([-1.0, 6.0, 4.0]))
    reward = -1.0 / 0.5 - 6.0 / 4.0 - 0.2 * 1.0
    assert second["baseline"] == pytest.approx(0.9 * -1.2 + 0.1 * reward)
    np.testing.assert_allclose(second["theta"], 0.5 * (reward + 1.2) * np.arange(6.0))


def test_loss_drop_is_the_change_of_the_mean_loss():
    view = everyone(4)
    mechanism = L2PL(pretrain=0)
    plan, memory = mechanism.plan(mechanism.init(view.fleet), view)
    link_s = np.ones(len(plan.links))
    for loss, drop in [(2.0, 0.0), (1.5, 0.5), (np.nan, 0.5), (1.0, 0.5)]:  # a gap counts nothing
        memory = mechanism._learn(memory, replace(view, last=outcome(plan, link_s, loss=loss)))
        assert memory["sums"][0] == pytest.approx(drop)
    assert memory["count"] == 4


def test_practice_teaches_times_only():
    view = everyone(14)
    mechanism = L2PL(pretrain=200)
    memory = mechanism.init(view.fleet)
    after = mechanism._pretrain(memory, view, mechanism._candidates(memory, view))
    assert after["practised"]
    assert after["theta"][FEATURES.index("cost")] < -0.1
    assert after["theta"][FEATURES.index("distance")] == 0.0
    same_still = {k: v for k, v in after.items() if k not in ("theta", "practised")}
    assert same(same_still, {k: memory[k] for k in same_still})


def two_speeds(mechanism, n, slow_share, seed, fading):
    """Share of slow links in the first and the last 20 of 300 rounds; losses are never known."""
    view = replace(everyone(n, seed), remaining_s=np.zeros(n))
    dst, src = view.reach.dst, view.reach.src
    pair = np.minimum(dst, src) * n + np.maximum(dst, src)
    slow = stream(seed, "slow").random(n * n)[pair] < slow_share
    view = replace(view, link_s=np.where(slow, 10.0, 1.0))
    memory, shares = mechanism.init(view.fleet), []
    for t in range(1, 301):
        plan, memory = mechanism.plan(memory, replace(view, t=t))
        edge = view.reach.find(plan.links.dst, plan.links.src)
        fade = stream(seed, "fading", t).exponential(size=len(edge)) if fading else 1.0
        view = replace(view, last=outcome(plan, view.link_s[edge] * fade))
        shares.append(slow[edge].mean())
    return np.mean(shares[:20]), np.mean(shares[-20:])


@pytest.mark.parametrize("seed", range(6))
def test_it_learns_to_avoid_slow_links(seed):
    """Without fading the reward only tells whether any link was slow, so slow ones must be few."""
    first, last = two_speeds(L2PL(pretrain=0, degree_mean=2.0), 8, 0.2, seed, fading=False)
    assert first > 0.05
    assert last < first / 2


def test_it_learns_to_avoid_slow_links_through_fading():
    """Half of the links slow, and noisy rewards: on average over eight runs."""
    runs = [two_speeds(L2PL(pretrain=0), 16, 0.5, seed, fading=True) for seed in range(8)]
    first, last = np.mean(runs, axis=0)
    assert first > 0.4
    assert last < first / 2


def test_same_seed_same_graphs():
    def run(seed):
        view, mechanism = everyone(9, seed), L2PL(pretrain=3)
        memory, plans = mechanism.init(view.fleet), []
        for t in range(1, 12):
            plan, memory = mechanism.plan(memory, replace(view, t=t))
            view = replace(view, last=outcome(plan, np.ones(len(plan.links)), loss=1 / t))
            plans.append(plan.links)
        return plans, memory

    assert same(run(1), run(1))
    assert not same(run(1)[0], run(2)[0])


def test_used_pairs_are_remembered_by_round():
    view = replace(everyone(5), t=7)
    mechanism = L2PL(pretrain=0, degree_mean=0.0)
    plan, memory = mechanism.plan(mechanism.init(view.fleet), view)
    low = plan.links.dst < plan.links.src
    keys = plan.links.dst[low] * 5 + plan.links.src[low]
    assert recall(memory["used"], keys).tolist() == [7.0] * 4
    assert len(memory["used"]["keys"]) == 4


@pytest.mark.parametrize("timing", ["paper", "overlap"])
@pytest.mark.parametrize("publish", ["eager", "on_completion"])
def test_it_survives_everything_at_once(timing, publish):
    engine = EngineParams(timing=timing, publish=publish)
    _, state = check_unstable_run(L2PL(pretrain=5), engine, world=UNSTABLE_WORLD)
    assert state.control.memory["theta"].any()
    assert len(state.control.memory["gap"]["keys"]) > 5
