"""A study as a Ray job, submitted from outside the cluster."""

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.errors import ConfigError, DystopError, TransportError
from dystop.experiments.executors import ray_job
from dystop.experiments.executors.attempts import Attempts
from dystop.experiments.executors.executor import Job, Need
from dystop.experiments.executors.node import describe, run_attempt
from dystop.experiments.executors.ray_job import Follower, RayJob, job_client
from dystop.experiments.executors.shared_folder import written_nonce
from support.ray_clusters import running_cluster
from support.tiny_study import TINY, Listener, records, tiny_study

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")

LIMIT_S = 1200.0  # finds what hangs; nothing is that slow
SERVER = "http://head:8265"


def until(condition):
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, "waited too long"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # Ray's own
def test_a_study_is_followed_left_stopped_and_finished(tmp_path):
    """The host outside dies, and the job goes on; somebody stops it; then it runs to the end."""
    words = ["compare", *TINY, "stop.rounds=300", "--mechanisms", "dystop", "--seeds", "1",
             "--name", "x"]  # fmt: skip
    study = tmp_path / "ray" / "x"
    outside = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    with running_cluster(job_server=True) as cluster:
        on = f"ray-job:http://{cluster.job_server}"
        command = [sys.executable, "-P", "-m", "dystop", *words, "--out", tmp_path / "ray"]

        def follow():
            return subprocess.Popen(
                [*command, "--on", on], env=outside, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip

        client = job_client(on.partition(":")[2])
        with follow() as host:
            until(lambda: list(study.glob(".attempts/*/*/records.jsonl")) or host.poll())
            assert host.returncode is None, host.stderr.read()
            host.kill()
        with follow() as host:
            until(lambda: len(client.list_jobs()) == 1 and "starts" in host.stdout.readline())
            client.stop_job(client.list_jobs()[0].submission_id)
            _, errors = host.communicate(timeout=LIMIT_S)
        assert host.returncode == 1
        assert "was stopped from outside" in errors
        assert f"dystop compare {study} --on {on}" in errors
        with follow() as host:
            shown, errors = host.communicate(timeout=LIMIT_S)
        assert host.returncode == 0, errors
        assert len(client.list_jobs()) == 2
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path / "here")])
    assert result.exit_code == 0, result.output
    assert records(study) == records(tmp_path / "here" / "x")
    assert "dystop-s0: finished" in shown
    assert f"report: {study}/report/report.html" in shown
    assert not list(study.glob(".nonce*"))


class Client:
    """A job server whose job has these states, one after the other."""

    def __init__(self, *states, logs="", jobs=()):
        self.states, self.logs, self.jobs = list(states), logs, jobs
        self.submitted, self.stopped = [], []

    def list_jobs(self):
        return self.jobs

    def submit_job(self, **words):
        self.submitted.append(words)
        return "raysubmit_1"

    def get_job_info(self, job):
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if callable(state):
            state = state() or "RUNNING"
        return SimpleNamespace(status=Status(state), message="lost", driver_exit_code=2)

    def get_job_status(self, job):
        return Status("STOPPED")

    def get_job_logs(self, job):
        return self.logs

    def stop_job(self, job):
        self.stopped.append(job)


class Status(SimpleNamespace):
    def __init__(self, value):
        super().__init__(value=value, is_terminal=lambda: value not in ("PENDING", "RUNNING"))


@pytest.fixture
def job(monkeypatch):
    """A function that runs a study with a client."""
    monkeypatch.setattr(ray_job, "_POLL_S", 0.01)

    def run(study, client, jobs=None):
        monkeypatch.setattr(ray_job, "job_client", lambda address: client)
        RayJob(SERVER, jobs).run(study, Listener())

    return run


def test_the_job_is_the_command_that_resumes_the_study(job, tmp_path):
    study, client = tiny_study(tmp_path), Client("PENDING", "RUNNING", "SUCCEEDED")
    job(study, client, jobs=3)
    (submitted,) = client.submitted
    assert submitted["metadata"] == {"dystop-study": str(study.path)}
    given = shlex.split(submitted["entrypoint"])
    assert given[:4] == ["python", "-P", "-m", "dystop.experiments.executors.ray_job"]
    expected = ["compare", str(study.path), "--on", "ray", "--quiet", "--jobs", "3", "--trust"]
    assert given[6:] == expected


