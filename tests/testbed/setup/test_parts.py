"""The parts of workers and observers: the trainings and the fleet of the simulator."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from dystop.config import read_experiment
from dystop.errors import ConfigError, RunFolderError
from dystop.runs.building import build
from dystop.testbed.events import StartTraining
from dystop.testbed.setup.coordinator_run import TraceLog
from dystop.testbed.setup.enrolment import (
    ENROLMENT,
    check_testbed,
    coordinator_setup,
    node_names,
    node_of,
    read_enrolment,
    step_seconds,
    write_enrolment,
)
from dystop.testbed.setup.launch import make_folder
from dystop.testbed.setup.parts import observer_parts, worker_parts
from dystop.testbed.setup.preparation import prepare
from dystop.training.trainer import Trainer
from dystop.world.capacity import JETSONS, jetson_factors

SMALL = ["data.name=synthetic", "fleet.workers=4", "stop.rounds=3", "data.train_limit=200"]
LESSON = ["fleet.workers=4", "model.name=softmax", "data.name=synthetic"]  # of the two hosts


@pytest.mark.parametrize("yard", [[], ["world.range_m=40"], ["world.mobility.enabled=true"]])
@pytest.mark.parametrize("mechanism", ["dystop", "fedavg"])
def test_with_free_links_everybody_is_in_reach(yard, mechanism):
    free = [*LESSON, *yard, f"mechanism.name={mechanism}", "testbed.links=free"]
    run = prepare(read_experiment(None, free))
    setup = coordinator_setup(run.experiment, run.enrolment, "run")
    nodes = setup.fleet.nodes
    for now_s in (0.0, 60.0):
        seen = setup.world.observe(1, now_s)
        assert seen.reach.edges == nodes * (nodes - 1)
        assert (seen.distance_m > 0).all()
        assert seen.link_s.max() < 20 * seen.link_s.min()  # no distance slows a link
    assert run.physics["connected"] == "yes"
    assert run.fleet["range_m"] >= np.hypot(*run.fleet["area_m"])


def test_emulated_links_keep_the_range():
    run = prepare(read_experiment(None, [*LESSON, "world.range_m=40"]))
    assert run.physics["connected"].startswith("no")
    assert run.fleet["range_m"] == 40.0


@pytest.mark.parametrize("workers", [4, 6])
def test_a_small_testbed_is_in_one_piece(workers):
    run = prepare(read_experiment(None, [*LESSON, f"fleet.workers={workers}"]))
    assert run.physics["connected"] == "yes"
    assert run.fleet["range_m"] == 40.0


@pytest.fixture(scope="module", params=["softmax", "mlp", "cnn"])
def experiment(request):
    words = [*SMALL, f"model.name={request.param}"]
    if request.param == "cnn":
        words += ["data.name=fmnist-mini", "data.test_limit=100"]
    return read_experiment(None, words)


def test_a_worker_trains_as_the_simulator_does(experiment):
    """Same node, number, start and steps: the same samples in the same order."""
    components = build(experiment).components
    vector, counters = components.trainer.initial()
    for node in (0, 3):
        worker = worker_parts(experiment, node)
        np.testing.assert_array_equal(worker.vector, vector.numpy())
        order = StartTraining(2, worker.vector, worker.counters, int(components.steps[node]), 0.5)
        mine = worker.train(order)
        whole = components.trainer.train(
            vector[None],
            counters[None],
            np.array([node]),
            np.array([2]),
            components.steps[[node]],
            np.array([0.5]),
        )
        np.testing.assert_allclose(mine.vector, whole.models[0].numpy(), rtol=0, atol=1e-6)
        assert mine.samples == whole.samples
        assert mine.loss == pytest.approx(float(whole.loss[0]), abs=1e-6)
        np.testing.assert_array_equal(worker.train(order).vector, mine.vector)
        assert worker.data_size == components.fleet.data_size[node]
        assert worker.label_counts == tuple(components.fleet.label_counts[node])
        assert worker.first_steps == components.steps[node]
        assert worker.step_s == components.world.observe(1, 0.0).step_s[node]
        (held,) = (
            c for c in (c.cell_contents for c in worker.train.__closure__) if isinstance(c, Trainer)
        )
        assert len(held._problem.samples) == worker.data_size


def test_an_observer_scores_as_the_simulator_does(experiment):
    components, observer = build(experiment).components, observer_parts(experiment)
    vector, counters = components.trainer.initial()
    found = observer.trainer.evaluate(vector[None], counters[None], observer.samples)
    truth = components.trainer.evaluate(vector[None], counters[None])
    np.testing.assert_array_equal(found.accuracy, truth.accuracy)
    np.testing.assert_array_equal(observer.data_size, components.fleet.data_size)
    assert torch.equal(torch.from_numpy(observer.counters), counters)


def test_enrolment_is_the_fleet(experiment, tmp_path):
    prepared = prepare(experiment)
    write_enrolment(tmp_path, prepared.enrolment)
    assert (tmp_path / ENROLMENT).stat().st_mode & 0o077 == 0  # label counts are not for everybody
    again = read_enrolment(tmp_path, experiment)
    assert again == prepared.enrolment
    fleet, truth = again.fleet(experiment), build(experiment).components.fleet
    np.testing.assert_array_equal(fleet.label_counts, truth.label_counts)
    assert (fleet.model_bytes, fleet.horizon) == (truth.model_bytes, truth.horizon)
    assert again.schema == worker_parts(experiment, 1).schema.hash
    assert prepared.fleet == {**build(experiment).fleet, "device": prepared.fleet["device"]}


def test_a_coordinator_starts_without_torch(tmp_path):
    """It is restarted in the middle of rounds, and torch takes longer to load than all the rest."""
    folder, _ = make_folder(read_experiment(None, [*SMALL, "model.name=softmax"]), tmp_path, "run")
    code = (
        "import sys; from pathlib import Path; import dystop.cli.testbed.parties;"
        "from dystop.testbed.transport.grpc import GrpcTransport;"
        "from dystop.testbed.setup.coordinator_run import open_coordinator_run;"
        "from dystop.testbed.setup.enrolment import coordinator_setup;"
        "run = open_coordinator_run(Path(sys.argv[1], 'config.toml'), Path(sys.argv[1]));"
        "coordinator_setup(run.experiment, run.enrolment, 'run');"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    assert done.returncode == 0


def test_an_edited_enrolment_is_checked(tmp_path):
    experiment = read_experiment(None, [*SMALL, "model.name=softmax"])
    write_enrolment(tmp_path, prepare(experiment).enrolment)
    raw = json.loads((tmp_path / ENROLMENT).read_text())
    raw["workers"][1]["data_size"] += 1
    (tmp_path / ENROLMENT).write_text(json.dumps(raw))
    with pytest.raises(RunFolderError, match="w01: data_size"):
        read_enrolment(tmp_path, experiment)
    raw["workers"][1] |= {"data_size": 0, "label_counts": []}
    (tmp_path / ENROLMENT).write_text(json.dumps(raw))
    with pytest.raises(RunFolderError, match="w01: no samples"):
        read_enrolment(tmp_path, experiment)
    raw["workers"] = raw["workers"][:1]
    (tmp_path / ENROLMENT).write_text(json.dumps(raw))
    with pytest.raises(RunFolderError, match=r"enrols 1; .* w00 to w03; missing: w01, w02, w03"):
        read_enrolment(tmp_path, experiment)
    with pytest.raises(RunFolderError, match="cannot be read"):
        read_enrolment(tmp_path / "none", experiment)


@pytest.mark.parametrize(
    ("word", "match"),
    [
        ("engine.timing=overlap", "use 'testbed'"),
        ("staleness.rule=compensate", "only a simulator"),
        ("testbed.links=trace", "needs testbed.trace"),
        ("model.wire_bytes=9", "of their own size"),
    ],
)
def test_what_only_a_simulator_can_do_is_refused(word, match):
    with pytest.raises(ConfigError, match=match):
        check_testbed(read_experiment(None, [*SMALL, word]))


def test_a_server_has_no_data():
    experiment = read_experiment(None, [*SMALL, "model.name=softmax", "mechanism.name=fedavg"])
    assert node_names(experiment) == ["w00", "w01", "w02", "w03", "server"]
    server = worker_parts(experiment, node_of(experiment, "server"))
    assert (server.train, server.data_size, server.first_steps) == (None, 0, 0)
    with pytest.raises(ConfigError, match=r"w09.*w00 to"):
        node_of(experiment, "w09")


def test_the_fifteen_devices_of_the_paper():
    assert sum(count for _, count, _ in JETSONS) == 15
    factors = jetson_factors(15)
    assert factors.max() / factors.min() > 10
    words = [*SMALL, "testbed.devices=jetson", "model.name=softmax"]
    experiment = read_experiment(None, words)
    fleet = build(experiment).components.fleet
    np.testing.assert_allclose(step_seconds(experiment, fleet), 0.02 * factors[:4])
    slow = worker_parts(read_experiment(None, [*words, "testbed.time_scale=0.1"]), 0)
    assert slow.step_s == pytest.approx(0.02 * 5.6 * 0.1)
    assert worker_parts(read_experiment(None, [*words, "testbed.devices=free"]), 0).step_s == 0


def test_the_trace_omits_unchanged_values(tmp_path):
    steady = {"alive": [1, 1], "step_s": [0.5, 0.5]}
    for kept in (0, 1):  # a new process does not know what the last one wrote
        log = TraceLog(tmp_path, kept)
        log.append({"t": kept + 1, **steady})
        log.append({"t": kept + 2, **steady, "alive": [1, 0]})
        log.close()
    lines = [json.loads(line) for line in (tmp_path / "trace.jsonl").read_text().splitlines()]
    assert lines == [{"t": 1, **steady}, {"t": 2, **steady}, {"t": 3, "alive": [1, 0]}]
