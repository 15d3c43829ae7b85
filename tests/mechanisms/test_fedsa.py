"""FedSA: the first K arrivals, their share, and FedAvg as its limit."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.stopping import Stop
from dystop.mechanisms import FedAsync, FedAvg, FedSA
from dystop.sparse import graph_of, ints
from support.checked_plans import plan_of
from support.engine_fixtures import components_for, run_to_end, weights
from support.strategies import dense, random_view, same
from support.unstable_world import ENGINES, check_unstable_run


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (3, 1), (9, 4), (10, 5)])
def test_half_of_the_workers_by_default(n, k):
    view = random_view(3, n, server=True, all_alive=True)
    plan = plan_of(FedSA(), view)
    assert len(plan.active) == k
    assert len(plan.links) == 2 * k


@pytest.mark.parametrize("seed", range(20))
def test_the_first_to_finish_are_averaged_by_data_size(seed):
    view = random_view(seed, 9, server=True)
    remaining_s = np.random.default_rng(seed).random(9)
    view = replace(view, remaining_s=remaining_s)
    plan = plan_of(FedSA(arrivals=3), view)
    alive = np.flatnonzero(view.alive)
    first = np.sort(alive[np.argsort(remaining_s[alive])][:3])
    assert plan.active.tolist() == first.tolist()
    size = view.fleet.data_size
    share = size[first].sum() / size.sum()
    W = dense(plan.mixes[0], 10)
    np.testing.assert_allclose(W[9, first], size[first] / size.sum())
    assert W[9, 9] == pytest.approx(1 - share)
    assert plan.notes["share"] == pytest.approx(share)


def test_a_share_of_ones_own():
    view = random_view(1, 6, server=True, all_alive=True)
    W = dense(plan_of(FedSA(arrivals=2, server_share=0.25), view).mixes[0], 7)
    assert W[6, 6] == 0.75
    assert W[6, :6].sum() == pytest.approx(0.25)


@pytest.mark.parametrize("seed", range(10))
def test_waiting_for_everybody_is_fedavg(seed):
    n = 1 + seed % 7
    view = random_view(seed, n, server=True, all_alive=True)
    semi, full = plan_of(FedSA(arrivals=n), view), plan_of(FedAvg(), view)
    assert same(semi.links, full.links)
    assert semi.active.tolist() == full.active.tolist()
    scalars = np.arange(n + 1.0)
    ends = []
    for plan in (semi, full):
        up, down = (dense(mix, n + 1) for mix in plan.mixes)
        ends.append(down @ up @ scalars)
    np.testing.assert_allclose(*ends)


def test_waiting_for_one_with_a_fixed_share_is_constant_fedasync():
    view = random_view(5, 6, server=True)
    one = plan_of(FedSA(arrivals=1, server_share=0.6), view)
    other = plan_of(FedAsync(decay="constant"), view)
    assert same(replace(one, notes={}), replace(other, notes={}))


def test_others_keep_training():
    """Steps 10, 10 and 30: the slow one arrives when it is done and is not waited for before."""
    components = components_for(FedSA(arrivals=2), 3, stop=Stop(rounds=3), steps=ints([10, 10, 30]))
    records, state = run_to_end(components)
    assert [r.get("active_ids") for r in records[:2]] == [[0, 1], [0, 1]]
    assert records[0].duration_s < 11
    assert state.control.version[2] <= 1
    # (1 + 2) / 3 of the first two and 1/3 of the server's zero
    assert weights(run_to_end(replace(components, stop=Stop(rounds=1)))[1]) == [2.0, 3.0, 3.0, 1.0]


@pytest.mark.parametrize("n", [1, 4])
def test_a_round_in_which_nobody_reaches_the_server(n):
    view = random_view(2, n, server=True, all_alive=True)
    none = graph_of(n + 1, ints([]), ints([]))
    plan = plan_of(FedSA(), replace(view, reach=none, link_s=np.zeros(0)))
    assert len(plan.active) == max(1, n // 2)
    assert len(plan.links) == 0


@pytest.mark.parametrize("engine", ENGINES, ids=str)
def test_survives_everything_at_once(engine):
    records, _ = check_unstable_run(FedSA(), engine)
    assert max(r.active for r in records) == 4
