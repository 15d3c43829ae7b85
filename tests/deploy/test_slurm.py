"""`deploy/slurm/testbed.sbatch` without Slurm: the command it gives, and a job under mpiexec."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.tools import DEPLOY
from dystop.folders.run_folder import open_run

SCRIPT = DEPLOY / "slurm" / "testbed.sbatch"
BESIDE = str(Path(sys.executable).parent)
PATH = BESIDE + os.pathsep + os.environ.get("PATH", "")
pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
SMALL = ["model.name=softmax", "data.name=synthetic", "data.train_limit=300", "data.test_limit=100"]
SMALL += ["testbed.devices=free", "testbed.links=free", "training.local_steps=1"]


def job(folder, *words, launcher="echo", seconds=60):
    """Run the script as Slurm does, with another launcher of the ranks."""
    environment = {"PATH": PATH, "LAUNCHER": launcher, "SLURM_JOB_NAME": "trial"}
    return subprocess.run(
        ["bash", str(SCRIPT), *words],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def test_a_first_job_begins_and_a_second_one_resumes(tmp_path):
    first = job(tmp_path, "lab.toml", "seed=3").stdout.strip()
    assert first == "dystop testbed lab.toml seed=3 --out runs --name trial --transport mpi"
    run = tmp_path / "runs" / "trial" / "run.json"
    run.parent.mkdir(parents=True)
    run.write_text(json.dumps({"status": "running"}, indent=2))
    assert job(tmp_path, "lab.toml").stdout.strip() == "dystop testbed --resume runs/trial"
    run.write_text(json.dumps({"status": "finished"}, indent=2))
    last = job(tmp_path, "lab.toml")
    assert last.returncode == 0
    assert "has finished" in last.stdout


def test_a_job_without_an_experiment_says_how_to_start_it(tmp_path):
    done = job(tmp_path)
    assert done.returncode == 2
    assert "usage: sbatch" in done.stderr


@pytest.mark.fleet
@pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or shutil.which("mpiexec", path=PATH) is None,
    reason="needs mpi4py and mpiexec",
)
def test_the_job_trains_under_mpiexec(tmp_path):
    (tmp_path / "lab.toml").write_text('name = "lab"\n')
    done = job(tmp_path, "lab.toml", *SMALL, "stop.rounds=4", launcher="mpiexec -n 4", seconds=300)
    assert done.returncode == 0, done.stdout + done.stderr
    run = open_run(tmp_path / "runs" / "trial")
    assert run.info["status"] == "finished"
    assert len(run.records) == 4
    assert sorted(p.name for p in (run.path / "workers").iterdir()) == ["w00", "w01", "w02"]
