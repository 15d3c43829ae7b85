"""A launcher that is killed while it starts its children leaves none behind."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dystop.experiments.executors.processes import child_environment
from dystop.rng import stream

from .rig import QUICK

pytestmark = pytest.mark.chaos

KILLS = 12
LONGEST_S = 9.0  # from the first child on
WITHIN_S = 15.0  # a child that works has five seconds to leave
KEYS = (*QUICK, "fleet.workers=6", "stop.rounds=100000")


def test_no_child_outlives_a_launcher_that_is_killed_during_start_up(tmp_path, show):
    moments, lived, children = stream(15, "moments"), [], 0
    for k in range(KILLS):
        words = [sys.executable, "-P", "-m", "dystop", "testbed", *KEYS, "--name", f"run-{k}",
                 "--out", str(tmp_path)]  # fmt: skip
        environment = {n: v for n, v in child_environment().items() if n != "DYSTOP_LIFELINE"}
        launcher = subprocess.Popen(
            words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        folder = f"{tmp_path}/run-{k}/"
        until(lambda folder=folder: _processes_of(folder), 60.0)
        time.sleep(float(moments.uniform(0.0, LONGEST_S)))
        children += len(_processes_of(folder))
        launcher.kill()
        launcher.wait()
        began = time.monotonic()
        until(lambda folder=folder: not _processes_of(folder), WITHIN_S)
        lived.append(time.monotonic() - began)
    show(f"{KILLS} kills, {children} children, the last one gone after {max(lived):.1f} s")
    assert children > KILLS


def until(holds, within_s):
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def _processes_of(folder: str) -> list[int]:
    """Return the processes that are started with a path inside a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            if folder.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found
