"""Slurm: what is asked for, what is refused, and runs through submitit's cluster of one machine."""

import json
import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli import app
from dystop.errors import ConfigError, DystopError
from dystop.studies.executors import choice as executors
from dystop.studies.executors import slurm
from dystop.studies.executors.choice import Choice, choose, make_executor
from dystop.studies.executors.driver import run_study
from dystop.studies.executors.executor import Job, Need
from dystop.studies.executors.local import LocalExecutor
from dystop.studies.executors.slurm import SlurmExecutor, SlurmParams, SubmititEngine
from dystop.studies.study import finished
from support.tiny_study import TINY, Listener, records, tiny_study


class LocalCluster(SubmititEngine):
    """Jobs through submitit's executor for one machine, which takes the place of Slurm."""

    cluster = "local"

    def __init__(self, folder):
        super().__init__(folder)
        self.jobs = {}

    def submit(self, places, wanted):
        new = self._submitted(places, wanted)
        self.jobs |= {job.job_id: job for job in new}
        return [job.job_id for job in new]

    def states(self, jobs):
        words = {"RUNNING": "RUNNING", "FINISHED": "COMPLETED", "INTERRUPTED": "NODE_FAIL"}
        return {job: words[self.jobs[job].state] for job in jobs if job in self.jobs}

    def cancel(self, job):
        self.jobs[job].cancel()


class OneMachine(SlurmExecutor):
    """Slurm has a queue; submitit's cluster of one machine has none."""

    capacity = 2

    def __init__(self):
        super().__init__(SlurmParams(memory_gb=1), engine=LocalCluster)

    def close(self):
        for job in self._engine.jobs.values():
            job._process.wait()


@pytest.mark.parametrize("runs", [2, pytest.param(24, marks=pytest.mark.chaos)])
def test_runs_have_the_bytes_of_local_runs(tmp_path, monkeypatch, runs):
    monkeypatch.setenv("DYSTOP_KERNELS", "off")  # starts faster, and the records are the same
    here, there = (tiny_study(tmp_path, seeds=runs, name=name) for name in ("here", "there"))
    run_study(here, LocalExecutor(1), Listener())
    listener = Listener()
    run_study(there, OneMachine(), listener)
    assert records(there.path) == records(here.path)
    assert len(listener.finished) == runs
    assert listener.retried == []
    assert sorted(os.listdir(there.path)) == sorted(os.listdir(here.path))


class FakeSlurm:
    """A cluster whose jobs are in the states that a test says."""

    def __init__(self, folder=None):
        self.wanted, self.cancelled, self.now = [], [], {}

    def submit(self, places, wanted):
        self.wanted.append(wanted)
        return [f"7_{number}" for number in range(len(places))]

    def states(self, jobs):
        return {job: self.now[job] for job in jobs if job in self.now}

    def cancel(self, job):
        self.cancelled.append(job)

    def log_tail(self, job):
        return self.now.get("log", "")


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setattr(slurm, "_ASK_S", 0.0)
    monkeypatch.setattr(slurm, "_SETTLE_S", 0.0)
    return FakeSlurm()


def job_in(tmp_path, run="a", **need):
    place = tmp_path / "study" / ".attempts" / f"{run}.00000000"
    place.mkdir(parents=True)
    return Job(Need(run, **need), ("resume",), place / run, place)


def submitted(tmp_path, cluster, **params):
    executor = SlurmExecutor(SlurmParams(**params), engine=lambda folder: cluster)
    job = job_in(tmp_path)
    return executor, job, executor.submit([job])[0]


def test_what_a_job_array_asks_for(tmp_path, cluster):
    params = SlurmParams(
        partition="gpu", account="me", time_min=240, cpus=4, options=("constraint=a100",),
        setup=("module load cuda",),
    )  # fmt: skip
    executor = SlurmExecutor(params, jobs=8, engine=lambda folder: cluster)
    small, large = 2**30, 20 * 2**30
    jobs = [
        job_in(tmp_path, "a", device="cuda", memory_bytes=small),
        job_in(tmp_path, "b", device="auto", memory_bytes=large),
    ]
    assert [job.handle for job in executor.submit(jobs)] == ["7_0", "7_1"]
    assert cluster.wanted == [
        {
            "name": "study", "timeout_min": 240, "cpus_per_task": 4, "mem_gb": 30.0,
            "gpus_per_node": 1, "slurm_partition": "gpu", "slurm_account": "me",
            "slurm_array_parallelism": 8, "slurm_setup": ["module load cuda"],
            "slurm_signal_delay_s": 90,
            "slurm_additional_parameters": {"constraint": "a100", "no-requeue": True},
        }
    ]  # fmt: skip


