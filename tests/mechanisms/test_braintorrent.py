"""BrainTorrent: all-to-all equals FedAvg without a server; the original pulls newer models."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import dystop
from dystop.control.plan_check import check_plan
from dystop.control.stopping import Stop
from dystop.mechanisms import DPSGD, BrainTorrent, FedAvg
from dystop.simulator.params import EngineParams
from dystop.sparse import ints
from dystop.types import Capabilities
from dystop.world import Outages
from support.contraction import complete_views, contraction
from support.engine_fixtures import STABLE_WORLD, AddingTrainer, components_for, run_to_end
from support.strategies import dense, random_fleet, random_view
from support.unstable_world import UNSTABLE_WORLD, check_unstable_run

ORIGINAL = BrainTorrent(variant="original")


@dataclass
class Bender(AddingTrainer):
    """A training whose result depends on every bit of the model it starts from."""

    def train(self, models, counters, workers, versions, steps, rates=None):
        trained = super().train(models, counters, workers, versions, steps, rates)
        bend = torch.sin(models + torch.arange(models.shape[1]))
        return replace(trained, models=trained.models + bend)


def uneven(mechanism, n=6):
    """Parts with unequal amounts of data, models of several weights, and bent training."""
    components = components_for(
        mechanism, n, stop=Stop(rounds=7), trainer=Bender(width=33, gain=0.1)
    )
    return replace(
        components, fleet=replace(components.fleet, data_size=ints(3 + 5 * np.arange(n)))
    )


def test_everyone_exchanges_with_everyone_in_reach():
    view = random_view(2, 6, shape="islands", all_alive=True)
    plan, _ = BrainTorrent().plan({}, view)
    check_plan(BrainTorrent(), plan, view)
    assert plan.synchronous
    assert not plan.join
    assert len(plan.links) == 2 * 3 * 2
    half = view.fleet.data_size[:3]
    np.testing.assert_allclose(dense(plan.mixes[0], 6)[1, :3], half / half.sum())


@pytest.mark.parametrize("n", [1, 2, 3, 9])
def test_full_reach_leaves_all_models_identical(n):
    view = random_view(1, n, shape="complete", all_alive=True)
    plan, _ = BrainTorrent().plan({}, view)
    assert len(plan.links) == n * (n - 1)
    W = dense(plan.mixes[0], n)
    assert (W[0] == W).all()


def test_equal_data_contract_to_nothing():
    assert contraction(BrainTorrent(), complete_views(14), rounds=20) == pytest.approx(0, abs=1e-20)


def test_all_to_all_run_is_bit_equal_to_fedavg_and_to_complete_dpsgd():
    mechanisms = (BrainTorrent(), FedAvg(), DPSGD(topology="complete", weights="size"))
    ends = [run_to_end(uneven(m))[1].models.latest[:6].numpy() for m in mechanisms]
    assert len(np.unique(ends[0])) > 100  # trained apart in the end, so that it means something
    assert np.array_equal(ends[0], ends[1])
    assert np.array_equal(ends[0], ends[2])


def test_all_to_all_learns_exactly_as_fedavg_does():
    options = {"workers": 5, "dataset": "synthetic", "rounds": 3}
    small = ["model.name=softmax", "world.range_m=142", "evaluate.every_rounds=1"]
    runs = [
        list(dystop.simulate(m, overrides=small, **options)) for m in (BrainTorrent(), FedAvg())
    ]
    for ours, theirs in zip(*runs, strict=True):
        assert (ours.accuracy, ours.loss) == (theirs.accuracy, theirs.loss)
        assert ours.links == 5 * 4
        assert theirs.links == 5 * 2


def test_variants_declare_what_they_are():
    assert BrainTorrent().capabilities() == Capabilities(mode="sync", warm_start=True)
    assert ORIGINAL.capabilities() == Capabilities(mode="async", warm_start=False)
    assert replace(ORIGINAL, variant="alltoall").capabilities().mode == "sync"


def call(version, memory=None, last=None, t=1):
    """Plan of the original on five workers that all hear each other."""
    view = random_view(4, 5, shape="complete", all_alive=True)
    view = replace(view, t=t, version=ints(version), last=last)
    memory = ORIGINAL.init(view.fleet) if memory is None else memory
    plan, memory = ORIGINAL.plan(memory, view)
    check_plan(ORIGINAL, plan, view)
    return plan, memory, view


def test_first_call_pulls_nobody():
    plan, _, _ = call([0] * 5)
    assert len(plan.active) == 1
    assert len(plan.links) == 0
    assert plan.join
    assert not plan.synchronous
    assert plan.mixes[0].weight.tolist() == [1.0]


def test_caller_averages_what_is_new_with_its_own_by_size():
    plan, _, view = call([1, 0, 2, 0, 0])
    caller = int(plan.active[0])
    new = sorted({0, 2} - {caller})
    assert plan.links.src.tolist() == new
    members = sorted({*new, caller})
    size = view.fleet.data_size[members]
    np.testing.assert_allclose(plan.mixes[0].weight, size / size.sum())
    assert plan.mixes[0].source.tolist() == members


def test_callers_are_drawn_uniformly_among_those_present():
    view = random_view(5, 6, shape="complete")
    callers = [
        int(ORIGINAL.plan(ORIGINAL.init(view.fleet), replace(view, t=t))[0].active[0])
        for t in range(1, 1501)
    ]
    here = np.flatnonzero(view.alive)
    share = np.bincount(callers, minlength=6)[here] / 1500
    assert set(callers) == set(here.tolist())
    np.testing.assert_allclose(share, 1 / len(here), atol=0.05)


def pulls_of(components):
    """(dst, src, version) of all pulls that arrived, and the records."""
    records, state = run_to_end(components)
    version = np.zeros(components.fleet.workers, int)
    taken = []
    for record in records:
        taken += [(i, j, version[j]) for i, j in record.get("link_pairs")]
        version[record.get("active_ids")] += 1
    return taken, records, state


@pytest.mark.parametrize("loss", [0.0, 0.4])
def test_no_peer_is_pulled_twice_at_one_version(loss):
    world = replace(STABLE_WORLD, outages=Outages(loss=loss))
    components = components_for(ORIGINAL, 5, params=world, stop=Stop(rounds=80))
    taken, records, state = pulls_of(components)
    assert len(taken) > 50
    assert len(taken) == len(set(taken))
    assert min(v for *_, v in taken) >= 1
    assert all(r.active == 1 and r.links <= 4 for r in records)
    assert (sum(r.lost for r in records) > 0) == (loss > 0)
    assert len(state.control.memory["pair"]) <= 20


def test_a_lost_model_is_asked_for_again():
    world = replace(STABLE_WORLD, outages=Outages(loss=1.0))
    records, state = run_to_end(components_for(ORIGINAL, 3, params=world, stop=Stop(rounds=20)))
    assert len(state.control.memory["pair"]) == 0
    assert records[-1].lost == 2


def test_nobody_else_trains_and_rounds_wait_for_the_training():
    components = components_for(ORIGINAL, 4, stop=Stop(rounds=6))
    records, _ = run_to_end(components)
    assert len(components.trainer.log) == 6  # no warm start, one training per round
    assert all(r.duration_s >= 1.0 for r in records)
    assert records[0].duration_s == pytest.approx(1.0)


def test_lonely_worker():
    for mechanism in (BrainTorrent(), ORIGINAL):
        view = random_view(0, 1)
        plan, _ = mechanism.plan(mechanism.init(random_fleet(0, 1)), view)
        assert plan.active.tolist() == [0]
        assert len(plan.links) == 0


@pytest.mark.parametrize("mechanism", [BrainTorrent(), ORIGINAL], ids=lambda m: m.variant)
@pytest.mark.parametrize("timing", ["paper", "overlap"])
def test_runs_through_churn_mobility_and_losses(mechanism, timing):
    engine = EngineParams(timing=timing, publish="on_completion")
    check_unstable_run(mechanism, engine, 40, world=UNSTABLE_WORLD)
