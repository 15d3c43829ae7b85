"""A short run in which everything goes on at once: mobility, churn, dropped and failed links."""

import numpy as np

from dystop.control.stopping import Stop
from dystop.simulator.params import EngineParams
from dystop.world import Churn, Compute, Mobility, Outages, WorldParams
from support.engine_fixtures import components_for, play

RESTLESS = WorldParams(
    compute=Compute(batch_s=0.5),
    churn=Churn(enabled=True, mean_up_s=6.0, mean_down_s=3.0),
    mobility=Mobility(enabled=True, speed_mps=(1.0, 3.0)),
    outages=Outages(drop=0.1, loss=0.1),
)

LAWS = [EngineParams(t, p) for t in ("paper", "overlap") for p in ("eager", "on_completion")]


def survive(mechanism, laws, rounds=60, n=9):
    """Play the run and hold it to what every run must keep; returns (records, state)."""
    area = np.random.default_rng(1).random((n, 2)) * 100
    stop = Stop(rounds=rounds)
    components = components_for(
        mechanism, n, params=RESTLESS, position=area, stop=stop, engine=laws
    )
    records, state = play(components)
    assert len(records) == rounds
    assert sum(r.lost for r in records) > 0
    assert min(r.alive for r in records) < n
    assert np.isfinite(state.models.latest.numpy()).all()
    clocks = [r.clock_s for r in records]
    assert clocks == sorted(clocks)
    return records, state
