"""`dystop testbed` as users run it: restarts, interrupts, refusals, and no process left."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from dystop import load_model
from dystop.cli.app import app
from dystop.config import read_experiment
from dystop.folders.run_folder import open_run
from dystop.testbed.audit.check import audit_run, check_run
from dystop.testbed.security import authority
from dystop.testbed.setup import collect_models, parties
from dystop.testbed.setup import launch as launcher
from dystop.testbed.setup.enrolment import read_status

TINY = [
    "fleet.workers=3",
    "data.name=synthetic",
    "data.train_limit=300",
    "data.test_limit=100",
    "model.name=softmax",
    "evaluate.every_rounds=5",
    "testbed.time_scale=0.2",
]
LIGHT = [  # three processes, rounds of a tenth of a second; what is gone is given up soon
    *TINY,
    "fleet.workers=2",
    "testbed.observer=false",
    "testbed.links=free",
    "training.local_steps=1",
    "world.compute.batch_s=0.5",
    "testbed.timeouts.suspect_s=1.5",
    "testbed.timeouts.dead_s=3",
    "testbed.timeouts.round_s=2",
    "testbed.timeouts.pull_s=1",
    "testbed.timeouts.gather_s=8",
]
COMMAND = [sys.executable, "-m", "dystop", "testbed"]


def call(*words):
    return CliRunner().invoke(app, ["testbed", *map(str, words)])


def launch(tmp_path, *words):
    return subprocess.Popen(
        [*COMMAND, *map(str, words)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def party_processes(folder: Path) -> dict[int, str]:
    """Return the processes whose command names this run folder, by number."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z" and any(folder.name in word for word in words):
            roles = [w for w in words if w in ("coordinator", "worker", "observer")]
            name = words[words.index("--name") + 1] if "worker" in roles else "".join(roles)
            found[int(entry.name)] = name
    return found


LIMIT_S = 1200.0  # finds what hangs; nothing is that slow


def rounds(folder: Path) -> int:
    try:
        return (folder / "records.jsonl").read_bytes().count(b"\n")
    except OSError:
        return 0


def until(holds, what, process=None):
    end = time.monotonic() + LIMIT_S
    while not holds():
        if process is not None and process.poll() is not None:
            pytest.fail(f"{what}: {process.communicate()[0]}")
        assert time.monotonic() < end, what
        time.sleep(0.05)


@pytest.fixture
def started(tmp_path):
    """Launch a testbed; end its processes if the test fails."""
    running = []

    def start(*words):
        running.append(launch(tmp_path, *words))
        return running[-1]

    yield start
    for process in running:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def test_threads_of_one_process(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "stop.rounds=6", "testbed.time_scale=0.05", "--transport", "memory"]
    result = call(*words, "engine.timing=paper", "--name", "mem")
    assert result.exit_code == 0, result.output
    assert result.output.count("engine.timing=testbed") == 1  # a testbed has a law of its own
    data = open_run(Path("runs/mem"))
    assert (data.info["status"], data.info["kind"]) == ("finished", "testbed")
    assert [record.round for record in data.records] == list(range(1, 7))
    assert data.records[-1].accuracy is not None
    assert Path("runs/mem/report/report.html").is_file()
    assert check_run(Path("runs/mem")) == []
    private = [*Path("runs/mem").glob("workers/*/history.jsonl")]
    private += [Path("runs/mem/trace.jsonl")]
    assert len(private) > 3
    assert {path: stat.S_IMODE(path.stat().st_mode) for path in private} == dict.fromkeys(
        private, 0o600
    )
    again = call("--resume", "runs/mem", "--no-report")
    assert again.exit_code == 0
    assert "6 rounds are done, 0 to go" in again.output


