"""A fleet of five workers from the commands of `deploy/compose.yaml`, as processes."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.compose_processes import DEPLOY, Fleet
from dystop.experiments.config import read_experiment, to_toml
from dystop.experiments.folders.run_folder import open_run

pytest.importorskip("grpc")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="party.sh is a shell script")
SMALL = [
    "model.name=softmax",
    "data.name=synthetic",
    "data.train_limit=500",
    "data.test_limit=100",
    "training.local_steps=1",
    "stop.rounds=12",
    "evaluate.every_rounds=4",
]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    experiment = tmp_path / "experiment.toml"
    experiment.write_text(to_toml(read_experiment(DEPLOY / "experiment.toml", SMALL)))
    started = Fleet(tmp_path, experiment)
    yield started
    started.down()


def wait_for(what, within_s=180.0):
    until = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.fleet
def test_the_services_of_the_compose_file_train_together(fleet):
    fleet.up()
    workers = fleet.names("worker")
    assert len(workers) == 5
    victim = workers[2]
    wait_for(lambda: ".crt" in fleet.log(victim))  # it has its certificate, and has not joined yet
    fleet.processes[victim].send_signal(signal.SIGKILL)  # round 1 waits for all five
    fleet.processes[victim].wait(20)
    fleet.restart(victim, "worker")  # as `restart: on-failure` does
    for name in ["coordinator-1", "observer-1", *workers]:
        assert fleet.processes[name].wait(180) == 0, fleet.log(name)
        assert "the run is over" in fleet.health(name).stdout
    run = open_run(fleet.home / "volumes/ledger/lab")
    assert run.info["status"] == "finished"
    assert len(run.records) == 12
    assert run.records[-1].accuracy is not None
    fleet.run("check")
    assert "no guarantee was broken" in fleet.log("check-1")
    folders = sorted(p.name for p in (fleet.home / "volumes/workers").iterdir() if p.is_dir())
    assert folders == ["w00", "w01", "w02", "w03", "w04"]


def test_nobody_but_the_coordinator_holds_the_key_of_the_authority(fleet):
    fleet.run("authority")
    first = (fleet.home / "volumes/authority/ca.crt").read_bytes()
    fleet.restart("authority-1", "authority")  # a second `up` keeps the authority
    assert fleet.processes["authority-1"].wait(60) == 0
    assert (fleet.home / "volumes/authority/ca.crt").read_bytes() == first
    for service in ("observer", "worker"):
        mounts = [mount.split(":")[0] for mount in fleet.services[service]["volumes"]]
        assert "authority" not in mounts
        assert [m for m in fleet.services[service]["volumes"] if m.startswith("tokens")] == [
            "tokens:/var/lib/dystop/tokens:ro"
        ]
    tokens = sorted(p.name for p in (fleet.home / "volumes/tokens").iterdir())
    names = ["observer", "w00", "w01", "w02", "w03", "w04"]
    assert tokens == ["ca.crt", *(f"{name}.token" for name in names)]
