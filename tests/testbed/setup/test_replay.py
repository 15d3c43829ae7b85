"""A real run, played back in the simulator: same plans, same models, the time of the reports.

How much longer a real round is than its reports say depends on how busy the machine is: `dystop
gap` measures it (docs/testbed.md). Here are the laws that hold on any machine.
"""

import numpy as np
import pytest

from dystop.config import read_experiment
from dystop.runs.building import build
from dystop.simulator.round import begin, simulate
from dystop.studies.gap import gap_of
from dystop.testbed.worker.checkpoint import decode_state
from dystop.world import read_trace
from support.testbed.whole_runs import run_command

# Links and trainings take a good part of a second. No worker is dead for being slow: a machine may
# have other things to do.
WORDS = [
    "fleet.workers=4",
    "stop.rounds=5",
    "data.name=synthetic",
    "data.options.train=400",
    "data.options.test=100",
    "model.name=softmax",
    "world.compute.batch_s=0.1",
    "world.range_m=80",
    "world.channel.bandwidth_hz=30000",
    "testbed.timeouts.suspect_s=60",
    "testbed.timeouts.dead_s=90",
    "testbed.timeouts.pull_s=60",
    "testbed.timeouts.round_s=60",
]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the folder of a testbed run without faults."""
    return run_command(tmp_path_factory.mktemp("runs"), "trial", WORDS)


def test_plans_and_completion_time(recorded):
    """A replayed round lasts until the slowest report; the real one until its arrival."""
    found, trace = gap_of(recorded, lambda *_: None), read_trace(recorded)
    assert found.rounds == len(trace.rounds) == 5
    assert not any(line.orders.failed.any() or line.links.lost.any() for line in trace.rounds)
    assert found.replay.plans.same_active == 1.0
    assert found.replay.plans.same_links == 1.0
    real = [record.duration_s for record in found.run.records]
    replayed = [record.duration_s for record in found.replay.records]
    reported = [(line.orders.waited_s + line.orders.exchange_s).max() for line in trace.rounds]
    assert replayed == pytest.approx(reported, abs=1e-6)
    assert all(short <= long for short, long in zip(replayed, real, strict=True))
    assert found.replay.durations.predicted_s == pytest.approx(sum(reported))
    assert found.replay.durations.measured_s == pytest.approx(sum(real))
    for line in trace.rounds:  # a transfer is part of the exchange of its receiver
        exchange_s = dict(zip(line.orders.node.tolist(), line.orders.exchange_s, strict=True))
        for dst, seconds in zip(line.links.dst.tolist(), line.links.seconds, strict=True):
            assert 0.0 < seconds <= exchange_s[dst]


def test_the_models_of_links_and_devices_are_compared_with_what_was_measured(recorded):
    """Emulated links and devices are never faster than their models, on any machine."""
    found = gap_of(recorded, lambda *_: None)
    for errors in (found.link_model, found.step_model):
        assert errors.count > 0
        assert errors.measured_s >= 0.99 * errors.predicted_s > 0.0


def test_models(recorded):
    """The last publication of a worker is its newest finished model in the replay."""
    components = build(read_experiment(recorded / "config.toml", [f"trace={recorded}"])).components
    *_, (_, state) = simulate(components, begin(components))
    for node, version in enumerate(state.control.version.tolist()):
        saved = recorded / "workers" / f"w{node:02d}" / "worker.safetensors"
        worker = decode_state(saved.read_bytes())
        assert worker.number in (version, version - 1)
        models = state.models.latest if worker.number == version else state.models.finished
        np.testing.assert_allclose(worker.published, models[node].numpy(), atol=1e-5)