def test_a_job_that_drives_the_study_already_is_followed(job, tmp_path):
    study = tiny_study(tmp_path)
    metadata = {"dystop-study": str(study.path)}
    jobs = [
        SimpleNamespace(metadata=given, status=Status(state), submission_id=name)
        for given, state, name in [
            (None, "RUNNING", "a"), (metadata, "STOPPED", "b"), (metadata, "RUNNING", "c"),
        ]
    ]  # fmt: skip
    client = Client("STOPPED", jobs=jobs)
    with pytest.raises(DystopError, match="Ray job c was stopped from outside"):
        job(study, client)
    assert client.submitted == []


def test_a_failure_is_quoted_with_its_exit_code(job, tmp_path):
    study = tiny_study(tmp_path)
    for logs, fact in (("started\nError: x: no such key", "x: no such key"), ("started", "lost")):
        with pytest.raises(DystopError, match=f"Ray job raysubmit_1: {fact}\n") as caught:
            job(study, Client("RUNNING", "FAILED", logs=logs))
        assert caught.value.exit_code == 2
        assert f"dystop compare {study.path} --on ray-job:{SERVER}" in str(caught.value)


def test_ctrl_c_stops_the_job(job, tmp_path):
    client = Client("RUNNING", lambda: signal.raise_signal(signal.SIGINT), "RUNNING")
    with pytest.raises(KeyboardInterrupt):
        job(tiny_study(tmp_path), client)
    assert client.stopped == ["raysubmit_1"]


def test_a_part_of_a_study_is_refused(job, tmp_path):
    from dataclasses import replace

    study = tiny_study(tmp_path)
    with pytest.raises(ConfigError, match="1 of 2 runs"):
        job(replace(study, experiments=study.experiments[:1]), Client("RUNNING"))


def test_a_follower_tells_what_a_driver_tells(tmp_path):
    study, listener = tiny_study(tmp_path, seeds=1), Listener()
    (experiment,), attempts = study.experiments, Attempts(study.path, lambda: None)
    follower = Follower(study, listener)
    follower.read()
    attempt = attempts.begin(experiment.name)
    follower.read()
    assert listener.started == []
    plan, out = str(study.plan(experiment)), str(attempt.place)
    words = ("run", plan, "--out", out, "--name", experiment.name, "--quiet", "--no-report")
    describe(Job(Need(experiment.name), words, attempt.folder, attempt.place, tmp_path))
    assert run_attempt(out) == (0, "")
    follower.read()
    assert listener.started == [experiment.name]
    assert listener.finished == []
    assert attempts.publish_finished(experiment.name)
    follower.read()
    follower.read()
    assert listener.finished == [experiment.name]
    assert max(listener.rounds) == (experiment.name, 6)


def test_the_head_node_must_see_the_folder_of_the_study(tmp_path, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execv", lambda program, words: started.append(words[-1]))
    with written_nonce(tmp_path) as nonce:
        with pytest.raises(SystemExit, match="must share"):
            ray_job.main([str(nonce.path), "other", "compare"])
        ray_job.main([str(nonce.path), nonce.text, "compare"])
        assert started == ["compare"]
        assert not nonce.path.exists()
        with pytest.raises(SystemExit, match="cannot be read"):
            ray_job.main([str(nonce.path), nonce.text, "compare"])


@pytest.mark.parametrize("address", ["", "head:8265", "//head:10001"])
def test_an_address_of_another_kind_is_refused(address):
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match="--on ray-job:http://HOST:8265"):
        job_client(address)


def test_a_dead_job_server_is_refused():
    pytest.importorskip("ray")
    with socket.socket() as bound:  # nobody listens there
        bound.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(TransportError, match=f"ray-job:{address}: no Ray job server"):
            job_client(address)
