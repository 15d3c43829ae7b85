"""Workers with private data: they load nothing else, and disclose only counts and statistics."""

import json
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.config import read_experiment, to_toml
from dystop.data.dataset import channel_stats
from dystop.data.private import Facts, PrivateData, combine, describe, read_facts
from dystop.errors import ConfigError, DataError, RunFolderError
from dystop.folders.run_folder import open_run
from dystop.runs.building import build, load_data, split_data
from dystop.testbed.events import StartTraining
from dystop.testbed.setup import parts
from dystop.testbed.setup.coordinator_run import open_coordinator_run
from dystop.testbed.setup.enrolment import node_names, read_enrolled, read_status
from dystop.testbed.setup.parties import PartyConnection, make_worker
from dystop.testbed.setup.parts import observer_parts, worker_parts
from dystop.testbed.setup.preparation import prepare
from dystop.testbed.setup.threads import CoordinatorThread
from dystop.testbed.transport.memory import MemoryHub, MemoryTransport

PUBLIC = ["data.name=fmnist-mini", "data.train_limit=200", "data.test_limit=50", "fleet.workers=3"]
MORE = ["model.name=softmax", "training.batch=16", "stop.rounds=3", "testbed.observer=false"]
FREE = ["testbed.devices=free", "testbed.links=free"]
SOON_S = 20.0


