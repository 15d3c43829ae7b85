"""Energy of rounds: by hand, against a loop over short moments, and in whole simulations."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dystop.control.stopping import Stop
from dystop.errors import ConfigError
from dystop.experiments.building import build
from dystop.experiments.config import read_experiment
from dystop.mechanisms import MECHANISMS
from dystop.plan import Plan, links, mix_of
from dystop.simulator.loop import begin, simulate
from dystop.simulator.params import EngineParams
from dystop.simulator.pipeline import simulate_ahead
from dystop.sparse import ints
from dystop.world.energy import (
    Energy,
    Power,
    RoundSeconds,
    compute_seconds,
    power_of,
    radio_seconds,
    round_energy,
)
from support.engine_fixtures import Script, components_for, run_to_end
from support.unstable_world import UNSTABLE_WORLD

COUNTED = Energy(enabled=True, per_worker=True)
HALVES = mix_of(ints([0, 0]), ints([0, 2]), np.full(2, 0.5))
PULL = Plan(ints([0]), links(ints([0]), ints([2])), (HALVES,))
PARTS = ("compute_j", "idle_j", "transmit_j", "receive_j")


def power(n, **watts):
    return power_of(replace(COUNTED, **watts), n, jetson=False)


def test_a_round_by_hand():
    # Three workers train for 1 s from time 0, then worker 0 pulls from worker 2 for x seconds:
    # the round lasts 1 + x. Everybody trains for 1 s and idles for x; 2 sends and 0 receives.
    watts = power(3, compute_w=20.0, idle_w=4.0, transmit_w=2.0, receive_w=1.0)
    (record,), _ = run_to_end(
        components_for(Script(plans=(PULL,)), 3, stop=Stop(rounds=1), power=watts)
    )
    x = record.duration_s - 1.0
    assert x > 0
    assert record.compute_j == pytest.approx(3 * 20.0)
    assert record.idle_j == pytest.approx(3 * 4.0 * x)
    assert record.transmit_j == pytest.approx(2.0 * x)
    assert record.receive_j == pytest.approx(1.0 * x)
    assert record.energy_j == pytest.approx(60 + 12 * x + 3 * x)
    each = [20 + 4 * x + 1 * x, 20 + 4 * x, 20 + 4 * x + 2 * x]
    assert record.worker_energy_j == pytest.approx(each, abs=1e-6)


def test_training_beyond_a_round_counts_in_the_next_ones():
    # Worker 0 ends a training at 2 s and begins one of 5 s at 3 s; worker 1 trains all the time;
    # worker 2 does nothing. The round lasts 4 s.
    first, begin_s = np.array([2.0, 9.0, 0.0]), np.array([3.0, np.inf, np.inf])
    assert compute_seconds(4.0, first, begin_s, begin_s + 5.0).tolist() == [3.0, 4.0, 0.0]


def test_the_server_is_not_counted():
    found = links(ints([3, 0]), ints([0, 3]))  # node 3 is the server of three workers
    sent, received = radio_seconds(found, np.array([2.0, 5.0]), 3)
    assert sent.tolist() == [2.0, 0.0, 0.0]
    assert received.tolist() == [5.0, 0.0, 0.0]


times = st.floats(0, 20)


@st.composite
def workers_in_a_round(draw):
    """Draw a duration, and for each worker the end of a training and a new one after it."""
    duration, n = draw(st.floats(0, 10)), draw(st.integers(1, 5))
    column = st.lists(times, min_size=n, max_size=n)
    first, wait, length = (np.array(draw(column)) for _ in range(3))
    begins = np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    begin_s = np.where(begins, first + wait, np.inf)
    return duration, first, begin_s, begin_s + length


@given(workers_in_a_round())
def test_compute_seconds_equal_a_count_of_moments(case):
    duration, first, begin_s, end_s = case
    moments = (np.arange(2000) + 0.5) * duration / 2000
    busy = (moments[:, None] < first) | ((moments[:, None] >= begin_s) & (moments[:, None] < end_s))
    counted = busy.sum(axis=0) * duration / 2000
    assert compute_seconds(*case) == pytest.approx(counted, abs=2 * duration / 2000 + 1e-9)


@given(workers_in_a_round(), st.floats(0, 1))
def test_energy_is_additive_and_idle_fills_the_rest(case, share):
    """A round cut in two has the energy of both parts; no part of it is negative."""
    duration, first, begin_s, end_s = case
    n, cut = len(first), share * duration
    watts = Power(np.full(n, 7.0), np.full(n, 3.0), np.full(n, 2.0), np.full(n, 1.0))
    here, nothing = np.arange(n) % 3 != 2, np.zeros(n)

    def spent(length, at):
        shifted = compute_seconds(length, first - at, begin_s - at, end_s - at)
        return round_energy(watts, here, length, RoundSeconds(shifted, nothing, nothing)), shifted

    whole, trained = spent(duration, 0.0)
    early, late = spent(cut, 0.0)[0], spent(duration - cut, cut)[0]
    assert whole.worker_j == pytest.approx(early.worker_j + late.worker_j, abs=1e-6)
    assert all((getattr(part, name) >= 0).all() for part in (whole, early) for name in PARTS)
    assert whole.idle_j[here] / 3.0 + trained[here] == pytest.approx(duration)
    assert not whole.worker_j[~here].any()


@pytest.mark.parametrize("name", ["dystop", "matcha", "ad-psgd", "fedavg", "gossipfl", "sa-adfl"])
@pytest.mark.parametrize("timing", ["paper", "overlap", "testbed"])
def test_whole_runs_draw_idle_power_for_the_rest_of_the_time(name, timing):
    """Without churn, idle and compute seconds of all rounds are the workers' whole time."""
    watts = power(6, compute_w=1.0, idle_w=1.0, transmit_w=0.0, receive_w=0.0)
    components = components_for(
        MECHANISMS[name](), 6, stop=Stop(rounds=8), engine=EngineParams(timing=timing), power=watts
    )
    records, _ = run_to_end(components)
    assert sum(r.energy_j for r in records) == pytest.approx(6 * records[-1].clock_s)
    for r in records:
        assert min(getattr(r, part) for part in PARTS) >= 0
        assert sum(r.worker_energy_j) == pytest.approx(r.energy_j, abs=1e-5)
        assert sum(getattr(r, part) for part in PARTS) == pytest.approx(r.energy_j)


