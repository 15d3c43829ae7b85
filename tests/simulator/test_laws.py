"""The three timing laws and the two publish rules, with worked examples."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.stopping import Evaluate, Stop
from dystop.mechanisms import DPSGD, DySTop, FedAvg
from dystop.plan import Plan, links, mix_of, no_links
from dystop.simulator.params import EngineParams
from dystop.sparse import ints
from support.engine_fixtures import (
    STABLE_WORLD,
    AddingTrainer,
    Script,
    components_for,
    line,
    run_to_end,
    weights,
)

ALONE = Plan(ints([2]), no_links(), (mix_of(ints([2]), ints([2]), np.ones(1)),))
PULL = Plan(
    ints([0]), links(ints([0]), ints([2])), (mix_of(ints([0, 0]), ints([0, 2]), np.full(2, 0.5)),)
)


def test_eager_pull_returns_the_training_in_flight():
    _, state = run_to_end(components_for(Script(plans=(ALONE, PULL)), 3, stop=Stop(rounds=2)))
    assert weights(state)[0] == (1 + 6) / 2 + 1  # 6 would be finished only later


def test_on_completion_pull_returns_the_last_finished_model():
    late = EngineParams(publish="on_completion")
    components = components_for(Script(plans=(ALONE, PULL)), 3, stop=Stop(rounds=2), engine=late)
    _, state = run_to_end(components)
    assert weights(state)[0] == (1 + 3) / 2 + 1


def test_on_completion_sees_what_finishes_before_the_read():
    late = EngineParams(publish="on_completion")
    busy = Plan(ints([0]), no_links(), PULL.mixes and (mix_of(ints([0]), ints([0]), np.ones(1)),))
    slow = replace(busy, steps=ints([50]))
    components = components_for(
        Script(plans=(slow, ALONE, PULL)), 3, stop=Stop(rounds=3), engine=late
    )
    records, state = run_to_end(components)
    # Worker 0 trains for 50 s; worker 2 starts again meanwhile and is done when 0 pulls.
    assert records[2].duration_s > 40
    assert weights(state)[0] == ((1 + 1) + 6) / 2 + 1


def test_a_synchronous_plan_waits_for_its_partner():
    late = EngineParams(publish="on_completion")
    plan = replace(PULL, active=ints([0, 2]), synchronous=True)
    both = replace(
        plan, mixes=(mix_of(ints([0, 0, 2]), ints([0, 2, 2]), np.array([0.5, 0.5, 1.0])),)
    )
    components = components_for(Script(plans=(ALONE, both)), 3, stop=Stop(rounds=2), engine=late)
    _, state = run_to_end(components)
    assert weights(state)[0] == (1 + 6) / 2 + 1


def test_evaluation_sees_published_models_only():
    late = EngineParams(publish="on_completion")
    common = {"stop": Stop(rounds=1), "evaluate": Evaluate(every_rounds=1)}
    eager, _ = run_to_end(components_for(Script(plans=(ALONE,)), 3, **common))
    honest, _ = run_to_end(components_for(Script(plans=(ALONE,)), 3, engine=late, **common))
    assert eager[0].accuracy == pytest.approx((1 + 2 + 6) / 300)
    assert honest[0].accuracy == pytest.approx((1 + 2 + 3) / 300)


def test_paper_law_by_hand():
    records, _ = run_to_end(components_for(Script(plans=(PULL,)), 3, stop=Stop(rounds=2)))
    components = components_for(Script(plans=(PULL,)), 3)
    transfer = components.world.transfer(1, 0.0, ints([0]), ints([2]), 1.0).seconds[0]
    assert records[0].duration_s == pytest.approx(
        1.0 + transfer
    )  # compute in flight, then the pull
    assert records[1].duration_s == pytest.approx(
        1.0 + transfer
    )  # training began as round 1 closed


def test_overlap_law_by_hand():
    laws = EngineParams(timing="overlap")
    components = components_for(Script(plans=(PULL,)), 3, stop=Stop(rounds=2), engine=laws)
    records, state = run_to_end(components)
    transfer = components.world.transfer(1, 0.0, ints([0]), ints([2]), 1.0).seconds[0]
    assert records[0].duration_s == pytest.approx(1.0)  # the transfer runs on
    assert records[1].duration_s == pytest.approx(transfer + 1.0)  # the rest of it, then training
    assert state.progress.started_s[0] == pytest.approx(2.0 + 2 * transfer)


def test_the_law_of_the_testbed_by_hand():
    """Trainings last 1 s. Worker 2 pulls nothing, so it goes on while worker 0 pulls from it."""
    both = replace(
        PULL,
        active=ints([0, 2]),
        mixes=(mix_of(ints([0, 0, 2]), ints([0, 2, 2]), np.array([0.5, 0.5, 1.0])),),
    )
    laws = EngineParams(timing="testbed")
    components = components_for(Script(plans=(both,)), 3, stop=Stop(rounds=2), engine=laws)
    records, state = run_to_end(components)
    transfer = components.world.transfer(1, 0.0, ints([0]), ints([2]), 1.0).seconds[0]
    lasts = pytest.approx([1.0 + transfer] * 2)  # until worker 0 has pulled, as under `paper`
    assert [record.duration_s for record in records] == lasts
    assert state.progress.started_s[[0, 2]] == pytest.approx([2.0 + 2 * transfer, 2.0])


@pytest.mark.parametrize("mechanism", [DySTop(), DPSGD(topology="complete"), FedAvg()])
@pytest.mark.parametrize("publish", ["eager", "on_completion"])
def test_overlap_gets_further_in_the_same_rounds(mechanism, publish):
    params = replace(STABLE_WORLD, compute=replace(STABLE_WORLD.compute, spread=0.4))
    clocks = {}
    for timing in ("paper", "overlap"):
        components = components_for(
            mechanism,
            8,
            params=params,
            stop=Stop(rounds=12),
            engine=EngineParams(timing=timing, publish=publish),
        )
        records, _ = run_to_end(components)
        assert [r.round for r in records] == list(range(1, 13))
        assert all(r.duration_s >= 0 and r.idle_s >= 0 for r in records)
        clocks[timing] = records[-1].clock_s
    assert clocks["overlap"] <= clocks["paper"]


def test_fedavg_gives_everyone_the_weighted_mean():
    components = components_for(FedAvg(), 3, stop=Stop(rounds=1), trainer=AddingTrainer(gain=1.0))
    records, state = run_to_end(components)
    assert weights(state) == [3.0, 4.0, 5.0, 2.0]  # mean 2, then training; the server keeps 2
    assert records[0].links == 6
    assert records[0].wire_bytes == 6 * 40_000
    assert records[0].endpoint_bytes_total == 2 * records[0].wire_bytes_total


def test_fedavg_equals_complete_dpsgd_by_size():
    complete = DPSGD(topology="complete", weights="size")
    _, central = run_to_end(components_for(FedAvg(), 5, stop=Stop(rounds=4), position=line(5)))
    _, peers = run_to_end(components_for(complete, 5, stop=Stop(rounds=4), position=line(5)))
    np.testing.assert_allclose(weights(central)[:5], weights(peers), rtol=1e-6)
