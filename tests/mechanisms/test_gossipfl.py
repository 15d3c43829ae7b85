"""GossipFL: matchings, the window that keeps them connected, the shared mask."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.plan_check import check_plan
from dystop.control.stopping import Stop
from dystop.mechanisms import GossipFL
from dystop.mechanisms.graphs.undirected import is_connected
from dystop.rng import stream
from dystop.simulator.params import EngineParams
from dystop.sparse import ints
from dystop.world import Outages
from support.contraction import complete_views, contraction, mixed_by
from support.engine_fixtures import STABLE_WORLD, AddingTrainer, components_for, run_to_end
from support.strategies import dense, random_view, two_way
from support.unstable_world import UNSTABLE_WORLD


def fresh(mechanism, view):
    return mechanism.plan(mechanism.init(view.fleet), view)


@pytest.mark.parametrize(("keep", "value"), [(1.0, 0.46154), (0.1, 0.94615)])
@pytest.mark.parametrize("window", [3, 6])
def test_contraction_meets_its_closed_form(keep, value, window):
    n = 14
    assert 1 - keep * n / (2 * (n - 1)) == pytest.approx(value, abs=5e-6)
    mechanism = GossipFL(keep=keep, window=window)
    assert contraction(mechanism, complete_views(n), rounds=500) == pytest.approx(value, rel=0.02)


@pytest.mark.parametrize("n", [1, 2, 3, 6, 7, 14])
def test_everyone_has_at_most_one_peer(n):
    view = complete_views(n)(1)
    plan, _ = fresh(GossipFL(), view)
    check_plan(GossipFL(), plan, view)
    assert len(plan.links) == 2 * (n // 2)
    assert np.bincount(plan.links.dst, minlength=n).max() <= 1
    back = set(zip(plan.links.src.tolist(), plan.links.dst.tolist(), strict=True))
    assert set(zip(plan.links.dst.tolist(), plan.links.src.tolist(), strict=True)) == back
    assert (plan.links.fraction == 0.1).all()
    assert plan.synchronous
    assert plan.active.tolist() == list(range(n))
    W = dense(plan.mixes[0], n)
    np.testing.assert_allclose(W, W.T)
    np.testing.assert_allclose(W.sum(axis=0), 1.0)
    np.testing.assert_allclose(W @ W, W)  # a frozen pairing mixed twice changes nothing


def test_mean_is_kept_on_every_coordinate_and_only_the_mask_changes():
    view = complete_views(9)(4)
    plan, _ = fresh(GossipFL(keep=0.3), view)
    before = stream(1, "models").normal(size=(9, 400))
    after = mixed_by(plan, before)
    np.testing.assert_allclose(after.mean(axis=0), before.mean(axis=0))
    moved = (after != before).any(axis=0)
    assert 0.2 < moved.mean() < 0.4
    again = mixed_by(plan, after)
    np.testing.assert_allclose(again, after)


def test_mask_is_new_in_every_round():
    views = complete_views(4)
    masks = [fresh(GossipFL(), views(t))[0].mixes[0].mask for t in (1, 1, 2)]
    assert masks[0] == masks[1] != masks[2]


def chance_of_two(n):
    """That the union of two uniform pairings of n workers is connected."""
    k = np.arange(1, n // 2)
    return np.prod(2 * k / (2 * k + 1))


def test_two_first_pairings_connect_everyone_as_often_as_uniform_ones():
    assert chance_of_two(14) == pytest.approx(0.341, abs=5e-4)
    assert chance_of_two(100) == pytest.approx(0.126, abs=5e-4)
    n, tries, hits = 14, 700, 0
    drawn = [fresh(GossipFL(), complete_views(n)(t))[0].links for t in range(1, 2 * tries + 1)]
    for a, b in zip(drawn[::2], drawn[1::2], strict=True):
        dst, src = np.append(a.dst, b.dst), np.append(a.src, b.src)
        hits += is_connected(n, dst, src, np.arange(n))
    assert hits / tries == pytest.approx(chance_of_two(n), abs=0.055)


def remembered(pairs, t):
    i, j = ints(pairs).reshape(-1, 2).T
    return {"i": i, "j": j, "round": np.full(len(i), t)}


RING = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (0, 5)]


def paired(plan):
    low = plan.links.dst < plan.links.src
    return set(zip(plan.links.dst[low].tolist(), plan.links.src[low].tolist(), strict=True))


def test_recent_pairs_are_avoided_until_they_connect_everyone():
    old, avoid, again = set(RING[:4]), set(), set()
    for t in range(10, 60):
        view = complete_views(6)(t)
        plan, _ = GossipFL().plan(remembered(RING[:4], t - 2), view)  # worker 5 is apart
        assert plan.notes["united"] == 0
        avoid |= paired(plan)
        plan, _ = GossipFL().plan(remembered(RING, t - 3), view)  # out of the window
        assert plan.notes["united"] == 0
        again |= paired(plan)
    assert not avoid & old
    assert again >= old


def test_fast_pairs_are_taken_once_everyone_is_connected():
    view = complete_views(6)(10)
    fast = {(0, 3), (1, 4), (2, 5)}
    both = fast | {(b, a) for a, b in fast}
    pair = list(zip(view.reach.dst.tolist(), view.reach.src.tolist(), strict=True))
    link_s = np.array([0.5 if p in both else 1.0 + 0.01 * k for k, p in enumerate(pair)])
    plan, _ = GossipFL(bandwidth_quantile=0.8).plan(
        remembered(RING, 9), replace(view, link_s=link_s)
    )
    assert plan.notes["united"] == 1
    assert paired(plan) == fast


def test_bandwidth_is_that_of_the_slower_direction():
    view = complete_views(4)(10)
    link_s = np.ones(12)
    link_s[view.reach.find(ints([0, 1]), ints([1, 0]))] = 0.1, 9.0  # fast one way only
    link_s[view.reach.find(ints([0, 2]), ints([2, 0]))] = 0.5, 0.5
    ring = [(0, 1), (1, 2), (2, 3), (0, 3)]
    mechanism = GossipFL(bandwidth_quantile=0.8)
    plan, _ = mechanism.plan(remembered(ring, 9), replace(view, link_s=link_s))
    assert paired(plan) == {(0, 2), (1, 3)}


def test_equal_links_leave_no_fast_ones_and_everyone_is_matched_all_the_same():
    view = complete_views(6)(10)
    plan, _ = GossipFL().plan(remembered(RING, 9), replace(view, link_s=np.ones(30)))
    assert plan.notes["united"] == 1
    assert len(paired(plan)) == 3


def test_matching_is_as_large_as_the_reach_allows():
    """A path of four has one perfect matching; a star can serve one leaf only."""
    view = complete_views(4)(1)
    path, star = {(0, 1), (1, 2), (2, 3)}, {(0, 1), (0, 2), (0, 3)}
    for t in range(1, 20):
        for edges, size in ((path, 2), (star, 1)):
            here = replace(view, t=t, reach=two_way(4, edges), link_s=np.ones(6))
            plan, _ = fresh(GossipFL(), here)
            check_plan(GossipFL(), plan, here)
            assert len(paired(plan)) == size
            assert paired(plan) <= edges


def test_a_split_reach_graph_counts_as_connected_piece_by_piece():
    view = complete_views(4)(10)
    view = replace(view, reach=two_way(4, {(0, 1), (2, 3)}), link_s=np.ones(4))
    plan, _ = GossipFL().plan(remembered([(0, 1), (2, 3)], 9), view)
    assert plan.notes["united"] == 1


def test_pairs_through_absent_workers_do_not_connect():
    view = complete_views(3)(10)
    gone = replace(
        view,
        alive=np.array([True, False, True]),
        reach=two_way(3, {(0, 2)}),
        link_s=np.ones(2),
    )
    plan, _ = GossipFL().plan(remembered([(0, 1), (1, 2)], 9), gone)
    assert plan.notes["united"] == 0
    assert plan.active.tolist() == [0, 2]
    assert paired(plan) == {(0, 2)}


def test_memory_holds_the_window_only():
    mechanism, views = GossipFL(window=3), complete_views(14)
    memory = mechanism.init(views(1).fleet)
    for t in range(1, 12):
        _, memory = mechanism.plan(memory, views(t))
    assert sorted(set(memory["round"].tolist())) == [9, 10, 11]
    assert len(memory["i"]) == 3 * 7


def test_wide_windows_come_to_use_the_bandwidth():
    share = []
    for window in (2, 8):
        mechanism, views = GossipFL(window=window), complete_views(14)
        memory, united = mechanism.init(views(1).fleet), 0.0
        for t in range(1, 61):
            plan, memory = mechanism.plan(memory, views(t))
            united += plan.notes["united"]
        share.append(united / 60)
    assert share[0] == 0.0  # one pairing never connects more than two
    assert share[1] > 0.3


def test_own_number_of_steps():
    view = complete_views(5)(1)
    assert fresh(GossipFL(), view)[0].steps is None
    assert fresh(GossipFL(steps=3), view)[0].steps.tolist() == [3] * 5


def test_bytes_of_a_round():
    records, _ = run_to_end(components_for(GossipFL(keep=0.25), 7, stop=Stop(rounds=4)))
    assert all(r.wire_bytes == 2 * 3 * 10_000 for r in records)


def test_mean_is_kept_when_exchanges_fail():
    shaky = replace(STABLE_WORLD, outages=Outages(loss=0.4))
    trainer = AddingTrainer(width=20)
    components = components_for(
        GossipFL(keep=0.5), 6, params=shaky, stop=Stop(rounds=8), trainer=trainer
    )
    records, state = run_to_end(components)
    assert sum(r.lost for r in records) > 3
    total = sum(worker + 1 for worker, *_ in trainer.log)
    np.testing.assert_allclose(state.models.latest.numpy().sum(axis=0), total, rtol=1e-5)


@pytest.mark.parametrize("timing", ["paper", "overlap"])
def test_runs_through_churn_mobility_and_losses(timing):
    area = np.random.default_rng(1).random((9, 2)) * 100
    engine = EngineParams(timing=timing, publish="on_completion")
    components = components_for(
        GossipFL(), 9, params=UNSTABLE_WORLD, position=area, stop=Stop(rounds=40), engine=engine
    )
    records, state = run_to_end(components)
    assert len(records) == 40
    assert min(r.alive for r in records) < 9
    assert {r.notes["united"] for r in records} <= {0.0, 1.0}
    assert np.isfinite(state.models.latest.numpy()).all()


def test_whole_models_between_two_workers_are_plain_averages():
    view = random_view(0, 2, shape="complete", all_alive=True)
    plan, _ = fresh(GossipFL(keep=1.0), view)
    np.testing.assert_allclose(dense(plan.mixes[0], 2), 0.5)
