"""The product and the two projects beside it, installed by one call of pip into an empty folder."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECTS = (ROOT, ROOT / "paper", ROOT / "benchmarks")
BUILD = "import sys; from hatchling import build; print(build.build_wheel(sys.argv[1]))"

pytestmark = pytest.mark.usefixtures("placeholder_figure_files")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    for project in PROJECTS:
        subprocess.run([sys.executable, "-c", BUILD, str(wheels)], cwd=project, check=True)
    found = sorted(map(str, wheels.glob("*.whl")))
    assert len(found) == len(PROJECTS)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(target), *found], check=True)
    return target


def test_all_commands_work_together(installed, tmp_path):
    def python(*words):
        line = [sys.executable, *words]
        ran = {**os.environ, "PYTHONPATH": str(installed)}
        done = subprocess.run(line, cwd=tmp_path, env=ran, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    names = "dystop, dystop_paper, dystop_benchmarks"
    where = python("-c", f"import {names}; print(*(m.__file__ for m in ({names})))")
    assert all(Path(path).is_relative_to(installed) for path in where.split())
    listed = python("-m", "dystop", "--help")
    assert all(f"  {name} " in listed for name in ("run", "reproduce", "bound", "atlas", "bench"))
    assert "fig-completion-time" in python("-m", "dystop", "reproduce", "--list")
    assert "startup" in python("-m", "dystop", "bench", "--help")
    words = "data.name=synthetic", "model.name=softmax", "fleet.workers=3", "stop.rounds=2"
    python("-m", "dystop", "run", *words, "--no-report")
    assert (tmp_path / "runs").is_dir()
