"""Worlds with mobility, churn, dropped links and failed transfers, and a run in one of them."""

from dataclasses import replace

import numpy as np

from dystop.conformance.runs import ENGINES
from dystop.control.stopping import Stop
from dystop.world import Churn, Compute, Mobility, Outages, WorldParams
from support.engine_fixtures import components_for, run_to_end

__all__ = ["ENGINES", "UNSTABLE_WORLD", "check_unstable_run"]

UNSTABLE_WORLD = WorldParams(
    churn=Churn(enabled=True, mean_up_s=20.0, mean_down_s=10.0),
    mobility=Mobility(enabled=True, speed_mps=(1.0, 3.0)),
    outages=Outages(drop=0.1, loss=0.1),
)

FREQUENT_CHURN = replace(
    UNSTABLE_WORLD,
    compute=Compute(batch_s=0.5),
    churn=Churn(enabled=True, mean_up_s=6.0, mean_down_s=3.0),
)


def check_unstable_run(mechanism, engine, rounds=60, n=9, world=FREQUENT_CHURN):
    """Run a mechanism while workers come and go, check the run, and return (records, state).

    The run must see absent workers and lost transfers, complete all rounds, advance its clock and
    keep all models finite. By default workers come and go often.
    """
    area = np.random.default_rng(1).random((n, 2)) * 100
    stop = Stop(rounds=rounds)
    components = components_for(mechanism, n, params=world, position=area, stop=stop, engine=engine)
    records, state = run_to_end(components)
    assert len(records) == rounds
    assert sum(r.lost for r in records) > 0
    assert min(r.alive for r in records) < n
    assert np.isfinite(state.models.latest.numpy()).all()
    clocks = [r.clock_s for r in records]
    assert clocks == sorted(clocks)
    return records, state