def test_submitit_writes_a_script_that_slurm_understands(tmp_path):
    from submitit.slurm.slurm import _make_sbatch_string

    text = _make_sbatch_string(
        "true", tmp_path, partition="gpu", map_count=3, array_parallelism=2, signal_delay_s=90,
        additional_parameters={"no-requeue": True},
    )  # fmt: skip
    for line in ("--array=0-2%2", "--no-requeue", "--partition=gpu", "--signal=USR2@90"):
        assert f"#SBATCH {line}" in text.splitlines()


def test_memory_and_gpus_can_be_chosen(tmp_path, cluster):
    executor, _, _ = submitted(tmp_path, cluster, memory_gb=5.0, gpus=2)
    assert (cluster.wanted[0]["mem_gb"], cluster.wanted[0]["gpus_per_node"]) == (5.0, 2)
    assert not executor.estimates_memory


def note(job, code, errors=""):
    (job.place / "claimed").touch()
    (job.place / "errors.txt").write_text(errors)
    (job.place / "ended.json").write_text(json.dumps({"code": code}))


def test_a_job_waits_runs_and_ends(tmp_path, cluster):
    _, job, watched = submitted(tmp_path, cluster)
    cluster.now["7_0"] = "PENDING"
    assert (watched.state(), watched.poll()) == ("waiting", None)
    (job.place / "claimed").touch()
    cluster.now["7_0"] = "RUNNING on n1"
    assert (watched.state(), watched.poll()) == ("running", None)
    note(job, 2, "Error: stop.rounds = -1\n")
    ended = watched.poll()
    assert (ended.code, ended.reason, ended.may_retry) == (2, "stop.rounds = -1", False)


@pytest.mark.parametrize("noted", [True, False])
def test_a_job_cancelled_from_outside_is_reported_and_not_attempted_again(tmp_path, cluster, noted):
    _, job, watched = submitted(tmp_path, cluster)
    if noted:  # the command had the time to save
        note(job, 143)
        cluster.now["7_0"] = "COMPLETING on n1"
        assert watched.poll() is None  # not known yet why it was asked to exit
    cluster.now["7_0"] = "CANCELLED by 1000 on n1"
    ended = watched.poll()
    assert not ended.may_retry
    assert "job 7_0 was cancelled outside of dystop" in ended.reason
    assert "CANCELLED by 1000 on n1" in ended.reason


def test_a_job_at_its_time_limit_gets_another_one(tmp_path, cluster):
    _, job, watched = submitted(tmp_path, cluster)
    note(job, 143)
    cluster.now["7_0"] = "TIMEOUT on n1"
    assert watched.poll().may_retry
    assert "time limit" in watched.poll().reason


def test_a_lost_node_is_named(tmp_path, cluster):
    _, _, watched = submitted(tmp_path, cluster)
    cluster.now["7_0"] = "NODE_FAIL on n3"
    watched.poll()
    ended = watched.poll()
    assert ended.may_retry
    assert "NODE_FAIL on n3" in ended.reason
    assert "share" in ended.reason  # it wrote nothing: perhaps the folder is not shared


def test_a_job_that_could_not_begin_shows_its_log(tmp_path, cluster):
    _, _, watched = submitted(tmp_path, cluster)
    cluster.now |= {"7_0": "FAILED on n1", "log": "No module named submitit"}
    watched.poll()
    assert "No module named submitit" in watched.poll().reason


def test_jobs_of_a_dead_driver_are_found_while_they_wait_or_run(tmp_path, cluster):
    executor = SlurmExecutor(SlurmParams(), engine=lambda folder: cluster)
    job = job_in(tmp_path)
    cluster.now["9"] = "PENDING"
    assert executor.find(job, "9").handle == "9"
    cluster.now["9"] = "NODE_FAIL on n1"
    assert executor.find(job, "9") is None
    note(job, 0)
    assert executor.find(job, "9").poll().code == 0


def test_our_own_cancellation_calls_scancel(tmp_path, cluster):
    _, job, watched = submitted(tmp_path, cluster)
    cluster.now["7_0"] = "RUNNING on n1"
    watched.cancel()
    assert cluster.cancelled == ["7_0"]
    note(job, 143)
    watched.close()


