"""FedAsync: the weight of a model, the served worker, and staleness."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.plan_check import check_plan
from dystop.control.stopping import Stop
from dystop.mechanisms import FedAsync
from dystop.mechanisms.shared.server import first_to_finish, in_reach_of_server
from dystop.simulator.params import EngineParams
from dystop.sparse import graph_of, ints
from dystop.world import Outages
from support.engine_fixtures import STABLE_WORLD, components_for, run_to_end, weights
from support.strategies import dense, random_view
from support.unstable_world import ENGINES, check_unstable_run


def plan_of(mechanism, view, memory=None):
    plan, after = mechanism.plan(memory or mechanism.init(view.fleet), view)
    check_plan(mechanism, plan, view)
    return plan, after


@pytest.mark.parametrize(
    ("mechanism", "behind", "share"),
    [
        (FedAsync(share=0.6, decay="polynomial", exponent=0.5), 3, 0.30),
        (FedAsync(share=0.6, decay="hinge", slope=10.0, limit=4), 6, 0.6 / 21),
        (FedAsync(share=0.6, decay="hinge", slope=10.0, limit=4), 4, 0.6),
        (FedAsync(share=0.6, decay="constant"), 99, 0.6),
        (FedAsync(), 0, 0.6),
    ],
)
def test_oracles(mechanism, behind, share):
    assert mechanism.share_of(behind) == pytest.approx(share, abs=1e-12)
    view = replace(random_view(1, 4, server=True, all_alive=True), last=None)
    memory = {"updates": 10 + behind, "seen": np.full(4, 10)}
    plan, _ = plan_of(mechanism, view, memory)
    i = int(plan.active[0])
    W = dense(plan.mixes[0], 5)
    assert W[4, i] == pytest.approx(share)
    assert W[4, 4] == pytest.approx(1 - share)
    assert plan.notes == {"share": pytest.approx(share), "updates_behind": behind}


def test_one_model_up_and_one_down():
    view = random_view(6, 3, server=True, all_alive=True)
    plan, _ = plan_of(FedAsync(), view)
    i = int(plan.active[0])
    assert list(zip(plan.links.dst, plan.links.src, plan.links.stage, strict=True)) == [
        (3, i, 0),
        (i, 3, 1),
    ]
    assert plan.links.pushed.tolist() == [True, False]
    assert dense(plan.mixes[1], 4)[i].tolist() == [0, 0, 0, 1]


def test_who_stands_in_line_longest_goes_first():
    """Finished workers are told apart by staleness, or the low ids would keep the others out."""
    remaining, staleness = np.array([0.0, 0.0, 0.0, 1.0]), ints([0, 5, 5, 9])
    order = [first_to_finish(np.arange(4), remaining, staleness, k).tolist() for k in range(1, 5)]
    assert order == [[1], [1, 2], [0, 1, 2], [0, 1, 2, 3]]


def test_both_directions_are_needed():
    view = random_view(1, 3, server=True, all_alive=True)
    reach = graph_of(4, ints([3, 3, 0, 2]), ints([0, 1, 3, 3]))  # 1 is not heard back, 2 is deaf
    assert in_reach_of_server(replace(view, reach=reach)).tolist() == [0]


@pytest.mark.parametrize("n", [1, 4])
def test_a_round_in_which_nobody_reaches_the_server(n):
    view = random_view(2, n, server=True, all_alive=True)
    none = graph_of(n + 1, ints([]), ints([]))
    plan, _ = plan_of(FedAsync(), replace(view, reach=none, link_s=np.zeros(0)))
    assert len(plan.active) == 1
    assert len(plan.links) == 0


def test_two_rounds_by_hand():
    """Constant share 1/2. Server 0; 0 brings 1; 1, one update behind, brings 2."""
    mechanism = FedAsync(share=0.5, decay="constant")
    records, state = run_to_end(
        components_for(mechanism, 2, stop=Stop(rounds=2), steps=ints([3, 4]))
    )
    assert [r.get("active_ids") for r in records] == [[0], [1]]
    assert [r.notes["updates_behind"] for r in records] == [0.0, 1.0]
    assert weights(state) == [0.5 + 1, 1.25 + 2, 1.25]


@pytest.mark.parametrize("timing", ["paper", "overlap"])
def test_the_upload_is_the_model_that_has_just_been_trained(timing):
    """Also where a busy worker would hand out its last finished model."""
    mechanism = FedAsync(share=1.0, decay="constant")
    engine = EngineParams(timing, "on_completion")
    steps = ints([3, 4, 7])
    components = components_for(mechanism, 3, stop=Stop(rounds=100), engine=engine, steps=steps)
    records, state = run_to_end(components)
    carried = 0.0  # each worker adds its number to what it downloaded
    had = np.zeros(3)
    for record in records:
        i = record.get("active_ids")[0]
        carried = had[i] + i + 1
        had[i] = carried
    assert weights(state)[3] == carried
    assert {r.get("active_ids")[0] for r in records} == {0, 1, 2}


def test_nobody_is_kept_out_where_talking_takes_longer_than_training():
    components = components_for(FedAsync(), 6, stop=Stop(rounds=60), steps=ints(np.ones(6)))
    far = np.stack([np.full(6, 900.0), np.arange(6.0)], axis=1)
    records, _ = run_to_end(
        replace(components, world=components_for(FedAsync(), 6, position=far).world)
    )
    served = np.bincount([r.get("active_ids")[0] for r in records], minlength=6)
    assert served.tolist() == [10] * 6


def test_staleness_counts_updates_of_the_server():
    """In a calm network everybody is served in turn: all are n - 1 updates behind."""
    records, _ = run_to_end(components_for(FedAsync(), 5, stop=Stop(rounds=30)))
    assert [r.notes["updates_behind"] for r in records[:5]] == [0, 1, 2, 3, 4]
    assert {r.notes["updates_behind"] for r in records[5:]} == {4.0}
    assert records[-1].notes["share"] == pytest.approx(0.6 / np.sqrt(5))


def test_what_is_lost_is_not_counted():
    deaf = replace(STABLE_WORLD, outages=Outages(loss=1.0))
    records, state = run_to_end(components_for(FedAsync(), 3, params=deaf, stop=Stop(rounds=9)))
    assert state.control.memory["updates"] == 0
    assert all(r.notes["updates_behind"] == 0 for r in records)
    assert weights(state)[3] == 0.0


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_survives_everything_at_once(engine):
    records, state = check_unstable_run(FedAsync(), engine)
    assert all(r.active == 1 for r in records)
    assert 0 < state.control.memory["updates"] <= 60
