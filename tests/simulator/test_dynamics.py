"""Edge dynamics end to end: mobility, churn, dropped links, failed transfers."""

from dataclasses import replace

import numpy as np
import pytest

from dystop.control.stopping import Stop
from dystop.mechanisms import DPSGD, DySTop, FedAvg
from dystop.plan import Plan, links, mix_of
from dystop.recorders.positions import PositionsRecorder
from dystop.recorders.topology import TopologyRecorder
from dystop.sparse import ints
from dystop.world import Churn, Outages
from support.engine_fixtures import STABLE_WORLD, Script, components_for, line, run_to_end, weights
from support.unstable_world import UNSTABLE_WORLD

EVERY = [DySTop(), DPSGD(), DPSGD(topology="complete", weights="optimal"), FedAvg()]


@pytest.mark.parametrize("mechanism", EVERY, ids=lambda m: m.name)
@pytest.mark.parametrize("timing", ["paper", "overlap", "testbed"])
@pytest.mark.parametrize("publish", ["eager", "on_completion"])
def test_every_mechanism_survives_everything_at_once(mechanism, timing, publish):
    from dystop.simulator.params import EngineParams

    area = np.random.default_rng(1).random((9, 2)) * 100
    components = components_for(
        mechanism,
        9,
        params=UNSTABLE_WORLD,
        position=area,
        stop=Stop(rounds=60),
        engine=EngineParams(timing=timing, publish=publish),
        recorders=(TopologyRecorder(), PositionsRecorder()),
    )
    records, state = run_to_end(components)
    assert len(records) == 60
    assert min(r.alive for r in records) < 9
    assert sum(r.lost for r in records) > 0
    assert records[0].get("positions") != records[-1].get("positions")
    assert np.isfinite(state.models.latest.numpy()).all()
    clocks = [r.clock_s for r in records]
    assert clocks == sorted(clocks)


def test_clock_jumps_when_nobody_is_there():
    lonely = replace(STABLE_WORLD, churn=Churn(enabled=True, mean_up_s=2.0, mean_down_s=50.0))
    records, _ = run_to_end(components_for(DySTop(), 1, params=lonely, stop=Stop(rounds=8)))
    slept = records[-1].clock_s - sum(r.duration_s for r in records)
    assert slept > 10


def test_lost_pull_leaves_the_rest_of_the_row():
    plan = Plan(
        ints([0]),
        links(ints([0, 0]), ints([1, 2])),
        (mix_of(ints([0, 0, 0]), ints([0, 1, 2]), np.full(3, 1 / 3)),),
    )
    sure = replace(STABLE_WORLD, outages=Outages(loss=1.0))
    records, state = run_to_end(
        components_for(Script(plans=(plan,)), 3, params=sure, stop=Stop(rounds=1))
    )
    assert weights(state)[0] == 2.0  # own model only, then training
    assert records[0].lost == 2
    assert records[0].wire_bytes == 80_000  # the air was used all the same


def test_mean_is_kept_when_a_symmetric_exchange_fails():
    half = replace(STABLE_WORLD, outages=Outages(loss=0.5))
    components = components_for(
        DPSGD(topology="complete"), 6, params=half, stop=Stop(rounds=5), position=line(6)
    )
    records, state = run_to_end(components)
    assert sum(r.lost for r in records) > 0
    trained = 6 * np.mean([k + 1 for k in range(6)])  # first training and five rounds
    assert np.mean(weights(state)) == pytest.approx(trained, rel=1e-5)
