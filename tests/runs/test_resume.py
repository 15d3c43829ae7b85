"""Exactness: twice the same bytes, and the same bytes after real processes were really killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dystop.cli.app import app
from dystop.config import read_experiment
from dystop.errors import RunFolderError
from dystop.folders.run_folder import RunLock, log_was_changed, open_run
from dystop.runs import run
from dystop.simulator import checkpoint
from support import crashing_child

SCRIPT = Path(crashing_child.__file__)


def quiet(_):
    return None


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    """Records and model of the run that nobody disturbs."""
    return undisturbed(tmp_path_factory.mktemp("whole"), crashing_child.CONFIG)


@pytest.fixture(scope="module")
def whole_waves(tmp_path_factory) -> bytes:
    """Records and model of the run in which trainings wait for each other."""
    return undisturbed(tmp_path_factory.mktemp("waves"), crashing_child.WAVES)


def undisturbed(out: Path, words: list[str]) -> bytes:
    experiment = read_experiment(None, words)
    folder = run.run_experiment(experiment, out, "whole", quiet, quiet)
    assert open_run(folder).info["status"] == "finished"
    return left_behind(folder)


def left_behind(folder: Path) -> bytes:
    files = ("records.jsonl", "models/global.safetensors")
    return b"".join((folder / name).read_bytes() for name in files)


def start(
    folder: Path, point: str = "never", count: int = 1, words: list[str] = crashing_child.CONFIG
) -> subprocess.Popen:
    command = [sys.executable, str(SCRIPT), str(folder), point, str(count), *words]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def resumed(folder: Path) -> bytes:
    run.resume_run(folder, quiet, quiet)
    data = open_run(folder)
    assert data.info["status"] == "finished"
    assert not list((folder / "checkpoints").glob(".*"))
    return left_behind(folder)


def test_the_same_twice(whole, tmp_path):
    experiment = read_experiment(None, crashing_child.CONFIG)
    folder = run.run_experiment(experiment, tmp_path, "again", quiet, quiet)
    assert left_behind(folder) == whole


@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("after a record", 1),  # before the first checkpoint
        ("after a record", 11),
        ("half a line", 10),
        ("half a checkpoint", 1),
        ("half a checkpoint", 3),
        ("before the rename", 2),
        ("after the rename", 3),
    ],
)
def test_killed_at_a_chosen_point(whole, tmp_path, point, count):
    folder = tmp_path / "crashed"
    process = start(folder, point, count)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert open_run(folder).info["status"] == "running"
    assert resumed(folder) == whole


@pytest.mark.parametrize(
    "words",
    [
        ["training.optimizer=adamw", "training.optimizer_state=kept"],
        ["training.momentum=0.9", "training.optimizer_state=mixed"],
    ],
    ids=["kept", "mixed"],
)
def test_the_state_of_optimisers_survives_a_kill(tmp_path, words):
    words = [*crashing_child.CONFIG, "training.schedule.warmup=20", *words]
    process = start(tmp_path / "crashed", "after a record", 11, words)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert resumed(tmp_path / "crashed") == undisturbed(tmp_path, words)


@pytest.mark.parametrize(
    ("point", "count"),
    [
        ("trainings wait", 1),  # before the first checkpoint
        ("trainings wait", 30),
        ("half a wave", 5),
    ],
)
def test_killed_while_trainings_of_several_rounds_wait(whole_waves, tmp_path, point, count):
    folder = tmp_path / "crashed"
    process = start(folder, point, count, crashing_child.WAVES)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, errors.decode()
    assert open_run(folder).info["status"] == "running"
    saved = checkpoint.checkpoints(folder / "checkpoints")
    assert bool(saved) == (count > 1)
    assert resumed(folder) == whole_waves


def test_killed_from_outside_again_and_again(whole, tmp_path):
    """Wherever the process happens to be, a later one finishes the same run."""
    folder = tmp_path / "crashed"
    process = start(folder)
    wait_for_lines(folder, process, 3)
    process.kill()
    process.communicate()
    for more in (3, 5):
        have = len(open_run(folder).records)
        code = "import sys; from dystop.cli import main; main()"
        command = [sys.executable, "-c", code, "resume", str(folder), "--no-report"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_lines(folder, process, min(have + more, 24))
        process.kill()
        process.communicate()
    assert resumed(folder) == whole


def wait_for_lines(folder: Path, process: subprocess.Popen, lines: int) -> None:
    end = time.monotonic() + 1200
    while time.monotonic() < end and process.poll() is None:
        path = folder / "records.jsonl"
        if path.exists() and path.read_bytes().count(b"\n") >= lines:
            return
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_goes_on(whole, tmp_path, number):
    out = tmp_path / "runs"
    code = "from dystop.cli import main; main()"
    words = ["run", *crashing_child.CONFIG, "--out", str(out), "--name", "stopped", "--no-report"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    folder = out / "stopped"
    wait_for_lines(folder, process, 5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=1200)
    if process.returncode == 0:
        pytest.skip("the run was over before the signal arrived")
    assert process.returncode == 128 + number
    assert f"dystop resume {folder}".encode() in errors
    assert b"Traceback" not in errors
    data = open_run(folder)
    assert data.info["status"] == "interrupted"
    saved = checkpoint.checkpoints(folder / "checkpoints")[0]
    assert checkpoint.round_of(saved) == len(data.records)  # nothing has to be computed again
    assert resumed(folder) == whole


def test_verify_says_so(whole, tmp_path):
    experiment = read_experiment(None, crashing_child.CONFIG)
    folder = run.run_experiment(experiment, tmp_path, "v", quiet, quiet)
    verdict = run.verify_run(folder, None, quiet)
    assert verdict.identical
    assert verdict.rounds == 24
    assert verdict.sha256 == open_run(folder).info["records_sha256"]
    assert run.verify_run(folder, 5, quiet).rounds == 5


def test_verify_finds_a_changed_digit(whole, tmp_path):
    experiment = read_experiment(None, crashing_child.CONFIG)
    folder = run.run_experiment(experiment, tmp_path, "v", quiet, quiet)
    log = folder / "records.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    lines[6] = lines[6].replace('"loss":', '"loss":1', 1)
    log.write_text("".join(lines))
    verdict = run.verify_run(folder, None, quiet)
    assert not verdict.identical
    assert "round 7" in verdict.detail


def test_a_finished_run_has_nothing_to_resume(whole, tmp_path):
    experiment = read_experiment(None, crashing_child.CONFIG)
    folder = run.run_experiment(experiment, tmp_path, "f", quiet, quiet)
    before = (folder / "run.json").read_bytes()
    run.resume_run(folder, quiet, quiet)
    assert (folder / "run.json").read_bytes() == before


def test_two_processes_never_write_one_folder(whole, tmp_path):
    experiment = read_experiment(None, [*crashing_child.CONFIG, "stop.rounds=1"])
    folder = run.run_experiment(experiment, tmp_path, "l", quiet, quiet)
    with RunLock(folder), pytest.raises(RunFolderError, match=str(os.getpid())):
        run.resume_run(folder, quiet, quiet)


class Stopped(Exception):
    """Ends a run as a crash would, in this process."""


def stopped(out: Path, after: int = 11) -> Path:
    """Return the folder of a run that ended after so many rounds, with checkpoints of 4 and 8."""

    def stop(record):
        if record.round == after:
            raise Stopped

    experiment = read_experiment(None, crashing_child.CONFIG)
    with pytest.raises(Stopped):
        run.run_experiment(experiment, out, "stopped", quiet, stop)
    return out / "stopped"


def spoil(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(content)


@pytest.mark.parametrize("where", ["header", "weights"])
def test_a_damaged_checkpoint_changes_no_result(whole, tmp_path, where):
    folder = stopped(tmp_path)
    newest = checkpoint.checkpoints(folder / "checkpoints")[0]
    spoil(newest, 300 if where == "header" else -40)
    with pytest.warns(UserWarning, match=f"{newest.name}.*damaged"):
        assert resumed(folder) == whole


def test_two_damaged_checkpoints_stop_the_resume(tmp_path):
    folder = stopped(tmp_path)
    for file in checkpoint.checkpoints(folder / "checkpoints"):
        spoil(file, -40)
    done = CliRunner().invoke(app, ["resume", str(folder)])
    assert done.exit_code == 2
    assert f"delete {folder / 'checkpoints'}" in done.stderr


def test_a_changed_digit_of_a_record_is_noticed(whole, tmp_path):
    folder = stopped(tmp_path)
    log = folder / "records.jsonl"
    before, info = log.read_bytes(), (folder / "run.json").read_bytes()
    line = before.split(b"\n")[5]
    log.write_bytes(before.replace(line, line.replace(b'"clock_s":', b'"clock_s":1')))
    with pytest.raises(RunFolderError, match=r"records\.jsonl.*round 8.*changed.*--name NEW"):
        run.resume_run(folder, quiet, quiet)
    assert (folder / "run.json").read_bytes() == info
    assert len(log.read_bytes()) == len(before) + 1  # nothing was cut off
    log.write_bytes(before)
    assert resumed(folder) == whole


def test_what_changes_after_the_checkpoint_is_written_again(whole, tmp_path):
    folder = stopped(tmp_path)
    log = folder / "records.jsonl"
    lines = log.read_bytes().split(b"\n")
    lines[9] = lines[9].replace(b'"clock_s":', b'"clock_s":1')
    log.write_bytes(b"\n".join(lines))
    assert resumed(folder) == whole


def test_a_digit_that_changes_while_the_run_writes_is_noticed_afterwards(tmp_path):
    log = tmp_path / "running" / "records.jsonl"

    def change(record):
        if record.round == 5:
            with log.open("r+b") as file:
                line = file.readline()
                file.seek(line.index(b'"clock_s":') + len(b'"clock_s":'))
                file.write(b"9")

    experiment = read_experiment(None, crashing_child.CONFIG)
    folder = run.run_experiment(experiment, tmp_path, "running", quiet, change)
    assert log_was_changed(open_run(folder))
