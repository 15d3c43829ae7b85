"""A fleet of five workers from the commands of `deploy/compose.yaml`, as processes."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.compose_processes import DEPLOY, Fleet
from dystop.config import read_experiment, to_toml
from dystop.folders.run_folder import open_run

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


def wait_for(what, within_s=600.0):
    until = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < until
        time.sleep(0.1)


@pytest.mark.fleet
def test_the_services_of_the_compose_file_train_together(fleet):
    fleet.up()
    workers = [f"{name}-1" for name in fleet.workers()]
    assert len(workers) == 5
    victim = workers[2]
    wait_for(lambda: ".crt" in fleet.log(victim))  # it has its certificate, and has not joined yet
    fleet.processes[victim].send_signal(signal.SIGKILL)  # round 1 waits for all five
    fleet.processes[victim].wait(600)
    fleet.restart(victim, "w02")  # as `restart: on-failure` does
    for name in ["coordinator-1", "observer-1", *workers]:
        assert fleet.processes[name].wait(600) == 0, fleet.log(name)
        assert "the run is over" in fleet.health(name).stdout
    run = open_run(fleet.home / "volumes/ledger/lab")
    assert run.info["status"] == "finished"
    assert len(run.records) == 12
    assert run.records[-1].accuracy is not None
    fleet.run("check")
    assert "no guarantee was broken" in fleet.log("check-1")
    for name in fleet.workers():  # nobody else's key is on its volume
        assert [p.name for p in (fleet.home / "volumes" / name).iterdir()] == [name]


def test_nobody_but_the_coordinator_holds_the_key_of_the_authority(fleet):
    fleet.run("authority")
    first = (fleet.home / "volumes/authority/ca.crt").read_bytes()
    fleet.restart("authority-1", "authority")  # a second `up` keeps the authority
    assert fleet.processes["authority-1"].wait(600) == 0
    assert (fleet.home / "volumes/authority/ca.crt").read_bytes() == first
    own = {name: {f"{name}", f"tokens/{name}"} for name in ("observer", *fleet.workers())}
    volumes = fleet.home / "volumes"
    for name, allowed in own.items():
        assert {str(source.relative_to(volumes)) for source, _ in fleet.mounts(name)} == allowed
        files = sorted(p.name for p in (volumes / "tokens" / name).iterdir())
        assert files == ["ca.crt", f"{name}.token"]
        assert fleet.services[name]["volumes"][1]["read_only"]
    assert sorted(p.name for p in (volumes / "tokens").iterdir()) == ["ca.crt", *sorted(own)]


def test_every_container_has_limits(fleet):
    for name, service in fleet.services.items():
        for limit in ("mem_limit", "pids_limit", "cpus"):
            assert service[limit], (name, limit)
