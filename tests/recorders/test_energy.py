"""Energy of rounds: by hand, and in whole simulations against the times of trainings."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dystop.config import read_experiment
from dystop.control.stopping import Stop
from dystop.errors import ConfigError
from dystop.mechanisms import MECHANISMS
from dystop.plan import Plan, links, mix_of
from dystop.recorders.energy import (
    Energy,
    EnergyRecorder,
    Power,
    RoundSeconds,
    power_of,
    radio_seconds,
    round_energy,
)
from dystop.recorders.time_spent import TimeSpentRecorder
from dystop.runs.building import build
from dystop.simulator.params import EngineParams
from dystop.simulator.pipeline import simulate_ahead
from dystop.simulator.round import begin, simulate
from dystop.sparse import ints
from dystop.world import Churn, Compute
from support.engine_fixtures import STABLE_WORLD, Script, components_for, run_to_end
from support.unstable_world import UNSTABLE_WORLD

COUNTED = Energy(enabled=True, per_worker=True)
HALVES = mix_of(ints([0, 0]), ints([0, 2]), np.full(2, 0.5))
PULL = Plan(ints([0]), links(ints([0]), ints([2])), (HALVES,))
PARTS = ("compute_j", "idle_j", "transmit_j", "receive_j")


def power(n, **watts):
    return power_of(replace(COUNTED, **watts), n, jetson=False)


def counting(watts):
    return (TimeSpentRecorder(), EnergyRecorder(watts, per_worker=True))


def test_a_round_by_hand():
    # Three workers train for 1 s from time 0, then worker 0 pulls from worker 2 for x seconds:
    # the round lasts 1 + x. Everybody trains for 1 s and idles for x; 2 sends and 0 receives.
    watts = power(3, compute_w=20.0, idle_w=4.0, transmit_w=2.0, receive_w=1.0)
    (record,), _ = run_to_end(
        components_for(Script(plans=(PULL,)), 3, stop=Stop(rounds=1), recorders=counting(watts))
    )
    x = record.duration_s - 1.0
    assert x > 0
    assert record.get("compute_j") == pytest.approx(3 * 20.0)
    assert record.get("idle_j") == pytest.approx(3 * 4.0 * x)
    assert record.get("transmit_j") == pytest.approx(2.0 * x)
    assert record.get("receive_j") == pytest.approx(1.0 * x)
    assert record.get("energy_j") == pytest.approx(60 + 12 * x + 3 * x)
    each = [20 + 4 * x + 1 * x, 20 + 4 * x, 20 + 4 * x + 2 * x]
    assert record.get("worker_energy_j") == pytest.approx(each, abs=1e-6)


def test_transfers_side_by_side_add_up():
    # Worker 1 sends to 0 and 2 at once; worker 0 also receives from 2.
    found = links(ints([0, 2, 0]), ints([1, 1, 2]))
    sent, received = radio_seconds(found, np.array([2.0, 5.0, 4.0]), 3)
    assert sent.tolist() == [0.0, 7.0, 4.0]
    assert received.tolist() == [6.0, 0.0, 5.0]


def test_the_server_is_not_counted():
    found = links(ints([3, 0]), ints([0, 3]))  # node 3 is the server of three workers
    sent, received = radio_seconds(found, np.array([2.0, 5.0]), 3)
    assert sent.tolist() == [2.0, 0.0, 0.0]
    assert received.tolist() == [5.0, 0.0, 0.0]


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1)), min_size=1, max_size=5))
def test_idle_fills_the_rest_of_the_round_of_who_is_present(workers):
    here, share = (np.array(column) for column in zip(*workers, strict=True))
    n, nothing = len(here), np.zeros(len(here))
    watts = Power(np.full(n, 7.0), np.full(n, 3.0), np.full(n, 2.0), np.full(n, 1.0))
    spent = round_energy(watts, here, 8.0, RoundSeconds(8.0 * share, nothing, nothing))
    assert spent.idle_j[here] / 3.0 + spent.compute_j[here] / 7.0 == pytest.approx(8.0)
    assert spent.worker_j[here] == pytest.approx((spent.idle_j + spent.compute_j)[here])
    assert not spent.worker_j[~here].any()


@pytest.mark.parametrize("name", ["dystop", "matcha", "ad-psgd", "fedavg", "gossipfl", "sa-adfl"])
@pytest.mark.parametrize("timing", ["paper", "overlap", "testbed"])
def test_whole_runs_draw_idle_power_for_the_rest_of_the_time(name, timing):
    """Without churn, idle and compute seconds of all rounds are the workers' whole time."""
    watts = power(6, compute_w=1.0, idle_w=1.0, transmit_w=0.0, receive_w=0.0)
    components = components_for(
        MECHANISMS[name](),
        6,
        stop=Stop(rounds=8),
        engine=EngineParams(timing=timing),
        recorders=counting(watts),
    )
    records, _ = run_to_end(components)
    assert sum(r.get("energy_j") for r in records) == pytest.approx(6 * records[-1].clock_s)
    for r in records:
        assert min(r.get(part) for part in PARTS) >= 0
        assert sum(r.get("worker_energy_j")) == pytest.approx(r.get("energy_j"), abs=1e-5)
        assert sum(r.get(part) for part in PARTS) == pytest.approx(r.get("energy_j"))


