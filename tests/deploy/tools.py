"""The programs that check the files under `deploy/`; a test skips where its program is missing."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "dystop"
_HINTS = {"docker": "docker-cli and docker-compose", "systemd-analyze": "systemd"}


def program(name: str) -> str:
    """Return the path of a program; skip the test if there is none."""
    beside = str(Path(sys.executable).parent)  # where pip puts programs
    found = shutil.which(name, path=beside + os.pathsep + os.environ.get("PATH", ""))
    if found is None:
        hint = _HINTS.get(name, "pip install 'dystop[manifests]'")
        pytest.skip(f"{name} is not installed ({hint})")
    return found


def call(*words: object, given: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program of this host; return how it ended, with its output and errors as one text."""
    name, *rest = map(str, words)
    return subprocess.run(
        [program(name), *rest],
        input=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": ""},
    )


def output(*words: object, given: str | None = None) -> str:
    """Run a program that must end well; return its output."""
    done = call(*words, given=given)
    assert done.returncode == 0, done.stdout
    return done.stdout