def dystop(*words):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Describe and enrol three hosts with a file each; return the common configuration."""
    monkeypatch.chdir(tmp_path)
    public = read_experiment(None, [*PUBLIC, *MORE, *FREE])
    data = load_data(public)
    for k, shard in enumerate(split_data(public, data)):
        np.savez(f"own{k}.npz", x=data.x_train[shard], y=data.y_train[shard])
        line = dystop("data", "describe", f"own{k}.npz", "--classes", 10)
        Path(f"w0{k}.json").write_text(line)
    keys = dystop("data", "enrol", "w02.json", "w00.json", "w01.json")
    Path("keys.toml").write_text(keys)
    experiment = read_experiment(Path("keys.toml"), [*PUBLIC, *MORE, *FREE])
    Path("lab.toml").write_text(to_toml(experiment))
    return experiment


def forbid_public_data(monkeypatch):
    def forbidden(*_):
        raise AssertionError("the public data were loaded")

    monkeypatch.setattr(parts, "load_data", forbidden)


def test_hosts_normalise_as_if_they_had_one_set(lab):
    data = load_data(read_experiment(None, [*PUBLIC]))
    mean, std = channel_stats(data.x_train)
    private = lab.data.private
    assert (private.classes, private.shape) == (10, (1, 28, 28))
    np.testing.assert_allclose((private.mean, private.std), (mean, std), rtol=1e-12)
    facts = json.loads(Path("w01.json").read_text())
    assert set(facts) == {"data_size", "label_counts", "shape", "pixels", "mean", "std"}


def test_the_enrolment_is_that_of_the_split(lab, monkeypatch):
    public = prepare(read_experiment(None, [*PUBLIC, *MORE, *FREE])).enrolment
    forbid_public_data(monkeypatch)
    assert prepare(lab, read_enrolled(Path("enrolment.json"), lab)).enrolment == public


@pytest.mark.parametrize("node", [0, 2])
def test_a_worker_trains_on_its_own_file_alone(lab, monkeypatch, node):
    public = worker_parts(read_experiment(None, [*PUBLIC, *MORE, *FREE]), node)
    forbid_public_data(monkeypatch)
    own = worker_parts(lab, node, Path(f"own{node}.npz"))
    for name in ("data_size", "label_counts", "first_steps", "step_s"):
        assert getattr(own, name) == getattr(public, name)
    assert own.schema.hash == public.schema.hash
    order = StartTraining(1, own.vector, own.counters, own.first_steps, 1.0)
    theirs = public.train(order)  # normalised by the whole set, of which 200 images were taken
    np.testing.assert_allclose(own.train(order).vector, theirs.vector, atol=2e-2)


def test_a_server_needs_no_data(lab, monkeypatch):
    forbid_public_data(monkeypatch)
    words = [*PUBLIC, *MORE, *FREE, "mechanism.name=fedavg"]
    experiment = read_experiment(Path("keys.toml"), words)
    server = worker_parts(experiment, 3)
    assert (server.train, server.data_size) == (None, 0)
    assert server.schema.hash == worker_parts(lab, 0, Path("own0.npz")).schema.hash


def test_the_observer_sees_images_as_the_workers_do(lab):
    with pytest.raises(ConfigError, match=r"started by hand.* --enrolment FILE"):
        observer_parts(lab)
    enrolled = read_enrolled(Path("enrolment.json"), lab)
    parts = observer_parts(lab, enrolled)
    assert parts.data_size.tolist() == [worker.data_size for worker in enrolled]
    other = read_experiment(Path("lab.toml"), ["data.name=synthetic"])
    with pytest.raises(ConfigError, match=r"images of shape \(1, 8, 8\)"):
        observer_parts(other, enrolled)


def start_parties(lab, run, files, stack):
    """Start a coordinator and workers with these files as threads; return them."""
    hub = stack.enter_context(MemoryHub())
    coordinator = CoordinatorThread(run, MemoryTransport(hub, "coordinator"))
    stack.callback(coordinator.close)
    address = coordinator.start()
    workers = []
    for node, file in enumerate(files):
        name = node_names(lab)[node]
        connection = PartyConnection(MemoryTransport(hub, name), address, "memory:0")
        parts = worker_parts(lab, node, Path(file))
        workers.append(make_worker(parts, lab, Path("homes") / name, connection))
        stack.callback(workers[-1].close)
        workers[-1].start()
    return coordinator, workers


def test_a_run_from_end_to_end(lab, monkeypatch):
    forbid_public_data(monkeypatch)
    coordinator_run = open_coordinator_run(
        Path("lab.toml"), Path("runs/lab"), Path("enrolment.json")
    )
    with ExitStack() as stack:
        coordinator, workers = start_parties(
            lab, coordinator_run, [f"own{k}.npz" for k in range(3)], stack
        )
        assert [worker.wait(SOON_S).code for worker in workers] == [0, 0, 0]
        coordinator.thread.join(SOON_S)
        coordinator.raise_error()
    run = open_run(Path("runs/lab"))
    assert run.info["status"] == "finished"
    assert [record.round for record in run.records] == [1, 2, 3]
    first = read_status(Path("runs/lab"))["run"]
    assert len(first) == 32
    assert {worker.machine.state.run for worker in workers} == {first}


def test_a_second_run_of_equal_settings_is_another_run(lab):
    """A worker with the folder of an old run is refused; the reason names both runs."""
    for name, code in (("one", 0), ("two", 2)):
        coordinator_run = open_coordinator_run(
            Path("lab.toml"), Path("runs") / name, Path("enrolment.json")
        )
        with ExitStack() as stack:
            _, workers = start_parties(
                lab, coordinator_run, [f"own{k}.npz" for k in range(3)], stack
            )
            ends = [worker.wait(SOON_S) for worker in workers]
            assert [end.code for end in ends] == [code] * 3, ends
            until(lambda name=name: read_status(Path("runs") / name).get("run"))
    one, two = (read_status(Path("runs") / name)["run"] for name in ("one", "two"))
    assert one != two
    assert one[:16] in ends[0].text
    assert two[:16] in ends[0].text


def test_other_samples_than_enrolled_are_refused(lab):
    with np.load("own1.npz") as own:
        np.savez("fewer.npz", x=own["x"][1:], y=own["y"][1:])
        changed = own["y"].copy()
        changed[0] = (changed[0] + 1) % 10
        np.savez("changed.npz", x=own["x"], y=changed)
    for file, fact in (("fewer.npz", "data size"), ("changed.npz", "label")):
        coordinator_run = open_coordinator_run(
            Path("lab.toml"), Path("runs/lab"), Path("enrolment.json")
        )
        with ExitStack() as stack:
            _, (_, wrong) = start_parties(lab, coordinator_run, ["own0.npz", file], stack)
            end = wrong.wait(SOON_S)
            assert end.code == 2
            assert fact in end.text
            assert "enrolled" in end.text


@pytest.mark.parametrize(
    ("files", "problems"),
    [
        (["w00.json", "b/w00.json"], "twice: w00; missing: w01"),
        (["alice.json", "w00.json"], "unexpected: alice; missing: w01"),
        (["w00.json", "w02.json"], "unexpected: w02; missing: w01"),
    ],
)
def test_every_file_describes_one_worker(lab, files, problems):
    before = Path("enrolment.json").read_bytes()
    Path("b").mkdir()
    for file in files:
        Path(file).write_text(Path("w01.json").read_text())
    result = CliRunner().invoke(app, ["data", "enrol", *files])
    assert result.exit_code == 2
    assert f"w00.json to w01.json; {problems}" in result.output
    assert Path("enrolment.json").read_bytes() == before


def test_a_label_beyond_the_classes_is_refused(lab):
    result = CliRunner().invoke(app, ["data", "describe", "own0.npz", "--classes", "5"])
    assert result.exit_code == 2
    assert "own0.npz: label 8 " in result.output
    assert "0 to 4" in result.output


def test_a_missing_file_of_samples_names_the_right_arrays(lab):
    result = CliRunner().invoke(app, ["data", "describe", "nope.npz"])
    assert result.exit_code == 2
    assert f"no such file in {Path.cwd()}" in result.output
    assert "x and y, or x_train and y_train" in result.output


def test_what_does_not_fit_is_refused(lab):
    public = read_experiment(None, [*PUBLIC, *MORE])
    for wrong in (lambda: worker_parts(lab, 0), lambda: worker_parts(public, 0, Path("own0.npz"))):
        with pytest.raises(ConfigError, match=r"--data and data\.private belong together"):
            wrong()
    with pytest.raises(ConfigError, match=r"started by hand.* --enrolment FILE"):
        prepare(lab)
    with pytest.raises(ConfigError, match=r"the configuration has no data\.private"):
        prepare(public, read_enrolled(Path("enrolment.json"), lab))
    with pytest.raises(ConfigError, match="leave these keys out"):
        build(lab)
    with pytest.raises(ConfigError, match="one number for each channel"):
        prepare(read_experiment(Path("lab.toml"), ["data.private.mean=[]"]))
    small = read_experiment(Path("lab.toml"), ["data.private.shape=[1,8,8]"])
    with pytest.raises(DataError, match=r"shape \(1, 28, 28\).*private\.shape is \(1, 8, 8\)"):
        worker_parts(small, 0, Path("own0.npz"))
    few = read_experiment(Path("lab.toml"), ["data.private.classes=3"])
    with pytest.raises(DataError, match=r"label 8 is out of range; data\.private\.classes is 3"):
        worker_parts(few, 0, Path("own0.npz"))
    with pytest.raises(ConfigError, match=r"w00 has 10 label counts; data\.private\.classes is 3"):
        read_enrolled(Path("enrolment.json"), few)


def test_a_resumed_run_keeps_its_enrolment(lab):
    open_coordinator_run(Path("lab.toml"), Path("runs/lab"), Path("enrolment.json"))
    open_coordinator_run(Path("lab.toml"), Path("runs/lab"))
    raw = json.loads(Path("enrolment.json").read_text())
    raw["workers"][0]["data_size"] += 1
    raw["workers"][0]["label_counts"][0] += 1
    Path("other.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError, match=r"other\.json.*--enrolment"):
        open_coordinator_run(Path("lab.toml"), Path("runs/lab"), Path("other.json"))
    Path("lab.toml").write_text(to_toml(read_experiment(Path("lab.toml"), ["stop.rounds=9"])))
    with pytest.raises(ConfigError, match=r"config\.toml.*--out"):
        open_coordinator_run(Path("lab.toml"), Path("runs/lab"))
    Path("other.json").write_text("{}")
    with pytest.raises(RunFolderError, match="not an enrolment"):
        open_coordinator_run(Path("lab.toml"), Path("runs/more"), Path("other.json"))


def test_descriptions_are_checked(tmp_path):
    path = tmp_path / "own.npz"
    np.savez(path, x_train=np.full((4, 5, 5), 7, np.uint8), y_train=np.array([0, 1, 1, 2]))
    facts = describe(path)
    assert facts == Facts(4, (1, 2, 1), (1, 5, 5), "uint8", (7 / 255,), (0.0,))
    assert combine([facts]) == PrivateData(3, (1, 5, 5), (7 / 255,), (1.0,))
    floats = Facts(2, (1, 1), (1, 5, 5), "float32", (0.0,), (1.0,))
    with pytest.raises(DataError, match="all workers need the same"):
        combine([facts, floats])
    for text, fact in (
        ("[]", "w00.json: not the description"),
        ('{"data_size": 1}', "label_counts"),
    ):
        (tmp_path / "w00.json").write_text(text)
        with pytest.raises(DataError, match=fact):
            read_facts(tmp_path / "w00.json")
    with pytest.raises(DataError, match="dystop data describe"):
        read_facts(tmp_path / "none.json")
    np.savez(path, x=np.zeros((3, 5, 5), np.uint8), y=np.array([0, -1, 1]))
    with pytest.raises(DataError, match="one label from 0 on"):
        describe(path)
    np.savez(path, x=np.zeros((3, 5, 5), np.uint8))
    with pytest.raises(DataError, match="x_train and y_train, or x and y"):
        describe(path)


def until(holds):
    end = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
