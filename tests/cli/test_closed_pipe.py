"""The reader of the output may close the pipe: the run continues without output."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dystop.config import read_experiment
from dystop.folders.run_folder import open_run
from dystop.runs.run import resume_run, run_experiment

SMALL = [
    "data.name=synthetic", "data.options.train=200", "data.options.test=60",
    "model.name=softmax", "fleet.workers=4", "stop.rounds=3", "world.range_m=200",
]  # fmt: skip
RUN = ["run", *SMALL, "engine.timing=overlap", "--name", "one", "--no-report"]
STUDY = ["compare", *SMALL, "--mechanisms", "dystop,d-psgd", "--seeds", "1", "--name", "both"]


def piped(folder: Path, words: list[str], pipe: str) -> subprocess.CompletedProcess:
    """Run a command in a pipe of a shell; return its own exit code and its stderr."""
    script = f'"$@" {pipe} | head -1; exit "${{PIPESTATUS[0]}}"'
    command = ["bash", "-c", script, "bash", sys.executable, "-m", "dystop", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)


def status(folder: Path) -> str:
    return json.loads((folder / "run.json").read_text())["status"]


@pytest.mark.parametrize("pipe", ["", "2>&1"])
def test_a_run_continues_when_nobody_reads_it(tmp_path, pipe):
    done = piped(tmp_path, RUN, pipe)
    assert (done.returncode, done.stdout.count("\n"), done.stderr) == (0, 1, "")
    assert status(tmp_path / "runs" / "one") == "finished"


def test_a_study_continues_when_nobody_reads_it(tmp_path):
    done = piped(tmp_path, STUDY, "2>/dev/null")
    assert (done.returncode, done.stdout) == (0, "study: runs/both (2 runs)\n")
    study = tmp_path / "runs" / "both"
    assert [status(study / f"{name}-s0") for name in ("dystop", "d-psgd")] == ["finished"] * 2
    assert (study / "report" / "report.html").is_file()


PRINTING = """
import os
from dystop.cli.terminal import echo, show_table
for k in range(3):
    echo("a line")
    echo("a note", colour="yellow", err=True)
    show_table(("a", "b"), [("1", "2")])
"""


@pytest.mark.parametrize("gone", ["stdout", "stderr"])
def test_both_streams_fall_silent_by_themselves(gone):
    read, write = os.pipe()
    os.close(read)
    other = {"stdout", "stderr"} - {gone}
    streams = {gone: write, **dict.fromkeys(other, subprocess.PIPE)}
    done = subprocess.run([sys.executable, "-c", PRINTING], **streams, text=True, timeout=1200)
    os.close(write)
    assert done.returncode == 0
    printed = done.stderr if gone == "stdout" else done.stdout
    assert printed.count("a note" if gone == "stdout" else "a line") == 3
    assert "Error" not in printed
    assert "Exception" not in printed


def failing(*_):
    raise ValueError("nobody is there")


def ctrl_c(*_):
    raise KeyboardInterrupt


def quiet(*_):
    pass


def test_a_run_whose_start_cannot_be_announced_does_not_stay_marked_as_running(tmp_path):
    experiment, folder = read_experiment(None, SMALL), tmp_path / "one"
    with pytest.raises(ValueError, match="nobody"):
        run_experiment(experiment, tmp_path, "one", failing, quiet)
    assert not folder.exists()
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, tmp_path, "one", ctrl_c, quiet)
    assert status(folder) == "interrupted"
    with pytest.raises(ValueError, match="nobody"):
        resume_run(folder, failing, quiet)
    info = open_run(folder).info
    assert (info["status"], info["stop_reason"]) == ("failed", "ValueError: nobody is there")
    resume_run(folder, quiet, quiet)
    assert status(folder) == "finished"
