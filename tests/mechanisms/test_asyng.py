"""AsyNG: selection of receivers, updates in mailboxes, and no lost update."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from dystop.control.priority import emd, label_shares
from dystop.control.stopping import Stop
from dystop.mechanisms import AsyDFL, AsyNG
from dystop.mechanisms.asyng import half_way
from dystop.simulator.params import EngineParams
from dystop.sparse import ints
from dystop.training.problem import Trained
from support.checked_plans import one_active, plan_of
from support.engine_fixtures import AddingTrainer, components_for, run_to_end, weights
from support.strategies import dense, random_view
from support.unstable_world import ENGINES, check_unstable_run

SEEDS = range(30)


@pytest.mark.parametrize("seed", SEEDS)
def test_few_links_and_all_leave_the_first_to_finish(seed):
    view, first = one_active(seed)
    plan = plan_of(AsyNG(fanout=3), view)
    assert plan.active.tolist() == [first]
    assert (plan.links.src == first).all()
    assert len(plan.links) <= min(3, view.budget[first])
    assert plan.links.pushed.all()
    assert plan.links.delta.all()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_ends_of_the_trade_off(lam, seed):
    view, first = one_active(seed, budget=np.inf)
    mine = np.flatnonzero(view.reach.src == first)
    dst = view.reach.dst[mine]
    gap = emd(label_shares(view.fleet.label_counts), dst, np.full(len(dst), first))
    score = -gap if lam else view.link_s[mine]
    best = dst[np.lexsort((dst, score))][:3]
    plan = plan_of(AsyNG(lam=lam, nu=0.0, fanout=3), view)
    assert plan.links.dst.tolist() == sorted(best.tolist())


def test_rarely_told_receivers_get_their_turn():
    view, _ = one_active(0, 6, shape="complete", all_alive=True, budget=np.inf)
    mechanism = AsyNG(nu=100.0, fanout=1)
    memory, told = mechanism.init(view.fleet), []
    for t in range(1, 11):
        plan, memory = mechanism.plan(memory, replace(view, t=t))
        told += plan.links.dst.tolist()
    assert len(set(told[:5])) == len(set(told[5:])) == 5
    assert memory["pushes"].tolist() == [2] * 5


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_of_updates(seed):
    view, first = one_active(seed)
    rows = plan_of(AsyNG(gamma=0.5), view).mixes[0]
    size, senders = view.fleet.data_size, view.mailbox.of(first)
    total = size[first] + size[senders].sum()
    assert rows.kind == "delta"
    wanted = {int(j): 0.5 * size[j] / total for j in senders} | {first: 1.0}
    assert dict(zip(rows.source.tolist(), rows.weight.tolist(), strict=True)) == pytest.approx(
        wanted
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_asydfl_with_updates_differs_in_the_priority_only(seed):
    """Where both rank by labels alone, or everyone is told, the plans agree."""
    view, _ = one_active(seed)
    ng, dfl = (
        plan_of(AsyNG(lam=1, nu=0), view),
        plan_of(AsyDFL(payload="delta", lam_start=1.0, lam_end=1.0), view),
    )
    assert ng.links.dst.tolist() == dfl.links.dst.tolist()
    np.testing.assert_array_equal(ng.mixes[0].weight, dfl.mixes[0].weight)


@dataclass
class Once(AddingTrainer):
    """Only the first training of a worker changes anything."""

    def train(self, models, counters, workers, versions, steps, rates=None):
        trained = super().train(models, counters, workers, versions, steps, rates)
        first = torch.from_numpy(np.asarray(versions) == 0)
        moved = torch.where(first[:, None], trained.models, models)
        return Trained(moved, trained.counters, trained.loss, trained.samples)


@pytest.mark.parametrize("engine", ENGINES[:4], ids=str)
@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("tie", [False, True])
def test_every_update_is_applied_exactly_once(n, background, engine, tie):
    """Equal starts, everybody told, full weights: once the mail is read, all models are equal.

    Under the law `testbed` a worker may push twice before its mail is read; a mailbox keeps the
    newest message of a sender.
    """
    mechanism = AsyNG(fanout=max(n - 1, 1), weights="full", background=background)
    steps = ints(np.full(n, 10)) if tie else ints(10 + np.arange(n))
    components = components_for(mechanism, n, trainer=Once(), steps=steps, engine=engine)
    records, state = run_to_end(replace(components, stop=Stop(rounds=4 * n)))
    assert records[0].active == (n if tie else 1)
    assert weights(state) == [n * (n + 1) / 2] * n


def test_without_the_pushes_models_stay_apart():
    components = components_for(AsyNG(fanout=0), 3, trainer=Once(), stop=Stop(rounds=6))
    assert weights(run_to_end(components)[1]) == [1.0, 2.0, 3.0]


def test_resync_sends_every_second_time_the_model():
    view, first = one_active(0, 6, shape="complete", all_alive=True, budget=np.inf)
    mechanism = AsyNG(resync=2)
    for version in range(4):
        plan = plan_of(mechanism, replace(view, version=np.full(6, version)))
        assert len(plan.links) == 3
        assert (plan.links.delta == ((version + 1) % 2 != 0)).all()
    assert plan.links.src.tolist() == [first] * 3


def test_resync_gives_half_of_the_weight_to_the_models_in_the_mail():
    W = dense(half_way(ints([0, 0, 2]), ints([1, 2, 1])), 3)
    assert W.tolist() == [[0.5, 0.25, 0.25], [0, 1, 0], [0, 0.5, 0.5]]


def test_resync_bounds_the_drift():
    """Alone, updates never bring models together again; sending models does."""

    def spread(resync):
        mechanism = AsyNG(fanout=1, gamma=0.0, resync=resync)
        components = components_for(
            mechanism, 4, stop=Stop(rounds=200), steps=ints([10, 11, 12, 13])
        )
        return np.ptp(weights(run_to_end(components)[1]))

    assert spread(1) < spread(3) < spread(0)


def test_resync_in_the_engine_by_hand():
    """Both tie; every push carries a model: 2 and 1 meet in the middle, then train."""
    components = components_for(AsyNG(resync=1), 2, stop=Stop(rounds=2), engine=EngineParams())
    assert weights(run_to_end(components)[1]) == [(2 + 2) / 2 + 1, (4 + 1) / 2 + 2]


@pytest.mark.parametrize("engine", ENGINES, ids=str)
@pytest.mark.parametrize(
    "mechanism", [AsyNG(), AsyNG(resync=3, background=True)], ids=["plain", "resync"]
)
def test_survives_everything_at_once(mechanism, engine):
    records, _ = check_unstable_run(mechanism, engine)
    assert sum(r.links for r in records) > 0


def test_a_worker_without_neighbours_trains_on():
    plan = plan_of(AsyNG(), random_view(0, 1, shape="empty"))
    assert len(plan.links) == 0
    assert plan.mixes[-1].weight.tolist() == [1.0]