def test_trained_models_are_saved(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "stop.rounds=4", "testbed.time_scale=0.05", "--transport", "memory"]
    words += ["mechanism.name=fedavg", "output.models=all", "--no-report", "--quiet"]
    result = call(*words, "--name", "mem")
    assert result.exit_code == 0, result.output
    folder = Path("runs/mem")
    sizes = open_run(folder).fleet["data_size"]
    whole = load_model(folder).module.state_dict()
    each = [load_model(folder, worker=k).module.state_dict() for k in range(len(sizes))]
    for name, tensor in whole.items():
        mean = sum(n / sum(sizes) * one[name] for n, one in zip(sizes, each, strict=True))
        assert torch.allclose(tensor, mean, atol=1e-6), name
    assert not (folder / "workers/server/model.safetensors").exists()
    # What is missing is made again, unless a worker's own model is gone.
    path = folder / "models/global.safetensors"
    before = path.read_bytes()
    path.unlink()
    assert call("--resume", folder, "--no-report").exit_code == 0
    assert path.read_bytes() == before
    (folder / "workers/w00/model.safetensors").unlink()
    assert "no global model" in call("--resume", folder, "--no-report").output
    assert call(*words, "output.models=none", "--name", "bare").exit_code == 0
    assert not list(Path("runs/bare").rglob("model*.safetensors"))