def test_deciding_ahead_changes_no_energy():
    components = components_for(
        MECHANISMS["dystop"](), 9, params=UNSTABLE_WORLD, stop=Stop(rounds=12), power=power(9)
    )
    plain = [r.to_json() for r, _ in simulate(components, begin(components))]
    ahead = [r.to_json() for r, _ in simulate_ahead(components, begin(components), lambda t: False)]
    assert plain == ahead
    assert '"energy_j"' in plain[0]


def test_powers_follow_the_boards():
    assert power_of(Energy(), 4, jetson=True) is None
    assert (
        power_of(COUNTED, 9, jetson=True).compute_w.tolist() == [10.0] * 4 + [15.0] * 3 + [25.0] * 2
    )
    assert power_of(COUNTED, 9, jetson=False).idle_w.tolist() == [5.0] * 9
    same = power_of(replace(COUNTED, boards="same", compute_w=8.0), 9, jetson=True)
    assert same.compute_w.tolist() == [8.0] * 9
    assert power_of(replace(COUNTED, boards="jetson"), 15, jetson=False).idle_w[-1] == 5.0


def test_keys_are_checked_and_reach_the_simulation():
    with pytest.raises(ConfigError, match=r"energy\.transmit_w = -1\.0: must be >= 0"):
        Energy(transmit_w=-1.0)
    quick = ["data.name=synthetic", "model.name=softmax", "fleet.workers=5", "stop.rounds=1"]
    assert build(read_experiment(None, quick)).components.power is None
    jetson = [*quick, "energy.enabled=true", "world.compute.devices=jetson"]
    found = build(read_experiment(None, jetson)).components.power
    assert found.compute_w.tolist() == [10.0] * 4 + [15.0]
