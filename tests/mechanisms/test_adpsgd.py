"""AD-PSGD: one pair at a time, the neighbour mixed while it trains."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.plan_check import check_plan
from dystop.control.stopping import Stop
from dystop.mechanisms import ADPSGD
from dystop.simulator.params import EngineParams
from dystop.sparse import graph_of, ints
from dystop.world import Churn, Compute, Outages
from support.contraction import complete_views, contraction
from support.engine_fixtures import STABLE_WORLD, components_for, run_to_end, weights
from support.strategies import dense, random_view
from support.unstable_world import UNSTABLE_WORLD


@pytest.mark.parametrize(("n", "rounds"), [(2, 20), (3, 2000), (14, 3000)])
def test_one_event_contracts_as_its_closed_form_says(n, rounds):
    value = contraction(ADPSGD(), complete_views(n), rounds=rounds)
    assert value == pytest.approx(1 - 1 / (n - 1), rel=0.02, abs=1e-12)


def test_the_first_to_finish_averages_with_one_neighbour_both_ways():
    view = random_view(3, 6, shape="complete", all_alive=True)
    view = replace(view, remaining_s=np.array([3.0, 2.0, 0.5, 1.0, 4.0, 5.0]))
    plan, _ = ADPSGD().plan({}, view)
    check_plan(ADPSGD(), plan, view)
    assert plan.active.tolist() == [2]
    assert not plan.synchronous
    pull, push = zip(plan.links.dst.tolist(), plan.links.src.tolist(), strict=True)
    assert pull == push[::-1]
    assert pull[0] == 2
    assert plan.links.pushed.tolist() == [False, True]  # the caller pays for both
    W = dense(plan.mixes[0], 6)
    i, j = pull
    assert W[i, i] == W[i, j] == W[j, i] == W[j, j] == 0.5
    np.testing.assert_allclose(W, W.T)
    np.testing.assert_allclose(W.sum(axis=0), 1.0)


def test_ties_go_to_the_most_stale_then_to_the_lowest_id():
    view = random_view(3, 4, shape="complete", all_alive=True)
    view = replace(view, remaining_s=np.zeros(4), staleness=ints([1, 2, 5, 5]))
    assert ADPSGD().plan({}, view)[0].active.tolist() == [2]
    view = replace(view, remaining_s=np.array([0.0, 0.0, 1.0, 1.0]))
    assert ADPSGD().plan({}, view)[0].active.tolist() == [1]


def test_everyone_has_a_turn_where_exchanges_are_slow():
    """Training takes no time at all here, so that all workers have always finished."""
    quick = replace(STABLE_WORLD, compute=Compute(batch_s=1e-6, spread=0.0))
    _, state = run_to_end(components_for(ADPSGD(), 5, params=quick, stop=Stop(rounds=50)))
    assert state.control.version.tolist() == [10] * 5


def test_neighbours_are_drawn_uniformly_in_range():
    view = random_view(7, 9, shape="sparse", all_alive=True)
    caller = int(np.argmax(view.reach.degree))
    remaining = np.ones(9)
    remaining[caller] = 0.0
    draws = []
    for t in range(1, 1501):
        plan, _ = ADPSGD().plan({}, replace(view, t=t, remaining_s=remaining))
        draws.append(int(plan.links.src[0]))
    peers = view.reach.row(caller)
    assert set(draws) == set(peers.tolist())
    np.testing.assert_allclose(np.bincount(draws)[peers] / 1500, 1 / len(peers), atol=0.04)


def test_neighbours_that_do_not_hear_back_are_left_alone():
    view = random_view(3, 3, shape="complete", all_alive=True)
    view = replace(view, remaining_s=np.array([0.0, 1.0, 1.0]))
    one_way = graph_of(3, ints([0, 0, 2]), ints([1, 2, 0]))
    plan, _ = ADPSGD().plan({}, replace(view, reach=one_way, link_s=np.ones(3)))
    assert plan.links.src.tolist() == [2, 0]
    deaf = graph_of(3, ints([0]), ints([1]))
    plan, _ = ADPSGD().plan({}, replace(view, reach=deaf, link_s=np.ones(1)))
    assert plan.active.tolist() == [0]
    assert len(plan.links) == 0
    assert plan.mixes[0].weight.tolist() == [1.0]


@pytest.mark.parametrize(
    ("publish", "after"),
    [
        ("eager", [1.5 + 1, 1.5]),  # both mean of 1 and 2, then worker 0 trains
        ("on_completion", [0.5 + 1, 0.5 + 2]),  # 1 publishes 0; its update of 2 comes on top
    ],
)
def test_update_in_flight_is_added_to_the_mean(publish, after):
    """Worker 1 needs three times as long, so that it is busy when worker 0 calls."""
    components = components_for(
        ADPSGD(), 2, stop=Stop(rounds=1), engine=EngineParams(publish=publish)
    )
    components = replace(components, steps=ints([1, 3]))
    _, state = run_to_end(components)
    assert weights(state) == after


def test_two_models_on_the_wire_and_the_mean_kept_when_one_is_lost():
    shaky = replace(STABLE_WORLD, outages=Outages(loss=0.5))
    components = components_for(ADPSGD(), 6, params=shaky, stop=Stop(rounds=30))
    records, state = run_to_end(components)
    assert all(r.wire_bytes == 2 * 40_000 for r in records)
    assert sum(r.lost for r in records) > 5
    total = sum(worker + 1 for worker, *_ in components.trainer.log)
    assert sum(weights(state)) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("timing", ["paper", "overlap"])
@pytest.mark.parametrize("publish", ["eager", "on_completion"])
def test_runs_through_churn_mobility_and_losses(timing, publish):
    area = np.random.default_rng(1).random((9, 2)) * 100
    engine = EngineParams(timing=timing, publish=publish)
    frequent_churn = replace(
        UNSTABLE_WORLD, churn=Churn(enabled=True, mean_up_s=1.0, mean_down_s=0.2)
    )
    components = components_for(
        ADPSGD(), 9, params=frequent_churn, position=area, stop=Stop(rounds=80), engine=engine
    )
    records, state = run_to_end(components)
    assert len(records) == 80
    assert all(r.active == 1 for r in records)
    assert min(r.alive for r in records) < 9
    assert np.isfinite(state.models.latest.numpy()).all()