def test_a_disk_that_refuses_models(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    words = [*TINY, "stop.rounds=2", "testbed.time_scale=0.05", "--transport", "memory"]

    def full(path, data):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(collect_models, "write_atomic", full)
        result = call(*words, "--name", "full", "--no-report", "--quiet")
    assert result.exit_code == 3
    assert "dystop testbed --resume runs/full" in " ".join(result.output.split())
    assert open_run(Path("runs/full")).info["status"] == "finished"
    with monkeypatch.context() as m:
        m.setattr(parties, "write_atomic", full)
        result = call(*words, "--name", "fuller", "--no-report", "--quiet")
    assert result.exit_code == 0
    assert "no global model" in result.output
    assert "model.safetensors: cannot be written: No space left" in caplog.text


@pytest.mark.parametrize("mechanism", ["fedavg", "matcha", "sa-adfl", "gossipfl", "hadfl"])
def test_other_mechanisms(tmp_path, mechanism):
    """A server, synchronous rounds, pushes, masks and rings."""
    words = [*TINY, f"mechanism.name={mechanism}", "stop.rounds=4", "testbed.time_scale=0.02"]
    words += ["--transport", "memory", "--out", tmp_path, "--name", "run", "--no-report"]
    result = call(*words)
    assert result.exit_code == 0, result.output
    records = open_run(tmp_path / "run").records
    assert len(records) == 4
    assert sum(record.links for record in records) > 0
    assert check_run(tmp_path / "run") == []


@pytest.mark.slow
def test_killed_children_are_restarted(tmp_path, started):
    """SIGKILL of a worker and of the coordinator: the run ends normally, and nothing is lost.

    Links are compressed: the worker that comes back has lost its public copies.
    """
    folder = tmp_path / "runs" / "heal-them"
    words = "stop.rounds=80", "link.compression=sign", "--name", folder.name, "--no-report"
    process = started(*LIGHT, *words)
    until(lambda: rounds(folder) >= 3, "no rounds", process)
    for name in ("w01", "coordinator"):
        (victim,) = (pid for pid, who in party_processes(folder).items() if who == name)
        before = rounds(folder)
        os.kill(victim, signal.SIGKILL)
        until(lambda before=before: rounds(folder) > before + 2, f"after {name}", process)
        until(
            lambda name=name: name in party_processes(folder).values(),
            f"no new {name}",
            process,
        )
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert "workers joining" in output
    data = open_run(folder)
    assert data.info["status"] == "finished"
    assert [record.round for record in data.records] == list(range(1, 81))
    assert load_model(folder).card.model == "softmax"
    assert check_run(folder) == []
    assert not party_processes(folder)


@pytest.mark.slow
def test_a_killed_and_interrupted_launcher_can_resume(tmp_path, started):
    """SIGKILL of the launcher, then Ctrl-C, then a run to the end: no process is left."""
    folder = tmp_path / "runs" / "orphan-run"
    process = started(*LIGHT, "stop.rounds=60", "--name", folder.name, "--no-report")
    until(lambda: rounds(folder) >= 2, "no rounds", process)
    process.kill()
    until(lambda: not party_processes(folder), "children outlive their launcher")
    done = rounds(folder)
    process = started("--resume", f"runs/{folder.name}", "--no-report")
    until(lambda: rounds(folder) >= done + 2, "does not resume", process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, output
    assert f"dystop testbed --resume runs/{folder.name}" in output
    assert not party_processes(folder)
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"
    process = started("--resume", f"runs/{folder.name}", "--no-report", "--quiet")
    output, _ = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, output) == (0, "")
    assert [r.round for r in open_run(folder).records] == list(range(1, 61))
    assert check_run(folder) == []
    assert not party_processes(folder)


def test_impossible_settings_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, fact in (
        (["engine.timing=overlap"], "use 'testbed'"),
        (["reading=physical"], "reading = 'physical' sets this key"),
        (["evaluate.model=aggregated"], "use 'trained'"),
        (["--resume", "runs/none"], "no such folder"),
        (["--transport", "telepathy"], "testbed.transport"),
        (["--transport", "memory", "--netns"], "--netns is for --transport grpc"),
        (["--transport", "mpi", "--netns"], "--netns is for --transport grpc"),
        (["testbed.links=trace"], "needs testbed.trace"),
    ):
        result = call(*words)
        assert result.exit_code == 2, result.output
        assert fact in result.output
    assert not Path("runs").exists()


@pytest.fixture
def expired(monkeypatch):
    """Let the certificates of some parties of the next run be out of date."""

    def choose(*names):
        make, long_ago = launcher._make_certificates, datetime.now(UTC) - timedelta(days=200)

        def make_old(folder, parties):
            make(folder, parties)
            for name in names:
                authority.issue(folder / launcher.PKI, name, clock=lambda: long_ago)

        monkeypatch.setattr(launcher, "_make_certificates", make_old)

    return choose


def test_the_run_goes_on_without_a_party_that_cannot(tmp_path, monkeypatch, expired):
    monkeypatch.chdir(tmp_path)
    expired("w01", "observer")
    words = [*LIGHT, "fleet.workers=3", "testbed.observer=true", "testbed.timeouts.gather_s=4"]
    result = call(*words, "stop.rounds=5", "--name", "left-behind-run", "--no-report")
    assert result.exit_code == 6, result.output
    assert "left behind: w01" in result.output
    assert "has expired" in result.output
    data = open_run(Path("runs/left-behind-run"))
    assert (data.info["status"], len(data.records)) == ("finished", 5)
    assert set(data.info["left_behind"]) == {"w01", "observer"}
    audit = audit_run(Path("runs/left-behind-run"))
    assert audit.findings == []
    assert any("w01: left behind" in notice for notice in audit.notices)


def test_a_run_without_any_worker_ends_and_says_why(tmp_path, monkeypatch, expired):
    monkeypatch.chdir(tmp_path)
    expired("w00", "w01")
    result = call(*LIGHT, "stop.rounds=5", "--name", "no-worker-run", "--no-report")
    assert result.exit_code == 2, result.output
    assert "every worker is gone" in result.output
    assert "has expired" in result.output
    assert open_run(Path("runs/no-worker-run")).info["status"] == "failed"
    assert not party_processes(tmp_path / "runs" / "no-worker-run")


def test_a_port_in_use_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = call(*TINY, f"testbed.port={port}", "--name", "port-taken-run")
    assert result.exit_code == 2, result.output
    assert str(port) in result.output
    assert not party_processes(tmp_path / "runs" / "port-taken-run")
    assert read_status(Path("runs/port-taken-run")) == {}


def test_simulator_and_testbed_folders_are_distinguished(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    simulated = ["run", *TINY, "stop.rounds=1", "--name", "sim", "--no-report", "--quiet"]
    assert CliRunner().invoke(app, simulated).exit_code == 0
    assert "dystop resume" in call("--resume", "runs/sim").output
    words = [*TINY, "stop.rounds=1", "testbed.time_scale=0.01", "--transport", "memory"]
    assert call(*words, "--name", "real", "--no-report", "--quiet").exit_code == 0
    for command in ("resume", "verify"):
        result = CliRunner().invoke(app, [command, "runs/real"])
        assert result.exit_code == 2
        assert "dystop testbed --resume runs/real" in result.output
    checked = CliRunner().invoke(app, ["check", "runs/real"])
    assert checked.exit_code == 0
    (line,) = checked.output.splitlines()  # no finding, only the verdict
    assert line.startswith("runs/real: ")
    assert "no guarantee" in line
    simulated = CliRunner().invoke(app, ["check", "runs/sim"])
    assert simulated.exit_code == 2
    for command in ("dystop verify runs/sim", "dystop resume runs/sim"):
        assert command in simulated.output
    for history in Path("runs/real/workers").glob("*/history.jsonl"):
        history.write_text("")
    broken = CliRunner().invoke(app, ["check", "runs/real"])
    assert broken.exit_code == 5
    *findings, verdict = broken.output.splitlines()
    assert findings == [str(finding) for finding in check_run(Path("runs/real"))]
    assert verdict.startswith(f"Error: runs/real: {len(findings)} ")
    for history in Path("runs/real/workers").glob("*/history.jsonl"):
        history.unlink()
    missing = CliRunner().invoke(app, ["check", "runs/real"])
    assert missing.exit_code == 2  # nothing is known to be broken, but not all can be checked
    named = r"workers/w0[012]/history\.jsonl is missing"  # of the workers that had orders
    assert re.search(named, missing.output), missing.output
    config = read_experiment(Path("runs/real/config.toml"))
    assert config.testbed.transport == "memory"


@pytest.mark.slow
def test_parties_started_by_hand_and_a_revoked_one(tmp_path, monkeypatch):
    """As on several hosts: own authority, one command each; a revoked worker is out at once.

    It gets a new certificate over the network, by a token, and comes back into the running run.
    """
    monkeypatch.chdir(tmp_path)
    words = [*LIGHT, "stop.rounds=4000", "world.compute.batch_s=2"]
    write_config(Path("lab.toml"), [*words, "testbed.quorum=0.5"])
    for name in ("coordinator", "w00", "w01"):
        pki = ["pki", "issue", name] if name != "coordinator" else ["pki", "init"]
        assert CliRunner().invoke(app, pki).exit_code == 0
    assert CliRunner().invoke(app, ["pki", "issue", "coordinator"]).exit_code == 0
    folder = Path("runs/lab-of-two")
    command = [sys.executable, "-m", "dystop"]
    enrol = f"127.0.0.1:{free_port()}"
    words = [*command, "coordinator", "lab.toml", "--out", folder, "--enrol", enrol]
    running = [subprocess.Popen(words)]
    try:
        until(lambda: read_status(folder).get("address"), "no coordinator", running[0])
        there = ["lab.toml", "--coordinator", read_status(folder)["address"]]

        def start(name, *more):
            with open(f"{name}.log", "w") as log:
                words = [*command, "worker", *there, "--name", name, *more]
                running.append(subprocess.Popen(words, stderr=log))

        start("w00")
        start("w01")
        until(lambda: read_status(folder).get("joined") == 2, "they do not join", running[0])
        until(lambda: rounds(folder) >= 1, "no rounds", running[0])
        assert CliRunner().invoke(app, ["pki", "revoke", "w01"]).exit_code == 0
        assert running[2].wait(LIMIT_S) == 6
        assert "revoked" in Path("w01.log").read_text()
        before = rounds(folder)
        until(lambda: rounds(folder) > before + 1, "the others go on", running[0])
        until(
            lambda: read_status(folder)["away"] == ["w01"],
            "w01 is not reported as away",
            running[0],
        )
        words = ["token", "w01", "--out", "w01.token"]
        assert CliRunner().invoke(app, ["pki", *words]).exit_code == 0
        words = ["join", "w01", "--token-file", "w01.token", "--from", enrol, "--folder", "there"]
        joined = CliRunner().invoke(app, ["pki", *words, "--ca", "pki/ca.crt"])
        assert joined.exit_code == 0, joined.output
        until(lambda: read_status(folder)["away"] == [], "still away", running[0])
        start("w01", "--pki", "there")
        until(lambda: read_status(folder).get("joined") == 2, "not back", running[0])
    finally:
        for process in running:
            process.terminate()
        assert [process.wait(LIMIT_S) for process in running][:2] == [143, 143]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def write_config(path: Path, words):
    from dystop.config import to_toml

    path.write_text(to_toml(read_experiment(None, words)))