BOARDS = {
    "same": (Compute(batch_s=0.5), {"compute_w": 9.0, "idle_w": 2.0}),
    "jetson": (Compute(batch_s=0.5, devices="jetson"), {"boards": "jetson"}),
    "inverted": (Compute(batch_s=0.02), {"compute_w": 1.0, "idle_w": 4.0}),
}
CHURN = Churn(enabled=True, mean_up_s=6.0, mean_down_s=3.0)


def on_boards(boards, name, timing, churn):
    """Return components whose radio draws nothing, so that joules tell the billed seconds."""
    compute, watts = BOARDS[boards]
    return components_for(
        MECHANISMS[name](),
        9,
        params=replace(STABLE_WORLD, compute=compute, churn=churn),
        stop=Stop(rounds=12),
        engine=EngineParams(timing=timing),
        recorders=counting(power(9, **watts, transmit_w=0.0, receive_w=0.0)),
    )


@pytest.mark.parametrize("boards", BOARDS)
@pytest.mark.parametrize("timing", ["paper", "overlap", "testbed"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_training_is_billed_for_the_seconds_of_training(name, timing, boards):
    """What is billed as training are the times of the workers' trainings, in records, too."""
    components = on_boards(boards, name, timing, Churn())
    watts, state, total_s = components.recorders[1].power, begin(components), np.zeros(9)
    trainings = set()  # (worker, begin, end)
    for record, after in simulate(components, state):
        idle_j = watts.idle_w * record.duration_s
        billed_s = (np.array(record.get("worker_energy_j")) - idle_j) / (
            watts.compute_w - watts.idle_w
        )
        assert billed_s.sum() == pytest.approx(record.get("compute_s"), abs=1e-4)
        assert record.get("compute_j") == pytest.approx(watts.compute_w @ billed_s, abs=1e-3)
        for under_way in (state.progress, after.progress):
            times = (under_way.started_s.tolist(), under_way.finish_s.tolist())
            trainings |= set(zip(range(9), *times, strict=False))
        total_s += billed_s
        trained_s = np.zeros(9)
        for i, begin_s, end_s in trainings:
            trained_s[i] += np.clip(record.clock_s, begin_s, end_s) - begin_s
        assert total_s == pytest.approx(trained_s, abs=1e-4)
        state = after


@pytest.mark.parametrize("timing", ["paper", "overlap", "testbed"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_who_is_absent_is_not_billed_for_training(name, timing):
    records, _ = run_to_end(on_boards("same", name, timing, CHURN))
    for record in records:
        assert record.get("compute_j") == pytest.approx(9.0 * record.get("compute_s"))
        present_s = record.alive * record.duration_s
        assert record.get("idle_j") == pytest.approx(2.0 * (present_s - record.get("compute_s")))


def test_deciding_ahead_changes_no_energy():
    components = components_for(
        MECHANISMS["dystop"](),
        9,
        params=UNSTABLE_WORLD,
        stop=Stop(rounds=12),
        recorders=counting(power(9)),
    )
    plain = [r.to_json() for r, _ in simulate(components, begin(components))]
    ahead = [r.to_json() for r, _ in simulate_ahead(components, begin(components), lambda t: False)]
    assert plain == ahead
    assert '"energy_j"' in plain[0]


def test_powers_follow_the_boards():
    assert (
        power_of(COUNTED, 9, jetson=True).compute_w.tolist() == [10.0] * 4 + [15.0] * 3 + [25.0] * 2
    )
    assert power_of(COUNTED, 9, jetson=False).idle_w.tolist() == [5.0] * 9
    same = power_of(replace(COUNTED, boards="same", compute_w=8.0), 9, jetson=True)
    assert same.compute_w.tolist() == [8.0] * 9
    assert power_of(replace(COUNTED, boards="jetson"), 15, jetson=False).idle_w[-1] == 5.0


def energy_recorders(words):
    recorders = build(read_experiment(None, words)).components.recorders
    return [each for each in recorders if isinstance(each, EnergyRecorder)]


def test_keys_are_checked_and_reach_the_simulation():
    with pytest.raises(ConfigError, match=r"energy\.transmit_w = -1\.0: must be >= 0"):
        Energy(transmit_w=-1.0)
    quick = ["data.name=synthetic", "model.name=softmax", "fleet.workers=5", "stop.rounds=1"]
    assert energy_recorders(quick) == []
    jetson = [*quick, "energy.enabled=true", "world.compute.devices=jetson"]
    (found,) = energy_recorders(jetson)
    assert found.power.compute_w.tolist() == [10.0] * 4 + [15.0]
