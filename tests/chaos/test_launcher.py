"""A launcher that is killed while it starts its children leaves none behind."""

import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dystop.config import read_experiment
from dystop.rng import stream
from dystop.runs.processes import LIFELINE, child_environment, dystop_command
from dystop.testbed.setup.launch import make_folder

from .rig import QUICK

pytestmark = pytest.mark.chaos

KILLS = 8
LONGEST_S = 4.0  # after the k-th child was started
WITHIN_S = 15.0  # a child that works has five seconds to leave
KEYS = (
    *QUICK, "fleet.workers=6", "data.train_limit=300", "data.test_limit=50", "stop.rounds=100000",
)  # fmt: skip


def test_no_child_outlives_a_launcher_that_is_killed_during_start_up(tmp_path, show):
    moments, lived, children = stream(15, "moments"), [], 0
    folder, _ = make_folder(read_experiment(None, list(KEYS)), tmp_path, "run")
    environment = {n: v for n, v in child_environment().items() if n != LIFELINE}
    for k in range(KILLS):
        launcher = subprocess.Popen(
            dystop_command("testbed", "--resume", folder),
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda most=k % 8: len(_children_in(folder)) > most, 120.0)
            time.sleep(float(moments.uniform(0.0, LONGEST_S)))
            children += len(_children_in(folder))
        finally:
            launcher.kill()
            launcher.wait()
        began = time.monotonic()
        until(lambda: not _children_in(folder), WITHIN_S)
        lived.append(time.monotonic() - began)
    show(f"{KILLS} kills, {children} children, the last one gone after {max(lived):.1f} s")
    assert children >= KILLS * 9 / 2


def until(holds, within_s):
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def _children_in(folder: Path) -> list[int]:
    """Return the processes that are started with a path inside a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has just ended
            if f"{folder}/".encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found