def test_squeue_and_sacct_are_read(monkeypatch):
    asked = []

    def answer(command):
        asked.append(command[0])
        if command[0] == "squeue":
            return 0, "7_0|RUNNING|n1\n7_1|PENDING|\n", ""
        return 0, "7_2|CANCELLED by 1000|n2\n", ""

    monkeypatch.setattr(slurm, "_answer", answer)
    states = SubmititEngine(Path("/none")).states(["7_0", "7_1", "7_2", "7_3"])
    assert states == {
        "7_0": "RUNNING on n1", "7_1": "PENDING", "7_2": "CANCELLED by 1000 on n2",
        "7_3": "unknown to Slurm",
    }  # fmt: skip
    assert asked == ["squeue", "sacct"]
    monkeypatch.setattr(slurm, "_answer", lambda command: (1, "", "Unable to contact controller"))
    assert SubmititEngine(Path("/none")).states(["7_0"]) == {}  # not gone, only not known now


def test_refusals(tmp_path, monkeypatch):
    executor = make_executor(Choice("slurm"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="sbatch and srun are not on this machine"):
        executor.check(tmp_path, [])
    monkeypatch.setattr(slurm.shutil, "which", lambda command: command)
    monkeypatch.setattr(slurm, "_answer", lambda command: (1, "", "Unable to contact controller"))
    with pytest.raises(DystopError, match="Unable to contact controller"):
        executor.check(tmp_path, [])
    monkeypatch.setattr(slurm, "_answer", lambda command: (0, "cpu\ngpu\n", ""))
    executor.check(tmp_path, [])
    with pytest.raises(ConfigError, match=r"slurm\.partition = 'gpus'; this cluster has cpu, gpu"):
        make_executor(Choice("slurm", settings={"partition": "gpus"})).check(tmp_path, [])
    with pytest.raises(ConfigError, match="Slurm has no address"):
        make_executor(Choice("slurm:login1"))
    with pytest.raises(ConfigError, match=r"slurm\.time_min = 0; expected an integer > 0"):
        make_executor(Choice("slurm", settings={"time_min": 0}))
    with pytest.raises(ConfigError, match=r"unknown key 'slurm\.partitio'"):
        make_executor(Choice("slurm", settings={"partitio": "gpu"}))


def compare(*words):
    return CliRunner().invoke(app, ["compare", *map(str, words)])


def test_the_command_line_refuses(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    usual = [*TINY, "--mechanisms", "dystop"]
    for words, fact in [
        (["--on", "slrum"], "did you mean 'slurm'?"),
        (["slurm.partition=gpu"], "slurm.partition is a key of --on slurm"),
        (["--on", "slurm", "slurm.cpus=none"], "slurm.cpus"),
    ]:
        result = compare(*usual, *words)
        assert (result.exit_code, fact in result.stderr) == (2, True), result.stderr
    monkeypatch.setitem(sys.modules, "submitit", None)
    result = compare(*usual, "--on", "slurm")
    assert result.exit_code == 2
    assert "pip install 'dystop[slurm]'" in result.stderr
    assert os.listdir(tmp_path) == []


def test_settings_come_from_the_file_and_are_no_part_of_the_experiment(tmp_path, monkeypatch):
    made: list[Choice] = []

    def make(choice):
        made.append(choice)
        return LocalExecutor(1)

    monkeypatch.setitem(executors.EXECUTORS, "slurm", make)
    monkeypatch.setattr("dystop.cli.studies.compare.report_study", lambda path, target, quiet: None)
    file = tmp_path / "x.toml"
    lines = [word.replace("=", " = ", 1) for word in TINY]
    quoted = [
        f'{key} = "{value}"' if value.isalpha() else f"{key} = {value}"
        for key, value in (line.split(" = ") for line in lines)
    ]
    file.write_text("\n".join([*quoted, "[slurm]", 'partition = "gpu"', "time_min = 9"]))
    place = ["--out", tmp_path, "--name", "x", "-q"]
    usual = [file, "--mechanisms", "dystop", "--seeds", "1"]
    result = compare(*usual, "slurm.time_min=5", "--on", "slurm", *place)
    assert result.exit_code == 0, result.output
    assert made[-1].settings == {"partition": "gpu", "time_min": 5}
    assert "slurm" not in (tmp_path / "x" / "plan" / "dystop-s0.toml").read_text()
    assert finished(tmp_path / "x" / "dystop-s0")
    assert compare(*usual, *place).exit_code == 0  # the same study, wherever it ran
    assert compare(tmp_path / "x", "--on", "slurm", "slurm.cpus=2", "-q").exit_code == 0
    assert made[-1].settings == {"partition": "gpu", "time_min": 5, "cpus": 2}
    assert choose("local", None, file).settings == {}
