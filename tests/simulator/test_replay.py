"""A recorded run in the simulator gives the same plans, models and records."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from dystop.control.stopping import Evaluate, Stop
from dystop.errors import ConfigError, RunFolderError
from dystop.mechanisms import MECHANISMS, DySTop
from dystop.recorders.energy import Energy, EnergyRecorder, power_of
from dystop.recorders.time_spent import TimeSpentRecorder
from dystop.simulator.params import EngineParams
from dystop.world import Compute, Outages, TraceWorld, WorldParams, read_trace
from dystop.world.trace import REPEATED, TRACE
from support.engine_fixtures import components_for, run_to_end
from support.testbed.trace_recorder import play_and_record, write_trace

LATE = EngineParams(publish="on_completion")
TESTBED = EngineParams("testbed", "on_completion")
N = 9
COUNTING = (TimeSpentRecorder(), EnergyRecorder(power_of(Energy(), N, jetson=False)))
WORLD = replace(WorldParams(), range_m=70.0, outages=Outages(loss=0.1))


def scene(mechanism, **changes):
    settings = {
        "params": WORLD,
        "engine": LATE,
        "stop": Stop(rounds=25),
        "evaluate": Evaluate(every_rounds=5),
        "position": None,
    }
    return components_for(mechanism, N, **{**settings, **changes})


def replayed(components, folder):
    fleet = components.fleet
    world = TraceWorld(
        read_trace(folder), components.world.params, N, fleet.model_bytes, fleet.seed, fleet.server
    )
    return replace(components, world=world)


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_replay_repeats_the_run_byte_for_byte(name, tmp_path):
    components = scene(MECHANISMS[name]())
    records, state, lines = play_and_record(components)
    write_trace(tmp_path, lines)
    again, after = run_to_end(replayed(components, tmp_path))
    assert [r.to_json() for r in again] == [r.to_json() for r in records]
    assert torch.equal(after.models.latest, state.models.latest)


def test_the_trace_decides_not_the_world(tmp_path):
    """Whatever the channel model says of speeds and distances, the recorded run is repeated."""
    components = scene(DySTop())
    records, _, lines = play_and_record(components)
    write_trace(tmp_path, lines)
    other = replace(WORLD, range_m=10.0, compute=Compute(batch_s=0.001), outages=Outages(loss=0.9))
    again, _ = run_to_end(replayed(scene(DySTop(), params=other), tmp_path))
    assert [r.to_json() for r in again] == [r.to_json() for r in records]


def test_unchanged_parts_are_written_once(tmp_path):
    _, _, lines = play_and_record(scene(DySTop()))
    write_trace(tmp_path, lines)
    first, *rest = map(json.loads, (tmp_path / TRACE).read_text().splitlines())
    assert "reach" in first
    assert all("reach" not in line and "step_s" not in line for line in rest)
    trace = read_trace(tmp_path)
    assert all(np.array_equal(r.reach.src, trace.rounds[0].reach.src) for r in trace.rounds)


def fail(lines, t, worker):
    """Make a worker fail in round t, as if its report had never come."""
    orders, links = lines[t - 1]["orders"], lines[t - 1]["links"]
    orders["failed"] = [node == worker for node in orders["node"]]
    links["lost"] = [
        lost or dst == worker for lost, dst in zip(links["lost"], links["dst"], strict=True)
    ]
    lines[t - 1]["duration_s"] = 99.0


def test_who_failed_neither_mixes_nor_trains(tmp_path):
    components = scene(DySTop(), stop=Stop(rounds=1))
    _, before, lines = play_and_record(components)
    worker = lines[0]["active"][0]
    fail(lines, 1, worker)
    write_trace(tmp_path, lines)
    components.trainer.log.clear()
    (record,), after = run_to_end(replayed(components, tmp_path))
    assert worker in record.get("active_ids")
    assert (worker, 1) not in [entry[:2] for entry in components.trainer.log]
    assert after.control.version[worker] == 0
    assert after.control.staleness[worker] == 1
    assert record.duration_s == 99.0
    assert float(after.models.latest[worker, 0]) == worker + 1.0  # of the warm start alone
    others = [k for k in range(N) if k != worker]
    assert torch.equal(after.models.latest[others], before.models.latest[others])


def test_who_failed_is_billed_for_its_old_training_alone(tmp_path):
    components = scene(DySTop(), stop=Stop(rounds=1), engine=TESTBED, recorders=COUNTING)
    _, before, lines = play_and_record(components)
    worker, active = lines[0]["active"][0], lines[0]["active"]
    fail(lines, 1, worker)
    write_trace(tmp_path, lines)
    (record,), _ = run_to_end(replayed(components, tmp_path))
    length_s = before.progress.training_s  # of every training; all of them end within the round
    new_s = length_s[[k for k in active if k != worker]]
    assert record.get("compute_s") == pytest.approx(length_s.sum() + new_s.sum())
    assert record.get("compute_j") == pytest.approx(25.0 * record.get("compute_s"))


def test_a_round_in_which_all_failed(tmp_path):
    components = scene(DySTop(), stop=Stop(rounds=1))
    lines = play_and_record(components)[2]
    lines[0]["orders"]["failed"] = [True] * len(lines[0]["orders"]["node"])
    write_trace(tmp_path, lines)
    (record,), after = run_to_end(replayed(components, tmp_path))
    assert record.loss is None
    assert after.control.version.tolist() == [0] * N


def test_recorded_staleness_decides_which_model_is_mixed(tmp_path):
    components = scene(DySTop(), stop=Stop(rounds=1))
    lines = play_and_record(components)[2]
    models = []
    for stale in (False, True):
        lines[0]["links"]["stale"] = [stale] * len(lines[0]["links"]["dst"])
        write_trace(tmp_path, lines)
        _, after = run_to_end(replayed(components, tmp_path))
        models.append(after.models.latest.clone())
    assert lines[0]["links"]["dst"]  # or nothing was shown
    assert not torch.equal(*models)


def test_durations_follow_the_measured_waits(tmp_path):
    components = scene(DySTop())
    lines = play_and_record(components)[2]
    orders = lines[3]["orders"]
    orders["waited_s"] = [5.0] * len(orders["node"])
    orders["exchange_s"] = [float(k) for k in range(len(orders["node"]))]
    write_trace(tmp_path, lines)
    again, _ = run_to_end(replayed(components, tmp_path))
    assert again[3].duration_s == 5.0 + len(orders["node"]) - 1
    assert again[4].clock_s == pytest.approx(lines[4]["opened_s"] + again[4].duration_s)


def test_another_mechanism_meets_the_recorded_surroundings(tmp_path):
    """Links that were not recorded are timed by the channel model."""
    write_trace(tmp_path, play_and_record(scene(DySTop()))[2])
    records, _ = run_to_end(replayed(scene(MECHANISMS["d-psgd"]()), tmp_path))
    assert len(records) == 25
    assert all(np.isfinite(r.duration_s) for r in records)


def test_a_trace_of_another_fleet_is_refused(tmp_path):
    write_trace(tmp_path, play_and_record(scene(DySTop(), stop=Stop(rounds=1)))[2])
    trace = read_trace(tmp_path)
    with pytest.raises(ConfigError, match=r"9 workers without.*10 workers .*fleet\.workers"):
        TraceWorld(trace, WORLD, N + 1, 4, 0)
    with pytest.raises(ConfigError, match=r"9 workers without.*9 workers and a server"):
        TraceWorld(trace, WORLD, N, 4, 0, server=True)


def broken(line, **changes):
    return {**line, **changes}


DAMAGE = {
    "not JSON": lambda line: "{",
    "not an object": lambda line: "[]",
    "alive is missing": lambda line: {k: v for k, v in line.items() if k != "alive"},
    "round 7": lambda line: broken(line, round=7),
    "no worker": lambda line: broken(line, alive=[False] * N),
    "alive, step_s": lambda line: broken(line, step_s=[1.0]),
    "a link in reach": lambda line: broken(line, reach={"dst": [10**15], "src": [0]}),
    "or no sender": lambda line: broken(line, reach={"dst": [0, 1], "src": [1]}),
    "reach, distance_m": lambda line: broken(line, distance_m=[1.0]),
    "an order or a training": lambda line: broken(line, active=[N + 3]),
    "a link": lambda line: broken(
        line, links={k: [k in ("lost", "stale", "waits") or 99] for k in line["links"]}
    ),
    "a message": lambda line: broken(line, mailbox={k: [10**12] for k in line["mailbox"]}),
    "a time": lambda line: broken(line, duration_s=-1.0),
    r"a time is not": lambda line: broken(line, step_s=[1e300] * N),
    "something else": lambda line: broken(line, opened_s="1e999"),
    "later round": lambda line: broken(
        line, trained={"node": [0], "round": [9], "steps": [1], "seconds": [1.0]}
    ),
    "differ in length": lambda line: broken(line, links={**line["links"], "bytes": [1] * 999}),
    r"damaged \(": lambda line: broken(line, budget="plenty"),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_a_damaged_trace_says_where(message, tmp_path):
    line = play_and_record(scene(DySTop(), stop=Stop(rounds=1)))[2][0]
    bad = DAMAGE[message](line)
    text = bad if isinstance(bad, str) else json.dumps(bad)
    (tmp_path / TRACE).write_text(text + "\n")
    with pytest.raises(RunFolderError, match=f"line 1.*{message}"):
        read_trace(tmp_path)


def test_values_that_do_not_change_take_memory_once(tmp_path):
    """Every line leaves out the reach, so a short file must not become a large trace."""
    first = play_and_record(scene(DySTop(), stop=Stop(rounds=1)))[2][0]
    later = {k: v for k, v in first.items() if k not in REPEATED}
    lines = [first, *({**later, "round": t} for t in range(2, 6))]
    (tmp_path / TRACE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    rounds = read_trace(tmp_path).rounds
    for name in ("alive", "distance_m", "link_s", "step_s", "budget"):
        assert len({id(getattr(line, name)) for line in rounds}) == 1
    assert len({id(line.reach.dst) for line in rounds}) == 1


def test_a_trace_is_a_file_of_bounded_size(tmp_path):
    os.mkfifo(tmp_path / TRACE)
    with pytest.raises(RunFolderError, match=f"{TRACE}: cannot be read: not a regular file"):
        read_trace(tmp_path)
    (tmp_path / TRACE).unlink()
    (tmp_path / TRACE).touch()
    os.truncate(tmp_path / TRACE, 8 << 30)
    with pytest.raises(RunFolderError, match=f"{TRACE}: cannot be read: has 8,589,934,592 bytes"):
        read_trace(tmp_path)


def test_no_trace_and_an_empty_one(tmp_path):
    with pytest.raises(RunFolderError, match=f"{TRACE}.*dystop testbed"):
        read_trace(tmp_path)
    (tmp_path / TRACE).write_text('{"round": 1')  # cut off
    with pytest.raises(RunFolderError, match=f"{TRACE}.* round"):
        read_trace(tmp_path)
